"""VMs that are resized in place into another flavor group (spec commitments, 2.2, 9.3, 14)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.guard.oversubscription import check_oversubscription
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import (
    FlavorGroup,
    FlavorGroupMember,
    Reservation,
)
from commitments.models import CommitmentEvent, InstanceAssignment
from commitments.services.repair import repair_due_commitments
from commitments.services.usage import reconcile_project_usage
from hosts.models import Host, Instance
from journal.actors import task_actor
from scheduling.resources import GIB
from tests.commitments.slot_worlds import (
    PROJECT,
    SLOT_GIB,
    SLOT_VCPUS,
    VM_GIB,
    VM_VCPUS,
    accepted_slot,
    commitment_of,
    in_slot,
    put_into,
    verify,
    vm_on,
)
from tests.factories import make_commitment, make_flavor, make_group, make_host, make_slot
from tests.ledger import assert_rooms_add_up

from .world import CONFIRMED, EXPECTED, follows_changes

pytestmark = pytest.mark.django_db

MIB_PER_GIB = 1024
SIZE = (VM_GIB * MIB_PER_GIB, VM_VCPUS)


@pytest.fixture
def host_1() -> Host:
    """A host, and two groups with a flavor of the same size."""
    make_group("hana_1", flavors=[("half", *SIZE)])
    make_group("gp", flavors=[("other", *SIZE)])
    return make_host("host-1", memory_gib=960, vcpus=80)


def resize(vm: Instance, flavor: str, **fields: Any) -> None:
    """Let Nova list a VM with another flavor, as an import does."""
    Instance.objects.filter(pk=vm.pk).update(flavor_name=flavor, **fields)
    rebuild_host_capacity()


def slot_of_gp(host: Host) -> Reservation:
    """Make a slot of a commitment of the other group."""
    row = make_commitment(amount_gib=SLOT_GIB, project_id=PROJECT, group="gp")
    return make_slot(row, host, memory_gib=SLOT_GIB, vcpus=SLOT_VCPUS, index=0)


def confirmed_vm(host: Host) -> tuple[Reservation, Instance]:
    slot, vm = accepted_slot(host), vm_on(host, flavor_name="half")
    put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
    return slot, vm


def test_it_leaves_the_slot_which_is_whole_again(host_1: Host) -> None:
    slot, vm = confirmed_vm(host_1)
    resize(vm, "other")
    assert verify().events == {"other_group": 1}
    assert in_slot(slot) == []
    slot.refresh_from_db()
    assert slot.blocked_memory_bytes == SLOT_GIB * GIB
    assert slot.target_host_id == host_1.pk
    assert_rooms_add_up()
    told = CommitmentEvent.objects.latest("id")
    assert f"VM {vm.openstack_id} has a flavor of another group now" in told.reason
    assert verify().events == {}


@follows_changes
def test_the_change_is_followed_though_the_size_is_the_same(host_1: Host) -> None:
    slot, vm = confirmed_vm(host_1)
    verify()
    resize(vm, "other")
    assert verify(is_full=False).events == {"other_group": 1}
    assert in_slot(slot) == []
    assert verify(is_full=False).events == {}


def unknown_flavor(vm: Instance) -> None:
    resize(vm, "nobody-knows-this")


def retired_group(vm: Instance) -> None:
    """The flavors of the slot's group are grouped anew, while it is still referred to."""
    FlavorGroup.objects.filter(name="hana_1").update(is_retired=True)
    FlavorGroupMember.objects.filter(flavor__name="half").delete()


def unfinished(vm: Instance) -> None:
    resize(vm, "other", task_state="resize_finish")


def unconfirmed(vm: Instance) -> None:
    resize(vm, "other", status="VERIFY_RESIZE")


def larger_of_the_group(vm: Instance) -> None:
    whole = make_flavor("whole", *SIZE, group="hana_1")
    group = FlavorGroup.objects.get(name="hana_1")
    FlavorGroupMember.objects.create(group=group, flavor=whole, position=7)
    resize(vm, "whole")


