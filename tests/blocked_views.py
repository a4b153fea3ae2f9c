"""A reservation with its VMs, and what it blocks by the rule that plans use (commitments, 10.1)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from capacity.ledger.blocking import blocked_resources
from scheduling.resources import ZERO, ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationView:
    """A VM in a reservation: seen there, or only expected."""

    vm_uuid: str
    resources: ResourceVector
    is_confirmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationView:
    """A reservation as far as its block depends on it; only committed ones count their VMs."""

    reservation_id: int
    slot: ResourceVector
    is_committed: bool = True
    target_host: str | None = None
    host: str | None = None
    allocations: tuple[AllocationView, ...] = ()


def unused_reservation_capacity(
    reservation: ReservationView, *, in_flight_vm_uuids: Collection[str] = frozenset()
) -> ResourceVector:
    """Return what a reservation blocks on each of its hosts.

    Expected VMs that an in-flight reservation holds on that host are not counted.
    """
    if not reservation.is_committed:
        return reservation.slot
    confirmed = expected = ZERO
    for allocation in reservation.allocations:
        if allocation.is_confirmed:
            confirmed += allocation.resources
        elif allocation.vm_uuid not in in_flight_vm_uuids:
            expected += allocation.resources
    return blocked_resources(
        slot=reservation.slot,
        confirmed=confirmed,
        expected=expected,
        is_moving=reservation.target_host != reservation.host,
    )
