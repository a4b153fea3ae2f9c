"""A zone's hosts, VMs, failover reservations and their users as columns (spec failover, 17.5).

One frozen snapshot serves the loop, the failure drill, the lower bounds and the question whether a
host may be drained. Indices refer to rows of the other columns, -1 means none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

Int64Column = NDArray[np.int64]
Int32Column = NDArray[np.int32]
BoolColumn = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostColumns:
    """Hosts of a zone; row ``i`` of every column is the same host.

    Attributes:
        ids: int64[H], database keys, ascending.
        racks: Building blocks, empty where a host has none.
        is_ready: bool[H], whether VMs may be placed there.
        effective_memory_bytes: int64[H], what may be promised.
        effective_vcpus: int64[H].
        used_memory_bytes: int64[H], what VMs take.
        used_vcpus: int64[H].
        held_memory_bytes: int64[H], blocked for commitments and VMs in flight; what slots of any
            kind and VMs in flight into them block both counts once.
        held_vcpus: int64[H].
        failover_memory_bytes: int64[H], blocked by failover reservations.
        failover_vcpus: int64[H].
    """

    ids: Int64Column
    names: tuple[str, ...]
    racks: tuple[str, ...]
    is_ready: BoolColumn
    effective_memory_bytes: Int64Column
    effective_vcpus: Int64Column
    used_memory_bytes: Int64Column
    used_vcpus: Int64Column
    held_memory_bytes: Int64Column
    held_vcpus: Int64Column
    failover_memory_bytes: Int64Column
    failover_vcpus: Int64Column

    def __len__(self) -> int:
        return len(self.names)

    def free_memory_bytes(self) -> Int64Column:
        """Return int64[H], what nothing takes or blocks; negative where too much is promised."""
        return (
            self.effective_memory_bytes
            - self.used_memory_bytes
            - self.held_memory_bytes
            - self.failover_memory_bytes
        )

    def free_vcpus(self) -> Int64Column:
        """Return int64[H], likewise."""
        return self.effective_vcpus - self.used_vcpus - self.held_vcpus - self.failover_vcpus

    def keeps_promises(self) -> BoolColumn:
        """Return bool[H], whether what is blocked on a host really is room.

        Source: spec failover, 17.2 ("Room").
        """
        is_sound = (self.free_memory_bytes() >= 0) & (self.free_vcpus() >= 0)
        return self.is_ready & is_sound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VMColumns:
    """VMs on hosts of a zone that need failover reservations or have some, ascending by uuid.

    Attributes:
        ids: int64[V], database keys of the rows, -1 for a VM that only a reservation knows.
        uuids: VM uuids.
        host: int32[V], row of the host it runs on now; -1 if it runs nowhere in this zone.
        memory_bytes: int64[V].
        vcpus: int64[V].
        asked_memory_bytes: int64[V], size of a reservation made for it; more than ``memory_bytes``
            where the flavor group decides.
        asked_vcpus: int64[V], likewise.
        label_code: int32[V], index into ``labels``.
        labels: (flavor, resource group) of a reservation made for a VM.
        required: int32[V], reservations it must have.
        is_owed: bool[V], whether missing ones are to be had now; false for stopped VMs.
        class_code: int32[V], index into ``classes``: VMs that may use the same hosts.
        classes: Compatibility class -> one key of what hosts depend on.
        is_listed: bool[V], whether the VM list has it now.
        is_seen: bool[V], whether some host says that it runs there.
    """

    ids: Int64Column
    uuids: tuple[str, ...]
    host: Int32Column
    memory_bytes: Int64Column
    vcpus: Int64Column
    asked_memory_bytes: Int64Column
    asked_vcpus: Int64Column
    label_code: Int32Column
    labels: tuple[tuple[str, str], ...]
    required: Int32Column
    is_owed: BoolColumn
    class_code: Int32Column
    classes: tuple[object, ...]
    is_listed: BoolColumn
    is_seen: BoolColumn

    def __len__(self) -> int:
        return len(self.uuids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotColumns:
    """Failover reservations of a zone.

    Attributes:
        ids: int64[R], keys of ``capacity.Reservation``, ascending.
        names: Names.
        host: int32[R], row of the host that holds it; -1 if that host is gone.
        memory_bytes: int64[R].
        vcpus: int64[R].
        is_usable: bool[R], whether it is active and ready: may be joined and counts as cover.
        is_consuming: bool[R], whether an evacuation is planned into it: it may not be deleted.
    """

    ids: Int64Column
    names: tuple[str, ...]
    host: Int32Column
    memory_bytes: Int64Column
    vcpus: Int64Column
    is_usable: BoolColumn
    is_consuming: BoolColumn

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemberColumns:
    """Users of reservations, one row for each VM in each.

    Attributes:
        ids: int64[A], keys of ``capacity.ReservationAllocation``, ascending: the order of joining.
        slot: int32[A], row of the reservation.
        vm: int32[A], row of the VM.
        joined_host: int32[A], row of the host the VM ran on when it joined; -1 if outside.
        is_validated: bool[A], whether the scheduler agreed since the last change.
    """

    ids: Int64Column
    slot: Int32Column
    vm: Int32Column
    joined_host: Int32Column
    is_validated: BoolColumn

    def __len__(self) -> int:
        return len(self.ids)


MEMBERS_SAID_GONE: Final = "members_said_gone"
"""Note: how many memberships are of VMs that the cloud itself said are gone, or has shelved."""
MEMBERS_ELSEWHERE: Final = "members_elsewhere"
"""Note: how many memberships are of VMs that the VM list has on hosts of other zones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ZoneSnapshot:
    """Everything that failover plans on in one zone. Arrays are not written.

    Attributes:
        hosts: Hosts of the zone.
        vms: VMs that need or have reservations.
        slots: Failover reservations.
        members: Who is in them.
        slots_held: int64[H], how many reservations hosts hold, if not all of them are here.
        notes: Facts about the reading, for people: skipped VMs by reason.
    """

    zone: str
    hosts: HostColumns
    vms: VMColumns
    slots: SlotColumns
    members: MemberColumns
    slots_held: Int64Column | None = None
    notes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def host_row(self) -> Mapping[str, int]:
        """Return host name -> row."""
        return {name: row for row, name in enumerate(self.hosts.names)}

    @cached_property
    def vm_row(self) -> Mapping[str, int]:
        """Return VM uuid -> row."""
        return {uuid: row for row, uuid in enumerate(self.vms.uuids)}

    @cached_property
    def members_of_slot(self) -> tuple[Int64Column, Int64Column]:
        """Return (starts int64[R + 1], rows int64[A]): rows of ``members`` by reservation."""
        return grouped(self.members.slot, len(self.slots))

    @cached_property
    def can_take(self) -> BoolColumn:
        """Return bool[A], whether the reservation could take the VM now, were it not for others.

        It may be given out and is large enough, and its host lives and keeps its promises.
        """
        vms, slots, slot, vm = self.vms, self.slots, self.members.slot, self.members.vm
        keeps = np.append(self.hosts.keeps_promises(), False)  # the last one: the host is gone
        is_open: BoolColumn = slots.is_usable & keeps[slots.host]
        return (
            is_open[slot]
            & (vms.memory_bytes[vm] <= slots.memory_bytes[slot])
            & (vms.vcpus[vm] <= slots.vcpus[slot])
        )

    @cached_property
    def cover(self) -> Int64Column:
        """Return int64[V], usable reservations that each VM has."""
        usable = self.slots.is_usable[self.members.slot]
        return np.bincount(self.members.vm[usable], minlength=len(self.vms)).astype(np.int64)


def grouped(codes: Int32Column | Int64Column, count: int) -> tuple[Int64Column, Int64Column]:
    """Return (starts, rows): rows of ``codes`` ordered by code, stable."""
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(codes, minlength=count), out=starts[1:])
    return starts, np.argsort(codes, kind="stable").astype(np.int64)
