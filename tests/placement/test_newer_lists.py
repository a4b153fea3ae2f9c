"""VM lists that are newer than claims, and contradict them (ADR 0029)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.conf import settings as django_settings
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from hosts.models import Host, Instance, Region
from placement.tasks import reconcile_hosts
from scheduling.resources import GIB
from tests.claims import assert_claims_are_the_ledger
from tests.commitments.slot_worlds import verify
from tests.examples import few
from tests.factories import (
    make_allocation,
    make_commitment,
    make_group,
    make_host,
    make_slot,
    make_vm,
)
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.placement.test_engines_agree import as_in_a_test_case

OWNER = "owner"
ASKED = {"VCPU": 2, "MEMORY_MB": 2048}
#: Flavors that are alike in all but their group.
GROUPS = {"general": "plain", "special": "alike"}


@pytest.fixture(autouse=True)
def _placement_is_the_source(settings: Any) -> None:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})


def list_vms(after_seconds: float) -> None:
    """Let the VM list be one whose reading began so long after now."""
    taken_at = (timezone.now() + timedelta(seconds=after_seconds)).isoformat()
    Region.objects.update_or_create(singleton=True, defaults={"taken_at": taken_at})


def grace() -> float:
    return float(django_settings.HEADROOM.slots.allocation_grace_seconds)


def claim(vm: str, host: Host) -> None:
    client = PlacementClient(X_Roles="admin,service")
    answer = client.allocate(vm, {host.openstack_id: ASKED}, project_id=OWNER)
    assert answer.status == 204, answer.content


def listed_vm(vm: str, host: Host | None, group: str = "general", **fields: Any) -> Instance:
    size: dict[str, Any] = {"memory_gib": 2, "vcpus": 2, "flavor_name": GROUPS[group]}
    made = make_vm(host=host, openstack_id=vm, project_id=OWNER, **size, **fields)
    rebuild_host_capacity()
    return made


def make_hosts(*gibs: int) -> list[Host]:
    hosts = [make_host(f"h{number}", memory_gib=gib, vcpus=gib) for number, gib in enumerate(gibs)]
    for group, flavor in GROUPS.items():
        make_group(group, flavors=[(flavor, 2048, 2)])
    return hosts


def hold(host: Host, group: str, gib: int = 2) -> Reservation:
    commitment = make_commitment(group=group, project_id=OWNER, amount_gib=gib)
    return make_slot(
        commitment, host, flavor_name=GROUPS[group], memory_gib=gib, vcpus=gib, index=0
    )


def begin() -> None:
    rebuild_host_capacity()
    reconcile_hosts()


def groups_of(vm: str) -> set[str]:
    """Return the groups of the slots that a VM is in."""
    rows = ReservationAllocation.objects.filter(vm_uuid=vm).select_related("reservation")
    return {row.reservation.flavor_group_name for row in rows}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("fields", "leaves"),
    [
        pytest.param({}, True, id="at rest on another host"),
        pytest.param({"task_state": "migrating"}, False, id="still on its way"),
        pytest.param({"status": "VERIFY_RESIZE"}, False, id="may still go back"),
        pytest.param({"status": "DELETED"}, True, id="deleted, as Nova says"),
        pytest.param(None, False, id="not listed, which says nothing"),
    ],
)
def test_a_list_that_must_know_of_a_claim_wins_and_an_older_one_does_not(
    fields: dict[str, str] | None, leaves: bool
) -> None:
    here, there = make_hosts(4, 4)
    slot, vm = hold(here, "general"), uuid()
    begin()
    claim(vm, here)
    if fields is not None:
        listed_vm(vm, there, **fields)
    for after_seconds in (-3600, grace() - 60):
        list_vms(after_seconds)
        verify(60, believes_list=True)
        assert groups_of(vm) == {"general"}
        assert_claims_are_the_ledger()
    list_vms(grace() + 60)
    verify(60, believes_list=True)
    assert groups_of(vm) == (set() if leaves else {"general"})
    slot.refresh_from_db()
    assert slot.target_host == here
    assert slot.blocked_memory_bytes == (2 * GIB if leaves else 0)
    assert_claims_are_the_ledger()


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_is_newer_than_the_list_comes_back() -> None:
    here, there = make_hosts(4, 4)
    hold(here, "general")
    begin()
    vm, client = uuid(), PlacementClient(X_Roles="admin,service")
    claim(vm, here)
    listed_vm(vm, there)
    list_vms(grace() + 60)
    verify()
    assert groups_of(vm) == set()
    again = client.allocate(
        vm, {here.openstack_id: ASKED}, project_id=OWNER, generation=1, version="1.28"
    )
    assert again.status == 204
    assert groups_of(vm) == {"general"}
    list_vms(grace() - 60)
    verify(60, believes_list=True)
    assert groups_of(vm) == {"general"}
    assert_claims_are_the_ledger()


@pytest.mark.django_db(transaction=True)
def test_an_awaited_vm_that_holds_nothing_is_not_there_though_a_list_has_it() -> None:
    """It was there before: what its slot holds for it stays held until it comes."""
    (host,) = make_hosts(2)
    slot, vm = hold(host, "general"), uuid()
    make_allocation(slot, listed_vm(vm, host), state="expected")
    list_vms(-3600)
    begin()
    verify(1, believes_list=True)
    (row,) = ReservationAllocation.objects.filter(vm_uuid=vm)
    slot.refresh_from_db()
    assert (row.state, slot.blocked_memory_bytes) == ("expected", 2 * GIB)
    assert_claims_are_the_ledger()
    claim(vm, host)
    row.refresh_from_db()
    assert row.state == "confirmed"
    assert_claims_are_the_ledger()


@pytest.mark.django_db(transaction=True)
def test_a_vm_comes_into_a_slot_with_what_it_holds_not_with_what_an_old_list_says() -> None:
    (host,) = make_hosts(6)
    begin()
    vm = uuid()
    claim(vm, host)
    make_vm(
        host=host,
        openstack_id=vm,
        project_id=OWNER,
        flavor_name="plain",
        memory_gib=4,
        vcpus=4,
        nova_created_at=timezone.now() + timedelta(minutes=1),
    )
    list_vms(-3600)
    slot = hold(host, "general", gib=4)
    begin()
    assert verify().events == {"adopted": 1}
    slot.refresh_from_db()
    assert slot.blocked_memory_bytes == 2 * GIB
    assert_claims_are_the_ledger()


@pytest.mark.django_db(transaction=True)
def test_an_evacuated_vm_keeps_its_slots_on_both_hosts_that_it_holds() -> None:
    dead, target = make_hosts(4, 4)
    hold(dead, "general")
    hold(target, "general")
    begin()
    vm, client = uuid(), PlacementClient(X_Roles="admin,service")
    claim(vm, dead)
    Host.objects.filter(pk=dead.pk).update(state="down")
    both = {dead.openstack_id: ASKED, target.openstack_id: ASKED}
    assert client.allocate(vm, both, project_id=OWNER, generation=1).status == 204
    listed_vm(vm, target)
    list_vms(grace() + 60)
    verify()
    rows = ReservationAllocation.objects.filter(vm_uuid=vm)
    assert {row.confirmed_host_id for row in rows} == {dead.pk, target.pk}
    assert_claims_are_the_ledger()


@pytest.mark.django_db(transaction=True)
def test_a_vm_goes_to_a_slot_of_its_own_group_when_the_list_tells_its_flavor() -> None:
    """A host of 4 GiB, all held: the slots change places, and not a byte is asked for."""
    (host,) = make_hosts(4)
    slots = {group: hold(host, group) for group in GROUPS}
    begin()
    vm = uuid()
    claim(vm, host)
    (joined,) = groups_of(vm)
    (other,) = set(GROUPS) - {joined}
    listed_vm(vm, host, other)
    list_vms(-60)
    verify(60)
    assert groups_of(vm) == {joined}
    list_vms(grace() + 60)
    report = verify()
    assert report.events == {"misgrouped": 1}
    assert groups_of(vm) == {other}
    for slot in slots.values():
        slot.refresh_from_db()
    assert (slots[joined].blocked_memory_bytes, slots[other].blocked_memory_bytes) == (2 * GIB, 0)
    assert_claims_are_the_ledger()
    assert verify().events == {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("free_gib", "leaves"), [(0, False), (1, False), (2, True)])
def test_a_vm_without_a_slot_of_its_group_leaves_where_there_is_room(
    free_gib: int, leaves: bool
) -> None:
    (host,) = make_hosts(2 + free_gib)
    hold(host, "general")
    begin()
    vm = uuid()
    claim(vm, host)
    listed_vm(vm, host, "special")
    list_vms(grace() + 60)
    verify()
    assert groups_of(vm) == (set() if leaves else {"general"})
    assert_claims_are_the_ledger()


class Slot(NamedTuple):
    """A slot on the host."""

    group: str
    gib: int


slots = st.builds(Slot, st.sampled_from(sorted(GROUPS)), st.integers(1, 4))


@few(20, suppress_health_check=list(HealthCheck))
@given(
    world=st.lists(slots, min_size=1, max_size=4),
    free_gib=st.integers(0, 3),
    true_groups=st.lists(st.sampled_from(sorted(GROUPS)), min_size=1, max_size=3),
)
@pytest.mark.django_db
def test_vms_are_in_slots_of_their_groups_as_far_as_the_room_goes(
    world: list[Slot], free_gib: int, true_groups: list[str]
) -> None:
    with as_in_a_test_case():
        (host,) = make_hosts(sum(slot.gib for slot in world) + free_gib)
        for slot in world:
            hold(host, slot.group, slot.gib)
        begin()
        vms: dict[str, str] = {}
        client = PlacementClient(X_Roles="admin,service")
        for group in true_groups:
            vm = uuid()
            answer = client.allocate(vm, {host.openstack_id: ASKED}, project_id=OWNER)
            if answer.status == 204:
                vms[vm] = group
                listed_vm(vm, host, group)
        list_vms(grace() + 60)
        for _ in vms:  # one may make room for the next
            verify()
            assert_claims_are_the_ledger()
        for vm, group in vms.items():
            assert groups_of(vm) <= {group} or host_lacks_room_for(vm, group, host)


def host_lacks_room_for(vm: str, group: str, host: Host) -> bool:
    """Whether more would be held than there is if a VM went to slots of its group; by counting."""
    used: defaultdict[int, int] = defaultdict(int)
    sizes = {}
    for slot in Reservation.objects.filter(kind="committed", target_host=host):
        sizes[slot.pk] = (slot.flavor_group_name, slot.memory_bytes)
    for row in ReservationAllocation.objects.filter(reservation__in=sizes):
        used[row.reservation_id] += row.memory_bytes
    before = sum(max(0, size - used[key]) for key, (_, size) in sizes.items())
    left = 0
    for row in ReservationAllocation.objects.filter(vm_uuid=vm):
        used[row.reservation_id] -= row.memory_bytes
        left += row.memory_bytes
    for key, spare in own_room(sizes, used, group):
        part = min(left, spare)
        used[key] += part
        left -= part
    after = sum(max(0, size - used[key]) for key, (_, size) in sizes.items())
    room = HostCapacity.objects.get(host=host)
    taken = room.allocated_memory_bytes + room.committed_memory_bytes
    return taken + after - before > room.effective_memory_bytes


def own_room(
    sizes: dict[int, tuple[str, int]], used: dict[int, int], group: str
) -> Iterator[tuple[int, int]]:
    for key, (name, size) in sizes.items():
        if name == group and size > used[key]:
            yield key, size - used[key]
