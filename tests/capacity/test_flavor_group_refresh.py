from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from capacity.groups.flavor_groups import groups_of_flavors
from capacity.groups.reading import load_group_definitions
from capacity.groups.refreshing import FlavorGroupRefresh, refresh_flavor_groups
from capacity.models import FlavorGroup, FlavorGroupMember, FlavorGroupRule, FlavorGroupSnapshot
from capacity.tasks import refresh_flavor_groups as refresh_task
from commitments.models import Commitment
from hosts.models import Flavor
from journal.actors import Actor
from journal.models import AuditEntry
from scheduling.resources import GIB

pytestmark = pytest.mark.django_db


def refresh(**options: Any) -> FlavorGroupRefresh:
    return refresh_flavor_groups(actor=Actor(name="test"), request_id="req", **options)


def make_flavor(name: str, group: str = "", vcpus: int = 2, memory_gib: int = 8) -> Flavor:
    specs = {"capabilities:hypervisor_type": "QEMU"}
    if group:
        specs["quota:hw_version"] = group
    return Flavor.objects.create(
        openstack_id=name,
        name=name,
        vcpus=vcpus,
        memory_bytes=memory_gib * GIB,
        extra_specs=specs,
    )


def make_commitment(group: str, state: str = "confirmed") -> None:
    Commitment.objects.create(
        commitment_uuid=f"commitment-{group}",
        flavor_group_name=group,
        resource_type="memory",
        requested_amount=GIB,
        zone="az-a",
        project_id="p",
        state=state,
    )


def members(group: str) -> list[str]:
    return [
        member.flavor.name
        for member in FlavorGroupMember.objects.filter(group__name=group).select_related("flavor")
    ]


def test_groups_are_made_from_extra_specs_largest_flavor_first() -> None:
    make_flavor("small", "a")
    make_flavor("large", "a", vcpus=8, memory_gib=32)
    make_flavor("loose")
    result = refresh()
    group = FlavorGroup.objects.get()
    assert members("a") == ["large", "small"]
    assert (group.smallest_flavor.name, group.largest_flavor.name) == ("small", "large")
    assert (group.ram_core_ratio_mib, group.has_fixed_ratio) == (4096, True)
    assert result.created == ("a",)
    assert result.skipped_flavors == (("loose", "no_flavor_group"),)


def test_a_second_refresh_writes_no_group() -> None:
    make_flavor("small", "a")
    refresh()
    group = FlavorGroup.objects.values().get()
    member_ids = list(FlavorGroupMember.objects.values_list("pk", flat=True))
    changed_at = FlavorGroupSnapshot.objects.get().last_content_change_at
    result = refresh()
    assert (result.unchanged, result.has_changed) == (("a",), False)
    assert FlavorGroup.objects.values().get() == group
    assert list(FlavorGroupMember.objects.values_list("pk", flat=True)) == member_ids
    assert FlavorGroupSnapshot.objects.get().last_content_change_at == changed_at
    assert AuditEntry.objects.filter(object_type="FlavorGroup").count() == 1


def test_a_flavor_may_move_to_another_group() -> None:
    make_flavor("one", "a")
    moving = make_flavor("two", "a")
    make_flavor("three", "b")
    refresh()
    moving.extra_specs["quota:hw_version"] = "b"
    moving.save()
    result = refresh()
    assert result.updated == ("a", "b")
    assert (members("a"), members("b")) == (["one"], ["three", "two"])
    assert FlavorGroupSnapshot.objects.get().is_ready


def test_a_flavor_that_grows_changes_the_content() -> None:
    flavor = make_flavor("one", "a")
    refresh()
    flavor.memory_bytes = 16 * GIB
    flavor.save()
    result = refresh()
    assert (result.updated, result.has_changed) == (("a",), True)


def test_a_group_without_flavors_goes_when_nobody_refers_to_it() -> None:
    make_flavor("one", "a").delete()
    flavor = make_flavor("two", "b")
    refresh()
    make_commitment("b", state="expired")
    refresh(without_flavor_ids=[flavor.pk])
    assert not FlavorGroup.objects.exists()


def test_a_group_that_commitments_refer_to_is_retired_and_comes_back() -> None:
    flavor = make_flavor("one", "a")
    refresh()
    make_commitment("a")
    flavor.extra_specs = {"capabilities:hypervisor_type": "VMware", "quota:hw_version": "a"}
    flavor.save()
    result = refresh()
    assert result.retired == ("a",)
    assert FlavorGroup.objects.get().is_retired
    assert members("a") == ["one"]
    assert refresh().retired == ()
    flavor.extra_specs = {"capabilities:hypervisor_type": "QEMU", "quota:hw_version": "a"}
    flavor.save()
    assert refresh().updated == ("a",)
    assert not FlavorGroup.objects.get().is_retired


@pytest.mark.parametrize("moving", [("one", "two", "three"), ("one",), ("two", "three")])
def test_a_retired_group_is_known_though_its_flavors_are_of_another(
    moving: Sequence[str],
) -> None:
    for name, gib in (("one", 8), ("two", 16), ("three", 32)):
        make_flavor(name, "a", memory_gib=gib)
    refresh()
    make_commitment("a")
    for flavor in Flavor.objects.all():
        hypervisor = "QEMU" if flavor.name in moving else "VMware"
        flavor.extra_specs = {
            "capabilities:hypervisor_type": hypervisor,
            "quota:hw_version": "b" if flavor.name in moving else "a",
        }
        flavor.save()
    assert refresh().retired == ("a",)
    groups = load_group_definitions(include_retired=True)
    known = [flavor.name for flavor in groups["a"].flavors]
    assert (known[0], known[-1]) == ("three", "one")
    assert {flavor.name for flavor in groups["a"].own_flavors} == {"one", "two", "three"} - {
        *moving
    }
    assert groups_of_flavors(groups.values()) == {
        name: "b" if name in moving else "a" for name in ("one", "two", "three")
    }
    Flavor.objects.update(
        extra_specs={"capabilities:hypervisor_type": "QEMU", "quota:hw_version": "a"}
    )
    refresh()
    assert members("a") == ["three", "two", "one"]
    assert load_group_definitions()["a"].lent == frozenset()


def test_rules_group_flavors_without_the_extra_spec() -> None:
    make_flavor("g_one")
    make_flavor("g_two", "declared")
    FlavorGroupRule.objects.create(group_name="general", flavor_pattern="g_*")
    refresh()
    assert (members("general"), members("declared")) == (["g_one"], ["g_two"])


def test_the_task_refreshes() -> None:
    make_flavor("one", "a")
    assert refresh_task() == {
        "created": 1,
        "updated": 0,
        "retired": 0,
        "removed": 0,
        "resized": 0,
        "has_changed": True,
    }
