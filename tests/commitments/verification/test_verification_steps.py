"""Steps of the slot reconciler by what a slot says and lists (spec commitments, 9.1, 9.2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.models import Reservation
from commitments.models import Commitment
from commitments.services.repair import RepairReport, repair_due_commitments
from commitments.services.verification import VerificationReport
from hosts.models import Host
from journal.actors import task_actor
from tests.commitments.slot_worlds import (
    VM_GIB,
    accepted_slot,
    commitment_of,
    in_slot,
    put_into,
    verify,
    vm_on,
)
from tests.ledger import assert_rooms_add_up, fingerprint

pytestmark = pytest.mark.django_db


def state(slot: Reservation) -> tuple[Any, ...]:
    slot.refresh_from_db()
    target, host = slot.target_host, slot.confirmed_host
    return (
        slot.is_ready,
        slot.ready_reason,
        target.name if target else None,
        host.name if host else None,
    )


def test_ready_slot_without_vms_rests(host_1: Host) -> None:
    """First row of the table: Ready, host-1 on both sides, no allocations."""
    slot = accepted_slot(host_1)
    verify()
    before = fingerprint("capacity_reservation")
    assert verify(5) == VerificationReport()
    assert fingerprint("capacity_reservation") == before
    assert state(slot) == (True, "ReservationActive", "host-1", "host-1")


@pytest.mark.parametrize(
    ("has_vm", "was_ready", "reason"),
    [
        pytest.param(True, False, "PreAllocated", id="step 5: made for its VMs"),
        pytest.param(False, False, "ReservationActive", id="step 6: put there"),
        pytest.param(True, True, "ReservationActive", id="step 6: sent there with its VMs"),
    ],
)
def test_slot_with_a_target_is_there(
    host_1: Host, reason: str, *, has_vm: bool, was_ready: bool
) -> None:
    slot = accepted_slot(host_1)
    row = commitment_of(slot)
    Commitment.objects.filter(pk=row.pk).update(generation=3)
    if has_vm:
        put_into(slot, vm_on(host_1).openstack_id, minutes=1)
    Reservation.objects.filter(pk=slot.pk).update(
        confirmed_host=None,
        is_ready=was_ready,
        ready_reason="ReservationActive" if was_ready else "",
        parent_generation=3,
        observed_parent_generation=1,
    )
    verify()
    assert state(slot) == (True, reason, "host-1", "host-1")
    assert slot.observed_parent_generation == 3
    assert_rooms_add_up()


def test_slot_whose_host_was_taken_away_is_cleared_then_placed(
    host_1: Host, host_new: Host
) -> None:
    """Last row of the table: the run after the revocation asks the scheduler."""
    slot = accepted_slot(host_1)
    put_into(slot, vm_on(host_1).openstack_id, minutes=30, is_confirmed=True)
    Reservation.objects.filter(pk=slot.pk).update(
        target_host=None, parent_generation=1, observed_parent_generation=0
    )
    verify()
    assert state(slot) == (False, "PlacementRevoked", None, None)
    assert slot.observed_parent_generation == 1
    assert in_slot(slot) == []
    run = repair_due_commitments(
        actor=task_actor("t"), request_id="r", now=timezone.now() + timedelta(minutes=1)
    )
    assert run == RepairReport(accepted=1)
    ready, reason, target, host = state(slot)
    assert (ready, reason) == (True, "ReservationActive")
    assert target == host in {"host-1", "host-new"}
    assert_rooms_add_up()


def test_slot_smaller_than_its_vm_blocks_nothing(host_1: Host) -> None:
    slot = accepted_slot(host_1, gib=VM_GIB // 2, vcpus=10)
    put_into(slot, vm_on(host_1).openstack_id, minutes=30)
    verify()
    slot.refresh_from_db()
    assert (slot.blocked_memory_bytes, slot.blocked_vcpus) == (0, 0)
    assert_rooms_add_up()
