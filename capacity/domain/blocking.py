"""What a reservation still takes from its host (spec commitments, 10.1-10.3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduling.resources import ZERO, ResourceVector

Int64Column = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]


def blocked_resources(
    *, slot: ResourceVector, confirmed: ResourceVector, expected: ResourceVector
) -> ResourceVector:
    """Return what a reservation blocks beyond its VMs, per component.

    ``max(max(0, slot - confirmed), expected)``: a VM that outgrew its slot never yields a negative
    block.

    Args:
        slot: Size of the reservation.
        confirmed: Sum over VMs seen on the host; the host's allocation has them already.
        expected: Sum over VMs placed, not yet seen and not held by an in-flight reservation.

    Source: spec commitments, 10.1.
    """
    return (slot - confirmed).clamped().maximum(expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationView:
    """A VM in a reservation.

    Attributes:
        vm_uuid: The VM.
        resources: What it takes.
        is_confirmed: Whether it was seen there; otherwise it is only expected.
    """

    vm_uuid: str
    resources: ResourceVector
    is_confirmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationView:
    """A reservation as far as its block depends on it.

    Attributes:
        reservation_id: Its key.
        slot: Its size.
        is_committed: Whether it is a slot of a commitment; only those count their VMs.
        target_host: Host it shall be on, None if evicted or unplaced.
        host: Host it is on, None if not seen yet.
        allocations: VMs in it.
    """

    reservation_id: int
    slot: ResourceVector
    is_committed: bool = True
    target_host: str | None = None
    host: str | None = None
    allocations: tuple[AllocationView, ...] = ()

    @property
    def is_moving(self) -> bool:
        """Whether it is on its way: target and actual host differ. Then it blocks both."""
        return self.target_host != self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """What a host has.

    Attributes:
        name: Its name.
        allocation: Sum over the VMs that run on it.
        effective: Capacity with overcommit, None if unknown.
        capacity: Physical capacity, used when ``effective`` is unknown; None if unknown.
    """

    name: str
    allocation: ResourceVector = ZERO
    effective: ResourceVector | None = None
    capacity: ResourceVector | None = None

    @property
    def usable(self) -> ResourceVector | None:
        """Effective capacity, else capacity, else None."""
        return self.effective if self.effective is not None else self.capacity


def unused_reservation_capacity(
    reservation: ReservationView,
    *,
    in_flight_vm_uuids: Collection[str] = frozenset(),
    ignore_allocations: bool = False,
) -> ResourceVector:
    """Return what a reservation blocks on each of its hosts.

    Expected VMs that an in-flight reservation holds on that host are not counted, since that row
    blocks them already. While a slot moves, its VMs may be on either host and it blocks its full
    size on both.

    Args:
        reservation: The reservation.
        in_flight_vm_uuids: VMs with an in-flight reservation on the host.
        ignore_allocations: Take the slot as if no VM were in it.

    Source: spec commitments, 10.1.
    """
    if not reservation.is_committed or ignore_allocations:
        return reservation.slot
    confirmed = expected = ZERO
    for allocation in reservation.allocations:
        if allocation.is_confirmed:
            confirmed += allocation.resources
        elif allocation.vm_uuid not in in_flight_vm_uuids:
            expected += allocation.resources
    if reservation.is_moving:
        return reservation.slot.maximum(expected)
    return blocked_resources(slot=reservation.slot, confirmed=confirmed, expected=expected)


def host_free_capacity(
    host: HostView,
    reservations: Iterable[ReservationView],
    *,
    in_flight_vm_uuids: Collection[str] = frozenset(),
) -> ResourceVector | None:
    """Return what a host has left after its VMs and the reservations on it.

    Reservations without a target host are passed over: they were evicted and hold nothing.

    Args:
        host: The host.
        reservations: Any reservations, also of other hosts.
        in_flight_vm_uuids: VMs with an in-flight reservation on the host.

    Returns:
        What is left, negative where the host is over-subscribed; None without capacity data.

    Source: spec commitments, 10.2.
    """
    placed = [one for one in reservations if one.target_host is not None]
    return _free(host, placed, in_flight_vm_uuids)


def host_has_capacity_for(
    slot: ReservationView,
    host: HostView,
    reservations: Iterable[ReservationView],
    *,
    in_flight_vm_uuids: Collection[str] = frozenset(),
) -> bool:
    """Return whether a slot can move to a host.

    Unlike for free capacity, a reservation without target that still sits on the host counts, and
    the slot itself does not.

    Args:
        slot: The slot that would move.
        host: Where to.
        reservations: Any reservations, also of other hosts; may contain the slot itself.
        in_flight_vm_uuids: VMs with an in-flight reservation on the host.

    Source: spec commitments, 10.3.
    """
    others = [one for one in reservations if one.reservation_id != slot.reservation_id]
    free = _free(host, others, in_flight_vm_uuids)
    block = unused_reservation_capacity(slot, in_flight_vm_uuids=in_flight_vm_uuids)
    return free is not None and block.fits_into(free)


def blocked_columns(
    *,
    slot: Int64Column,
    confirmed: Int64Column,
    expected: Int64Column,
    counts_vms: BoolColumn,
    is_moving: BoolColumn,
) -> Int64Column:
    """Return what many reservations block of one resource; equals ``unused_reservation_capacity``.

    Args:
        slot: int64[N], sizes in bytes or vCPUs.
        confirmed: int64[N], sums over VMs seen, same unit.
        expected: int64[N], sums over VMs not seen and not held in flight, same unit.
        counts_vms: bool[N], whether VMs count at all (committed slots).
        is_moving: bool[N], whether target and actual host differ.

    Returns:
        int64[N], what each blocks on each of its hosts, same unit.

    Source: spec commitments, 10.1.
    """
    remaining = np.maximum(slot - np.where(is_moving, 0, confirmed), 0)
    blocked: Int64Column = np.where(counts_vms, np.maximum(remaining, expected), slot)
    return blocked


def _free(
    host: HostView, reservations: Iterable[ReservationView], in_flight_vm_uuids: Collection[str]
) -> ResourceVector | None:
    if host.usable is None:
        return None
    free = host.usable - host.allocation
    for one in reservations:
        if host.name in {one.target_host, one.host}:
            free -= unused_reservation_capacity(one, in_flight_vm_uuids=in_flight_vm_uuids)
    return free
