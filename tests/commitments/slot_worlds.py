"""Short builders for slots, the VMs in them, and looks at both."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import AllocationState, Reservation, ReservationAllocation
from commitments.models import Commitment
from commitments.services.verification import VerificationReport, verify_slots
from hosts.models import Host, Instance
from journal.actors import task_actor
from tests.factories import make_commitment, make_slot, make_vm

SLOT_GIB, SLOT_VCPUS, VM_GIB, VM_VCPUS = 480, 40, 240, 20
PROJECT = "alpha"


def verify(minutes: float = 0, **options: Any) -> VerificationReport:
    """Look at every slot, some minutes from now, unless told otherwise."""
    options.setdefault("is_full", True)
    return verify_slots(
        actor=task_actor("test"),
        request_id="verify-1",
        now=timezone.now() + timedelta(minutes=minutes),
        **options,
    )


def accepted_slot(
    host: Host | None, *, gib: int = SLOT_GIB, vcpus: int = SLOT_VCPUS
) -> Reservation:
    """Make a slot of a commitment of its own, accepted, on a host."""
    row = make_commitment(amount_gib=gib, project_id=PROJECT)
    return make_slot(row, host, memory_gib=gib, vcpus=vcpus, index=0)


def vm_on(host: Host | None, **fields: Any) -> Instance:
    """Make a VM of the project that is older than every slot, so that no slot adopts it."""
    fields.setdefault("nova_created_at", timezone.now() - timedelta(days=30))
    size = {"memory_gib": VM_GIB, "vcpus": VM_VCPUS, "project_id": PROJECT}
    return make_vm(host=host, **{**size, **fields})


def put_into(
    slot: Reservation, vm_uuid: str, *, minutes: int, is_confirmed: bool = False
) -> ReservationAllocation:
    """Place a VM in a slot some minutes ago, and count what that blocks."""
    since = timezone.now() - timedelta(minutes=minutes)
    row = ReservationAllocation.objects.create(
        reservation=slot,
        vm_uuid=vm_uuid,
        state=AllocationState.CONFIRMED if is_confirmed else AllocationState.EXPECTED,
        memory_bytes=VM_GIB << 30,
        vcpus=VM_VCPUS,
        since=since,
        confirmed_host=slot.target_host if is_confirmed else None,
        confirmed_at=since if is_confirmed else None,
    )
    rebuild_host_capacity()
    return row


def move(vm: Instance, host: Host | None) -> None:
    """Let a VM be listed elsewhere, as an import does."""
    Instance.objects.filter(pk=vm.pk).update(host=host)
    rebuild_host_capacity()


def delete(*vms: Instance) -> None:
    """Let VMs be listed no more."""
    Instance.objects.filter(pk__in=[vm.pk for vm in vms]).delete()
    rebuild_host_capacity()


def in_slot(slot: Reservation) -> list[tuple[str, str, str | None]]:
    """Return the VMs of a slot: uuid, state, host."""
    rows = ReservationAllocation.objects.filter(reservation=slot).order_by("vm_uuid")
    return list(rows.values_list("vm_uuid", "state", "confirmed_host__name"))


def commitment_of(slot: Reservation) -> Commitment:
    """Return the commitment of a slot as it is stored now."""
    return Commitment.objects.get(slots=slot)
