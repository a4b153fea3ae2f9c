"""What a request may use of each host (spec scheduling, 7.11 steps A and B; commitments 10.4).

Everything that blocks is summed in columns of the table. What a request gets back is a handful of
reservations: its project's committed slots, at most the request's own size from each (product,
15.18), less what other VMs of the project and group in flight take of them, and never the room of
other VMs that are still expected in them (15.17); failover slots of an evacuating VM, and what
those of others and the VMs in flight into them block both; its own in-flight blocks (16.3).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from scheduling.columns import Int64Column
from scheduling.intents import Intent
from scheduling.request import PlacementRequest
from scheduling.reservations import KIND_COMMITTED, KIND_FAILOVER, KIND_IN_FLIGHT
from scheduling.resources import ZERO, ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import ReservationRow

Rows: TypeAlias = slice | Int64Column

_NOBODY: Mapping[str, tuple[int, ...]] = MappingProxyType({})
_FAILOVER_INTENTS = frozenset({Intent.EVACUATE, Intent.REUSE_FAILOVER_RESERVATION})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreeColumns:
    """What a request may use of each host, negative where a host is over-used.

    Attributes:
        memory_bytes: int64, one figure for each of ``rows``.
        vcpus: int64, likewise.
        rows: The rows of the table that the figures (and a mask made from them) are about.
        placed: VM uuid -> rows, for VMs that the same batch has placed before.
        others: int64[.., 3], what is left of network, disk I/O and GPUs; only for requests that
            need some.
    """

    memory_bytes: Int64Column
    vcpus: Int64Column
    rows: Rows = field(default_factory=lambda: slice(None))
    placed: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _NOBODY)
    others: Int64Column | None = None

    def at(self, rows: Rows) -> FreeColumns:
        """Return the figures of some rows of the table; only for columns of the whole table."""
        return FreeColumns(
            memory_bytes=self.memory_bytes[rows],
            vcpus=self.vcpus[rows],
            rows=rows,
            placed=self.placed,
            others=None if self.others is None else self.others[rows],
        )


class BlockColumns(NamedTuple):
    """Reservations as columns, one entry for each host that one of them blocks.

    Attributes:
        rows: int64[K], rows of the hosts.
        memory_bytes: int64[K], what may be released.
        vcpus: int64[K], likewise.
    """

    rows: Int64Column
    memory_bytes: Int64Column
    vcpus: Int64Column


def free_columns(table: HostTable, request: PlacementRequest) -> FreeColumns:
    """Return what every host has free for a request.

    Effective capacity minus allocation (unless hosts are assumed empty) minus the blocks of all
    kinds that the request does not ignore, plus what is released to it. Not clamped. The arrays
    are fresh and may be written.

    Source: spec scheduling, 7.11 steps A and B.
    """
    memory_bytes = table.eff_memory_bytes.copy()
    vcpus = table.eff_vcpus.copy()
    if not request.assume_empty_hosts:
        memory_bytes -= table.alloc_memory_bytes
        vcpus -= table.alloc_vcpus
    blocks = (
        (KIND_COMMITTED, table.committed_memory_bytes, table.committed_vcpus),
        (KIND_FAILOVER, table.failover_memory_bytes, table.failover_vcpus),
        (KIND_IN_FLIGHT, table.in_flight_memory_bytes, table.in_flight_vcpus),
    )
    for kind, blocked_memory_bytes, blocked_vcpus in blocks:
        if kind not in request.ignored_kinds:
            memory_bytes -= blocked_memory_bytes
            vcpus -= blocked_vcpus
    others = table.others_left.copy() if any(request.needs) else None
    free = FreeColumns(memory_bytes=memory_bytes, vcpus=vcpus, others=others)
    if request.assume_empty_hosts and KIND_COMMITTED not in request.ignored_kinds:
        _add(free, _hidden_by_vms(table), sign=-1)
    for released in _released(table, request):
        _add(free, released)
    return free


def free_key(table: HostTable, request: PlacementRequest) -> Hashable:
    """Return what the free columns of a request depend on besides the table.

    Requests of a batch with the same key share their columns.
    """
    if not table.reservations.by_id:
        return (request.ignored_kinds, request.assume_empty_hosts, any(request.needs))
    vm_key = request.request_key if _depends_on_vm(table, request) else None
    project_key = None
    if _releases_slots(request) and _own_slots(table, request):
        project_key = (request.project_id, request.commitment_group, request.asked)
        if request.request_key in table.reservations.slots_expecting:
            vm_key = request.request_key
    uses_failover = request.intent in _FAILOVER_INTENTS and table.reservations.failover
    return (
        request.ignored_kinds,
        request.assume_empty_hosts,
        vm_key,
        project_key,
        request.intent if uses_failover else None,
        any(request.needs),
    )


def _slot_columns(
    table: HostTable, reservations: Iterable[ReservationRow], measure: str, *, vm_uuid: str = ""
) -> BlockColumns:
    rows: list[int] = []
    amounts: list[tuple[int, int]] = []
    for reservation in reservations:
        amount = _measured(reservation, measure, vm_uuid)
        for host in reservation.hosts():
            if host in table.row_of:
                rows.append(table.row_of[host])
                amounts.append((amount.memory_bytes, amount.vcpus))
    pairs = np.array(amounts, dtype=np.int64).reshape(-1, 2)
    return BlockColumns(
        rows=np.array(rows, dtype=np.int64), memory_bytes=pairs[:, 0], vcpus=pairs[:, 1]
    )


def _measured(reservation: ReservationRow, measure: str, vm_uuid: str) -> ResourceVector:
    if measure == "blocked":
        return reservation.blocked
    if measure == "hidden":
        return reservation.full - reservation.blocked
    base = reservation.blocked if measure == "releasable" else reservation.full
    kept = reservation.expected_only
    if kept is ZERO:  # as in nearly every slot
        return base
    if vm_uuid:
        kept -= sum((size for uuid, size in reservation.expected_vms if uuid == vm_uuid), ZERO)
    return (base - kept).clamped()


def _cached_columns(
    table: HostTable,
    cache_key: Hashable,
    reservations: Sequence[ReservationRow],
    measure: str,
    is_wanted: Callable[[ReservationRow], bool],
) -> BlockColumns:
    """Return some reservations as columns, cached in the table as long as they stay the same.

    Args:
        table: Hosts; reservations on hosts that it does not have are left out.
        cache_key: Name of the question; at most one answer is kept for each.
        reservations: A tuple of the table's reservation index.
        measure: ``blocked``; ``releasable`` for what a committed slot gives back,
            ``releasable_full`` for the same on empty hosts; ``hidden`` for what its VMs take.
        is_wanted: Which of the reservations.
    """
    cached = table.slot_cache.get(cache_key)
    if cached is None or cached[0] is not reservations:
        wanted = (one for one in reservations if is_wanted(one))
        cached = (reservations, _slot_columns(table, wanted, measure))
        table.slot_cache[cache_key] = cached
    columns: BlockColumns = cached[1]
    return columns


def _hidden_by_vms(table: HostTable) -> BlockColumns:
    """Return what committed slots block more on empty hosts; negative where VMs outgrew them."""
    slots = table.reservations.all_committed
    return _cached_columns(table, "hidden", slots, "hidden", _is_any)


def _is_any(_slot: ReservationRow) -> bool:
    return True


def _is_ready(slot: ReservationRow) -> bool:
    return slot.is_ready


def _releases_slots(request: PlacementRequest) -> bool:
    return bool(
        not request.lock_reservations
        and request.intent is not Intent.RESERVE_FOR_COMMITTED_RESOURCE
        and KIND_COMMITTED not in request.ignored_kinds
        and request.project_id
        and request.commitment_group
    )


def _own_slots(table: HostTable, request: PlacementRequest) -> tuple[ReservationRow, ...]:
    key = (request.project_id, request.commitment_group)
    return table.reservations.committed.get(key, ())


def _depends_on_vm(table: HostTable, request: PlacementRequest) -> bool:
    side = table.reservations
    return request.request_key in side.in_flight_of_vm or (
        request.intent is Intent.EVACUATE and request.request_key in side.failover_of_vm
    )


def _released(table: HostTable, request: PlacementRequest) -> Iterable[BlockColumns]:
    if _releases_slots(request):
        yield from _released_committed(table, request)
    if KIND_FAILOVER not in request.ignored_kinds:
        yield from _released_failover(table, request)
    own_in_flight = table.reservations.in_flight_of_vm.get(request.request_key)
    if own_in_flight and KIND_IN_FLIGHT not in request.ignored_kinds:
        yield _slot_columns(table, _once(own_in_flight), "blocked")


def _released_committed(table: HostTable, request: PlacementRequest) -> Iterable[BlockColumns]:
    measure = "releasable_full" if request.assume_empty_hosts else "releasable"
    key = (measure, request.project_id, request.commitment_group)
    slots = _own_slots(table, request)
    if not slots:
        return
    vm_uuid = request.request_key
    if vm_uuid in table.reservations.slots_expecting:
        columns = _slot_columns(table, filter(_is_ready, slots), measure, vm_uuid=vm_uuid)
    else:
        columns = _cached_columns(table, key, slots, measure, _is_ready)
    given = BlockColumns(
        rows=columns.rows,
        memory_bytes=np.minimum(columns.memory_bytes, request.asked.memory_bytes),
        vcpus=np.minimum(columns.vcpus, request.asked.vcpus),
    )
    flying = _flying_into_slots(table, request)
    yield given if flying is None else _beside_vms_in_flight(columns, given, flying)


def _once(in_flight: Iterable[ReservationRow]) -> Iterable[ReservationRow]:
    """Return in-flight blocks, of those of one placement on one host only one (16.3)."""
    return {
        (row.placement_id or row.reservation_id, row.hosts()): row for row in in_flight
    }.values()


def _flying_into_slots(table: HostTable, request: PlacementRequest) -> BlockColumns | None:
    """Return what other VMs of the project and group in flight block; None if there are none."""
    if KIND_IN_FLIGHT in request.ignored_kinds:
        return None
    key = (request.project_id, request.commitment_group)
    others = [
        row
        for row in table.reservations.in_flight.get(key, ())
        if request.request_key not in row.vm_uuids
    ]
    return _slot_columns(table, _once(others), "blocked") if others else None


def _beside_vms_in_flight(
    slots: BlockColumns, given: BlockColumns, flying: BlockColumns
) -> BlockColumns:
    """Return what a host's slots give to a VM when others are on their way into them.

    What slots and these VMs block together is blocked once only, and is taken from what the slots
    give: ``shared + min(given, slots - shared)`` with ``shared = min(slots, flying)``, per host.

    Args:
        slots: What the slots release altogether.
        given: What each of them may release to the VM.
        flying: What the other VMs block.

    Source: spec scheduling, 15.18, 16.3.
    """
    rows: Int64Column
    rows, place = np.unique(slots.rows, return_inverse=True)
    flying_place = np.searchsorted(rows, flying.rows)
    is_here = flying_place < len(rows)
    is_here[is_here] = rows[flying_place[is_here]] == flying.rows[is_here]

    def per_host(slot: Int64Column, share: Int64Column, flight: Int64Column) -> Int64Column:
        sums: Int64Column = np.zeros((3, len(rows)), dtype=np.int64)
        np.add.at(sums[0], place, slot)
        np.add.at(sums[1], place, share)
        np.add.at(sums[2], flying_place[is_here], flight[is_here])
        shared = np.minimum(sums[0], sums[2])
        released: Int64Column = shared + np.minimum(sums[1], sums[0] - shared)
        return released

    return BlockColumns(
        rows=rows,
        memory_bytes=per_host(slots.memory_bytes, given.memory_bytes, flying.memory_bytes),
        vcpus=per_host(slots.vcpus, given.vcpus, flying.vcpus),
    )


def _released_failover(table: HostTable, request: PlacementRequest) -> Iterable[BlockColumns]:
    if request.intent is Intent.EVACUATE:
        own = table.reservations.failover_of_vm.get(request.request_key, ())
        yield _slot_columns(table, (slot for slot in own if slot.is_ready), "blocked")
        if KIND_IN_FLIGHT not in request.ignored_kinds:
            yield _filled_by_others(table, request)
    elif request.intent is Intent.REUSE_FAILOVER_RESERVATION:
        every = table.reservations.failover
        yield _cached_columns(table, "ready failover", every, "blocked", _is_ready)


def _filled_by_others(table: HostTable, request: PlacementRequest) -> BlockColumns:
    """Return what failover slots and other VMs in flight into them block both.

    Until such a VM lands, the room that it takes is promised once; else who is evacuated after it
    would find none in a slot beside. What a slot of the VM itself blocks is released to it whole.
    That the others are evacuated as well is looked at where the room is taken.

    Source: spec scheduling, 16.3; failover, 17.2 ("Room").
    """
    side = table.reservations
    left: dict[tuple[int, str], ResourceVector] = {}
    rows: list[int] = []
    shared: list[tuple[int, int]] = []
    for vm_uuid, flights in side.in_flight_of_vm.items():
        slots = side.failover_of_vm.get(vm_uuid, ())
        for flight in _once(flights) if slots else ():
            host = flight.target_host
            slot = next((one for one in slots if host in one.hosts()), None)
            if slot is None or request.request_key in slot.vm_uuids or host not in table.row_of:
                continue
            room = left.get((slot.reservation_id, host), slot.blocked)
            both = room - (room - flight.blocked).clamped()
            left[slot.reservation_id, host] = room - both
            rows.append(table.row_of[host])
            shared.append((both.memory_bytes, both.vcpus))
    pairs = np.array(shared, dtype=np.int64).reshape(-1, 2)
    return BlockColumns(
        rows=np.array(rows, dtype=np.int64), memory_bytes=pairs[:, 0], vcpus=pairs[:, 1]
    )


def _add(free: FreeColumns, columns: BlockColumns, *, sign: int = 1) -> None:
    np.add.at(free.memory_bytes, columns.rows, sign * columns.memory_bytes)
    np.add.at(free.vcpus, columns.rows, sign * columns.vcpus)
