from __future__ import annotations

import pytest

from capacity.groups.group_settings import settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.models import FlavorGroup, FlavorGroupSettings, FlavorGroupSnapshot
from hosts.models import Flavor
from journal.errors import NotReady
from scheduling.resources import GIB
from tests.factories import make_group, make_group_settings


@pytest.mark.django_db
def test_missing_and_unready_snapshots_are_not_ready() -> None:
    with pytest.raises(NotReady):
        load_group_definitions()
    FlavorGroupSnapshot.objects.create(is_ready=False)
    with pytest.raises(NotReady):
        load_group_definitions()


@pytest.mark.django_db
def test_flavors_come_largest_first_with_the_ratios_of_the_row() -> None:
    make_group("mixed", flavors=[("a", 4096, 1), ("b", 16384, 2)])
    make_group("alone", flavors=[("c", 2048, 1)])
    groups = load_group_definitions()
    assert list(groups) == ["alone", "mixed"]
    mixed = groups["mixed"]
    assert [flavor.name for flavor in mixed.flavors] == ["b", "a"]
    assert (mixed.ram_core_ratio_min_mib, mixed.ram_core_ratio_max_mib) == (4096, 8192)
    assert not mixed.has_fixed_ratio
    assert groups["alone"].has_fixed_ratio
    assert groups["alone"].smallest.memory_bytes == 2 * GIB


@pytest.mark.django_db
def test_retired_groups_are_left_out_unless_asked_for() -> None:
    make_group("old", flavors=[("a", 4096, 1)])
    make_group("now", flavors=[("b", 4096, 1)])
    FlavorGroup.objects.filter(name="old").update(is_retired=True)
    assert list(load_group_definitions()) == ["now"]
    assert list(load_group_definitions(include_retired=True)) == ["now", "old"]


@pytest.mark.sql("capacity_group_mark")
@pytest.mark.django_db(transaction=True)
def test_definitions_are_kept_until_a_row_changes() -> None:
    make_group("g", flavors=[("a", 4096, 1)])
    first = load_group_definitions()
    assert load_group_definitions() is first
    Flavor.objects.filter(name="a").update(memory_bytes=8 * GIB)
    assert load_group_definitions()["g"].smallest.memory_bytes == 8 * GIB
    make_group("h", flavors=[("b", 4096, 1)])
    assert list(load_group_definitions()) == ["g", "h"]
    FlavorGroup.objects.filter(name="g").delete()
    assert list(load_group_definitions()) == ["h"]


@pytest.mark.django_db(transaction=True)
def test_settings_are_kept_until_a_row_changes() -> None:
    make_group_settings("*", ram_unit_gib=0)
    first = load_group_settings()
    assert load_group_settings() is first
    assert settings_for_group(first, "any").ram_unit_mib == 1024
    make_group_settings("g", ram_unit_gib=4, handles=("ram",), quota=("instances",))
    own = settings_for_group(load_group_settings(), "g")
    assert own.ram_unit_gib == 4
    assert own.ram.handles_commitments
    assert not own.cores.handles_commitments
    assert own.instances.has_quota
    FlavorGroupSettings.objects.filter(group_name="g").update(ram_unit_gib=8)
    assert settings_for_group(load_group_settings(), "g").ram_unit_gib == 8


@pytest.mark.django_db(transaction=True)
def test_without_any_settings_memory_is_committed_as_shipped() -> None:
    shipped = settings_for_group(load_group_settings(), "any")
    assert (shipped.ram.handles_commitments, shipped.ram.has_capacity) == (True, True)
    assert (shipped.cores.handles_commitments, shipped.cores.has_capacity) == (False, True)
    assert (shipped.instances.handles_commitments, shipped.ram_unit_gib) == (False, 1)
    FlavorGroupSettings.objects.create(group_name="g")
    assert not settings_for_group(load_group_settings(), "any").ram.has_capacity
