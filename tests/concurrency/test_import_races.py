"""Imports write in small parts, beside planners and claims, and may die between two of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction

from capacity.locks import zone_lock
from capacity.models import HostCapacity
from hosts.models import Host, Instance
from hosts.region import merging, prune
from hosts.services.host_orders import HostOrder, change_host
from hosts.services.region_import import LEASE
from journal.actors import Actor
from journal.errors import Busy
from journal.leases import take_lease
from scheduling.resources import GIB
from tests.hosts.region_files import Json, load, small_region, write_file
from tests.killing import in_children, run_in_child

pytestmark = pytest.mark.django_db(transaction=True)

VMS = 6


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "ROWS_PER_PART", 2)
    monkeypatch.setattr(prune, "ROWS_PER_PART", 2)


def region(host_of: dict[int, int], zone_of: tuple[str, str] = ("az-a", "az-a")) -> Json:
    """Two hosts and some VMs, each on the host that is told."""
    made = small_region()
    compute = made["compute"]
    (hypervisor,), (service,), (server,) = (
        compute["hypervisors"],
        compute["services"],
        compute["servers"],
    )
    compute["hypervisors"], compute["services"], compute["servers"] = [], [], []
    for number in (1, 2):
        compute["hypervisors"].append(
            {
                **hypervisor,
                "id": f"h{number}",
                "hypervisor_hostname": f"node{number}",
                "service": {"host": f"svc{number}", "id": f"s{number}", "disabled_reason": None},
                "vcpus": 64,
                "memory_mb": 1 << 18,
                "local_gb": 1000,
            }
        )
        compute["services"].append({**service, "host": f"svc{number}"})
    compute["aggregates"] = [
        {
            "uuid": f"a-{zone}",
            "name": zone,
            "hosts": [f"svc{number}" for number in (1, 2) if zone_of[number - 1] == zone],
            "metadata": {"availability_zone": zone},
        }
        for zone in sorted(set(zone_of))
    ]
    made["placement"], made["limes"] = {}, {}
    for number, host in host_of.items():
        vm = deepcopy(server) | {"id": f"v{number}"}
        vm["OS-EXT-SRV-ATTR:hypervisor_hostname"] = f"node{host}"
        vm["OS-EXT-SRV-ATTR:host"] = f"svc{host}"
        compute["servers"].append(vm)
    return made


def assert_rooms_follow_vms() -> None:
    """Every room that is there says what the VMs take that are stored at this moment."""
    taken: defaultdict[int | None, int] = defaultdict(int)
    for host_id, memory_bytes in Instance.objects.values_list("host_id", "memory_bytes"):
        taken[host_id] += memory_bytes
    rooms = dict(HostCapacity.objects.values_list("host_id", "allocated_memory_bytes"))
    assert rooms == {
        host_id: taken[host_id] for host_id in Host.objects.values_list("pk", flat=True)
    }


def imported(file: Path, **options: bool) -> None:
    load(file, **options)


@contextmanager
def planner_at_work(zone: str) -> Iterator[None]:
    """Another connection holds the lock of a zone."""
    other, mine = connections.create_connection("default"), connections["default"]
    try:
        connections["default"] = other
        with transaction.atomic():
            zone_lock([zone])
            connections["default"] = mine
            yield
            connections["default"] = other
    finally:
        connections["default"] = mine
        other.close()


def test_an_import_of_vms_waits_for_no_planner(tmp_path: Path) -> None:
    load(write_file(tmp_path, region(dict.fromkeys(range(VMS), 1))))

    with planner_at_work("az-a"):
        load(write_file(tmp_path, region({number: 1 + number % 2 for number in range(VMS)})))

    assert list(
        HostCapacity.objects.order_by("host__name").values_list("allocated_memory_bytes", flat=True)
    ) == [3 * 8 * GIB, 3 * 8 * GIB]


def test_a_host_comes_into_another_zone_when_no_planner_works_on_either(
    tmp_path: Path, settings: Any
) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.05})
    load(write_file(tmp_path, region({1: 1, 2: 2})))
    moved = write_file(tmp_path, region({1: 1, 2: 2}, ("az-a", "az-b")))

    with planner_at_work("az-a"), pytest.raises(Busy):
        load(moved)
    assert set(Host.objects.values_list("zone", flat=True)) == {"az-a"}

    load(moved)
    assert set(HostCapacity.objects.values_list("host__name", "zone")) == {
        ("node1", "az-a"),
        ("node2", "az-b"),
    }


def test_an_import_that_dies_leaves_rooms_that_follow_their_vms(tmp_path: Path) -> None:
    load(write_file(tmp_path, region(dict.fromkeys(range(VMS), 1))))
    turned = write_file(tmp_path, region(dict.fromkeys(range(3, VMS + 3), 2)))
    places = set()

    for die_at in range(1, 400, 3):
        has_finished = run_in_child(partial(imported, turned, prune=True), die_at)
        assert_rooms_follow_vms()
        places.add(tuple(sorted(Instance.objects.values_list("openstack_id", "host__name"))))
        if has_finished:
            break
    else:
        pytest.fail("never finished")

    assert len(places) > 3, "it wrote everything at once"
    assert set(Instance.objects.values_list("openstack_id", "host__name")) == {
        (f"v{number}", "node2") for number in range(3, VMS + 3)
    }


def test_two_imports_at_once_are_one_after_the_other(tmp_path: Path) -> None:
    files = [
        write_file(tmp_path, region(dict.fromkeys(range(VMS), host)), f"{host}.json")
        for host in (1, 2)
    ]
    assert all(in_children([partial(imported, file) for file in files]))
    assert len(set(Instance.objects.values_list("host__name", flat=True))) == 1
    assert_rooms_follow_vms()


def test_an_import_that_never_gets_its_turn_says_so(tmp_path: Path, settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lease_seconds": 60.0})
    lease = take_lease(LEASE)
    assert lease is not None
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lease_seconds": 0.01})
    with pytest.raises(Busy, match="another import"):
        load(write_file(tmp_path, region({})))


@pytest.mark.parametrize("is_changed", [False, True])
def test_what_is_ordered_of_a_host_while_lists_are_written_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_changed: bool
) -> None:
    listed = region({1: 1})
    load(write_file(tmp_path, listed))
    if is_changed:
        listed["compute"]["hypervisors"][0]["memory_mb"] *= 2
    order = HostOrder(allowed_projects=["p1"], overcommit={"cpu": Decimal(2)})

    def merged(run: Any, plan: merging.Merge, *, section: str) -> None:
        if plan.table == "hosts_host":
            change_host("node1", order, actor=Actor(name="ann"), request_id="r")
        merging.merge(run, plan, section=section)

    monkeypatch.setattr("hosts.region.hosts.merge", merged)
    load(write_file(tmp_path, listed))

    host = Host.objects.get(name="node1")
    assert host.total_memory_bytes == (512 if is_changed else 256) * GIB
    assert (host.allowed_projects, host.effective_vcpus) == (["p1"], 128)
    assert HostCapacity.objects.get(host=host).effective_vcpus == 128
