"""Resource units, counters, cloud units (spec hosts, B.5, B.8)."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
from headroom_host_agent.provision.units import (
    GIB,
    MIB,
    Counters,
    ResourceUnit,
    Units,
    UnitsError,
    compute_units,
    counter_of,
    storage_units,
    units_of,
    usable_memory_bytes,
    with_host_share,
)
from hypothesis import given
from hypothesis import strategies as st

VOLUME = {"size": 1, "type": "hdd"}
ZDB = {"size": 15, "disk_type": "SSD"}
CONTAINER = {"cpu": 2, "memory": 4096, "disk_size": 256, "disk_type": "ssd"}


@pytest.mark.parametrize(
    ("kind", "data", "units"),
    [
        ("volume", {"size": 1, "type": "ssd"}, Units(sru=GIB)),
        ("zdb", {"size": 1, "disk_type": "hdd"}, Units(hru=GIB)),
        (
            "container",
            {"cpu": 2, "memory": 1024, "disk_size": 256, "disk_type": "ssd"},
            Units(cru=2, mru=GIB, sru=256 * MIB),
        ),
        (
            "container",
            {"cpu": 2, "memory": 2048, "disk_size": 1024, "disk_type": "ssd"},
            Units(cru=2, mru=2 * GIB, sru=GIB),
        ),
        ("container", {"cpu": 1, "memory": 1}, Units(cru=1, mru=MIB)),
        ("kubernetes", {"size": 2}, Units(cru=2, mru=4 * GIB, sru=100 * GIB)),
        ("kubernetes", {"size": 19}, Units()),
        ("kubernetes", {"size": 0}, Units()),
        ("network", {"size": 1}, Units()),
        ("network_resource", {}, Units()),
        ("anything", {}, Units()),
    ],
)
def test_a_workload_has_its_units(kind: str, data: dict[str, object], units: Units) -> None:
    assert units_of(kind, data) == units


SIZES = [
    (1, 1, 2, 50),
    (2, 2, 4, 100),
    (3, 2, 8, 25),
    (4, 2, 8, 50),
    (5, 2, 8, 200),
    (6, 4, 16, 50),
    (7, 4, 16, 100),
    (8, 4, 16, 400),
    (9, 8, 32, 100),
    (10, 8, 32, 200),
    (11, 8, 32, 800),
    (12, 1, 64, 200),
    (13, 1, 64, 400),
    (14, 1, 64, 800),
    (15, 1, 2, 25),
    (16, 2, 4, 50),
    (17, 4, 8, 50),
    (18, 1, 1, 25),
]


@pytest.mark.parametrize(("size", "cpus", "memory", "flash"), SIZES)
def test_a_sized_vm_has_its_units(size: int, cpus: int, memory: int, flash: int) -> None:
    expected = Units(cru=cpus, mru=memory * GIB, sru=flash * GIB)
    assert units_of("kubernetes", {"size": size}) == expected


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("volume", {"size": 1, "type": "tape"}),
        ("volume", {"size": 1}),
        ("volume", {"size": "1", "type": "ssd"}),
        ("volume", {"size": -1, "type": "ssd"}),
        ("volume", {"size": 1.5, "type": "ssd"}),
        ("volume", {"size": True, "type": "ssd"}),
        ("container", {"disk_size": 1}),
        ("kubernetes", {"size": None}),
    ],
)
def test_data_without_a_size_are_an_error(kind: str, data: dict[str, object]) -> None:
    with pytest.raises(UnitsError):
        units_of(kind, data)


@pytest.mark.parametrize(
    ("kind", "counter"),
    [
        ("volume", "volume"),
        ("zdb", "zdb_namespace"),
        ("container", "container"),
        ("kubernetes", "k8s_vm"),
        ("network", "network"),
        ("network_resource", "network"),
        ("debug", None),
    ],
)
def test_a_workload_has_its_counter(kind: str, counter: str | None) -> None:
    assert counter_of(kind) == counter


def test_workloads_add_up() -> None:
    counters = Counters()
    for kind, data in (("volume", VOLUME), ("zdb", ZDB), ("container", CONTAINER)):
        counters.increment(kind, data)

    assert counters.current_units().to_json() == {"cru": 2, "mru": 4.0, "hru": 1.0, "sru": 15.25}
    assert counters.current_workloads() == {"volume": 1, "zdb_namespace": 1, "container": 1}

    counters.decrement("zdb", ZDB)
    counters.decrement("zdb", ZDB)
    assert counters.current_workloads()["zdb_namespace"] == 0
    assert counters.current_units().sru == 0


@pytest.mark.parametrize(("less", "left"), [(3, 2), (5, 0), (7, 0)])
def test_less_than_nothing_is_nothing(less: int, left: int) -> None:
    assert Units(cru=5) - Units(cru=less) == Units(cru=left)


UNITS = st.builds(Units, **{unit.value: st.integers(0, 9) for unit in ResourceUnit})


@given(ours=UNITS, theirs=UNITS)
def test_each_unit_is_counted_by_itself(ours: Units, theirs: Units) -> None:
    left = ours - theirs

    assert (ours + theirs) - theirs == ours
    for unit in ResourceUnit:
        amounts = (getattr(units, unit.value) for units in (ours, theirs, left))
        one, other, rest = amounts
        assert rest == max(0, one - other)


def test_a_wrong_workload_counts_nothing() -> None:
    counters = Counters()

    with pytest.raises(UnitsError):
        counters.increment("volume", {})

    assert counters.current_workloads() == {}


def test_threads_lose_no_count() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(500):
            counters.increment("volume", VOLUME)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counters.current_workloads() == {"volume": 2000}
    assert counters.current_units() == Units(hru=2000 * GIB)


@pytest.mark.parametrize(
    ("total_bytes", "usable_gib"),
    [(64 * GIB, 62), (64 * GIB + 1, 63), (24_684_092 * 1024, 22), (GIB, 0)],
)
def test_the_host_keeps_some_memory(total_bytes: int, usable_gib: int) -> None:
    assert usable_memory_bytes(total_bytes) == usable_gib * GIB


def test_the_host_itself_counts() -> None:
    units = Units(cru=1, mru=GIB)

    flash = with_host_share(units, cache_bytes=7, cache_is_flash=True)
    spinning = with_host_share(units, cache_bytes=7, cache_is_flash=False)
    assert flash == Units(cru=1, mru=3 * GIB, sru=7)
    assert spinning == Units(cru=1, mru=3 * GIB, hru=7)


@pytest.mark.parametrize(
    ("cpus", "memory", "units"), [(1, 1, "0.25"), (2, 4, "1"), (4, 8, "2"), (4, 64, "2")]
)
def test_compute_units(cpus: int, memory: int, units: str) -> None:
    assert compute_units(cpus, memory) == Decimal(units)


@pytest.mark.parametrize(("spinning", "flash", "units"), [(1200, 120, "1.4"), (1000, 40, "0.967")])
def test_storage_units(spinning: int, flash: int, units: str) -> None:
    assert storage_units(spinning, flash) == Decimal(units)