@pytest.mark.parametrize(
    "change",
    [unknown_flavor, retired_group, unfinished, unconfirmed, larger_of_the_group],
    ids=lambda change: change.__name__,
)
def test_it_stays_unless_it_is_certain(host_1: Host, change: Callable[[Instance], None]) -> None:
    slot, vm = confirmed_vm(host_1)
    change(vm)
    assert verify().events == {}
    assert in_slot(slot) == [(vm.openstack_id, CONFIRMED, "host-1")]


def test_a_flavor_of_no_group_is_not_of_the_slots_group(host_1: Host) -> None:
    _, vm = confirmed_vm(host_1)
    make_flavor("loose", *SIZE)
    assert not FlavorGroupMember.objects.filter(flavor__name="loose").exists()
    resize(vm, "loose")
    assert verify().events == {"other_group": 1}


def test_it_enters_the_slot_of_its_new_group_when_the_resize_is_done(host_1: Host) -> None:
    """Booked by the scheduler for the resize, it is not there before its flavor says so."""
    old, vm = confirmed_vm(host_1)
    new = slot_of_gp(host_1)
    put_into(new, vm.openstack_id, minutes=1)
    assert verify().events == {}
    assert in_slot(new) == [(vm.openstack_id, EXPECTED, None)]
    resize(vm, "other")
    assert verify().events == {"confirmed": 1, "other_group": 1}
    assert in_slot(old) == []
    assert in_slot(new) == [(vm.openstack_id, CONFIRMED, "host-1")]
    assert_rooms_add_up()
    assert verify().events == {}


def test_a_resize_that_never_comes_frees_the_slot_it_was_booked_in(host_1: Host) -> None:
    old, vm = confirmed_vm(host_1)
    new = slot_of_gp(host_1)
    put_into(new, vm.openstack_id, minutes=30)
    assert verify().events == {"never_arrived": 1}
    assert in_slot(new) == []
    assert in_slot(old) == [(vm.openstack_id, CONFIRMED, "host-1")]


def test_the_promise_moves_when_the_host_cannot_keep_both(settings: Any, host_1: Host) -> None:
    """The VM keeps running; the guard takes the whole slot to a host with room."""
    oversubscription = settings.HEADROOM.oversubscription.model_copy(
        update={"grace_period_seconds": 0, "min_check_interval_seconds": 0}
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"oversubscription": oversubscription})
    tight = make_host("tight", memory_gib=SLOT_GIB, vcpus=SLOT_VCPUS)
    slot, vm = confirmed_vm(tight)
    resize(vm, "other")
    assert verify().events == {"other_group": 1}
    owner = commitment_of(slot)
    for _ in range(2):
        check_oversubscription(actor=task_actor("test"), request_id="guard", now=timezone.now())
    verify()
    repair_due_commitments(
        actor=task_actor("test"), request_id="repair", now=timezone.now() + timedelta(hours=1)
    )
    assert [one.target_host_id for one in owner.slots.all()] == [host_1.pk]
    assert Instance.objects.get(pk=vm.pk).host_id == tight.pk


def test_the_bill_follows_the_flavor(host_1: Host) -> None:
    """Spec 14: covered by a commitment of its new group, and by the old one no more."""
    slot, vm = confirmed_vm(host_1)
    new = slot_of_gp(host_1)
    for one in (slot, new):
        row = commitment_of(one)
        row.accepted_amount = row.requested_amount
        row.save()

    def bill() -> list[tuple[str, str]]:
        reconcile_project_usage(PROJECT, actor=task_actor("test"), request_id="r")
        covered = InstanceAssignment.objects.filter(resource_type="memory")
        return list(covered.values_list("vm_uuid", "commitment__flavor_group_name"))

    assert bill() == [(vm.openstack_id, "hana_1")]
    resize(vm, "other")
    assert bill() == [(vm.openstack_id, "gp")]
    assert commitment_of(slot).used_memory_bytes == 0
    make_flavor("loose", *SIZE)
    resize(vm, "loose")
    assert bill() == []
