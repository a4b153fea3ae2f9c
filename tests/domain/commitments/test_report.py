from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.groups.group_settings import GroupSettings
from commitments.domain.report import (
    ZoneCapacity,
    capacity_entries,
    counts_in_slots,
    quota_units,
    vm_ram_units,
)
from scheduling.resources import MIB


def fixed(smallest_mib: int, ratio: int = 4096) -> FlavorGroupDef:
    flavor = FlavorSpec(name="small", vcpus=4, memory_bytes=smallest_mib * MIB)
    return FlavorGroupDef(name="g", flavors=(flavor,), ram_core_ratio_mib=ratio)


def variable(smallest_mib: int = 2048) -> FlavorGroupDef:
    flavor = FlavorSpec(name="small", vcpus=4, memory_bytes=smallest_mib * MIB)
    return FlavorGroupDef(
        name="g", flavors=(flavor,), ram_core_ratio_min_mib=512, ram_core_ratio_max_mib=4096
    )


def vms(count: int, mib: int) -> int:
    return count * mib * MIB


CAPACITY_CASES = {
    "fixed ratio, running 200, 800 slots free": (
        fixed(16384),
        16,
        ZoneCapacity(running_instances=200, free_slots=800),
        (1000, 200),
    ),
    "variable ratio, unit 2 GiB, 3 x 2048 running, 5 x 2048 free": (
        variable(),
        2,
        ZoneCapacity(running_memory_bytes=vms(3, 2048), free_memory_bytes=vms(5, 2048)),
        (8, 3),
    ),
    "variable ratio, unit 2 GiB, 3 x 2032 running, 5 x 2032 free": (
        variable(2032),
        2,
        ZoneCapacity(running_memory_bytes=vms(3, 2032), free_memory_bytes=vms(5, 2032)),
        (7, 2),
    ),
    "running 3, free 5, reserved unused 2 slots": (
        fixed(16384),
        16,
        ZoneCapacity(running_instances=3, free_slots=5, reserved_slots=2),
        (10, 3),
    ),
    "running 2 VMs of 1 and 4 slots, free 5": (
        fixed(16384),
        16,
        ZoneCapacity(running_instances=2, running_slots=5, free_slots=5),
        (10, 5),
    ),
    "fixed ratio whose unit is not its smallest flavor": (
        fixed(65536),
        1,
        ZoneCapacity(
            running_instances=1,
            running_memory_bytes=vms(1, 65536),
            free_slots=2,
            free_memory_bytes=vms(2, 65536),
            reserved_slots=1,
            reserved_memory_bytes=vms(1, 65536),
        ),
        (256, 64),
    ),
}


@pytest.mark.parametrize(
    ("group", "unit_gib", "zone", "expected"), CAPACITY_CASES.values(), ids=list(CAPACITY_CASES)
)
def test_ram_capacity_is_in_declared_units(
    group: FlavorGroupDef, unit_gib: int, zone: ZoneCapacity, expected: tuple[int, int]
) -> None:
    entry = capacity_entries(zone, group, GroupSettings(ram_unit_gib=unit_gib))["hw_version_g_ram"]
    assert (entry.capacity, entry.usage) == expected


def test_instances_count_vms_where_ram_counts_slots() -> None:
    zone = ZoneCapacity(running_instances=2, running_slots=5, free_slots=5)
    entries = capacity_entries(zone, fixed(16384), GroupSettings(ram_unit_gib=16))
    assert entries["hw_version_g_instances"].capacity == 7
    assert entries["hw_version_g_instances"].usage == 2


def test_cores_are_running_free_and_reserved() -> None:
    zone = ZoneCapacity(running_vcpus=1600, free_vcpus=6400, reserved_vcpus=8)
    entry = capacity_entries(zone, fixed(16384), GroupSettings(ram_unit_gib=16))
    assert entry["hw_version_g_cores"].capacity == 8008
    assert entry["hw_version_g_cores"].usage == 1600


UNIT_CASES = {
    "fixed, smallest 1024, 4096": (fixed(1024), 1, 4096, 4),
    "fixed, smallest 1024, 1024": (fixed(1024), 1, 1024, 1),
    "fixed, smallest 32752, 65520": (fixed(32752), 32, 65520, 2),
    "variable 2048": (variable(), 1, 2048, 2),
    "variable 2032": (variable(), 1, 2032, 2),
    "variable 1008": (variable(), 1, 1008, 1),
    "variable 1000": (variable(), 1, 1000, 0),
    "variable 0": (variable(), 1, 0, 0),
    "variable, unit 2, 4080": (variable(), 2, 4080, 2),
    "fixed of another unit, 64 GiB in GiB": (fixed(65536), 1, 65536, 64),
}


@pytest.mark.parametrize(
    ("group", "unit_gib", "memory_mib", "expected"), UNIT_CASES.values(), ids=list(UNIT_CASES)
)
def test_units_of_one_vm(
    group: FlavorGroupDef, unit_gib: int, memory_mib: int, expected: int
) -> None:
    units = vm_ram_units(memory_mib * MIB, group=group, unit_mib=unit_gib * 1024, tolerance_mib=16)
    assert units == expected


def test_slots_are_counted_only_when_the_declared_unit_is_the_smallest_flavor() -> None:
    assert counts_in_slots(fixed(16384), 16384)
    assert counts_in_slots(fixed(373760), 365 * 1024)
    assert counts_in_slots(fixed(512), 1024)
    assert not counts_in_slots(fixed(16384), 1024)
    assert not counts_in_slots(variable(), 2048)


@pytest.mark.parametrize(
    ("stored", "ram_unit_mib", "expected"),
    [(16, 1024, 16), (None, 1024, -1), (None, 16384, -1), (-1, 16384, -1), (10, 2048, 5)],
    ids=["16 GiB", "no row", "no row, unit 16", "stored unlimited, unit 16", "10 GiB, unit 2"],
)
def test_quota_is_in_declared_units_and_minus_one_stays(
    stored: int | None, ram_unit_mib: int, expected: int
) -> None:
    assert quota_units(stored, ram_unit_mib=ram_unit_mib) == expected


@given(
    running=st.integers(0, 10**6),
    free=st.integers(0, 10**6),
    reserved=st.integers(0, 10**6),
    unit_gib=st.integers(1, 64),
)
def test_usage_never_exceeds_capacity(
    running: int, free: int, reserved: int, unit_gib: int
) -> None:
    zone = ZoneCapacity(
        running_instances=running,
        running_memory_bytes=running * 2048 * MIB,
        running_vcpus=running,
        free_slots=free,
        free_memory_bytes=free * 2048 * MIB,
        free_vcpus=free,
        reserved_slots=reserved,
        reserved_memory_bytes=reserved * 2048 * MIB,
        reserved_vcpus=reserved,
    )
    for group in (fixed(2048), variable()):
        entries = capacity_entries(zone, group, GroupSettings(ram_unit_gib=unit_gib))
        assert all(0 <= one.usage <= one.capacity for one in entries.values())
