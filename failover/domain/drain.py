"""May some hosts be drained, what has to move, and what would be lost (spec failover, 17; issue 6).

A drain moves whole committed slots with the VMs in them, then the other VMs, then failover slots,
each to what is left after those before, with the filters of the scheduler. Nothing is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from failover.domain.drain_cover import CoverAfter, cover_after
from failover.domain.drill_state import DrillState
from scheduling.decision import Decision, explain_removals
from scheduling.engine import SLOT_PIPELINE, Batch, Pipeline, schedule_many
from scheduling.request import PlacementRequest
from scheduling.resources import ResourceVector
from scheduling.table import HostTable


class Blocker(StrEnum):
    """Why hosts may not be drained."""

    COMMITMENT_STRANDED = "commitment_stranded"
    VM_STUCK = "vm_stuck"
    COVERAGE_LOST = "coverage_lost"


class MoveKind(StrEnum):
    """What has to move."""

    VM = "vm"
    COMMITTED_SLOT = "committed_slot"
    FAILOVER_SLOT = "failover_slot"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainVm:
    """A VM on a host that is to be drained.

    Attributes:
        uuid: Its uuid.
        host: Its host.
        request: What it asks of a new host; its key is the uuid.
    """

    uuid: str
    host: str
    request: PlacementRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSlot:
    """A committed slot on a host that is to be drained.

    Attributes:
        name: Its name.
        commitment: Uuid of the commitment.
        host: Its host.
        request: What slot and VMs together ask of a new host.
        vm_uuids: VMs in it; they move with it.
    """

    name: str
    commitment: str
    host: str
    request: PlacementRequest
    vm_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainInput:
    """Everything a drain is judged by.

    Attributes:
        hosts: Names of the hosts to drain.
        table: All hosts.
        vm_pipeline: Filters and weighers for VMs and failover slots.
        vms: VMs on the hosts.
        slots: Committed slots on the hosts.
        failover_requests: Failover slot on the hosts -> what it asks of a new host.
        state: Hosts, VMs and failover slots of the zones, for coverage.
        first: Those of the hosts that are drained before the others: of each kind, what is on them
            is placed first.
    """

    hosts: tuple[str, ...]
    table: HostTable
    vm_pipeline: Pipeline
    vms: tuple[DrainVm, ...] = ()
    slots: tuple[DrainSlot, ...] = ()
    failover_requests: Mapping[str, PlacementRequest] = field(default_factory=dict)
    state: DrillState
    first: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMove:
    """Something that has to move, and where it could go.

    Attributes:
        kind: What it is.
        key: VM uuid or slot name.
        from_host: Where it is.
        to_host: Where it fits.
    """

    kind: MoveKind
    key: str
    from_host: str
    to_host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Something that fits nowhere else.

    Attributes:
        kind: What it is.
        key: VM uuid or slot name.
        from_host: Where it is.
        memory_bytes: What it asks for.
        reason: Which filters removed how many hosts, for a person.
        commitment: Commitment of a slot; empty for others.
    """

    kind: MoveKind
    key: str
    from_host: str
    memory_bytes: int
    reason: str
    commitment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """Whether hosts may be drained.

    Attributes:
        hosts: The hosts.
        moves: What moves where, in the order in which room was looked for.
        stuck: What fits nowhere.
        weakened: VMs that have fewer failover slots than they need and had more, after the moves.
    """

    hosts: tuple[str, ...]
    moves: tuple[DrainMove, ...]
    stuck: tuple[Stuck, ...]
    weakened: tuple[CoverAfter, ...]

    @property
    def stranded_commitments(self) -> Mapping[str, tuple[Stuck, ...]]:
        """Commitments with slots that fit nowhere -> those slots."""
        found: dict[str, list[Stuck]] = defaultdict(list)
        for row in self.stuck:
            if row.kind is MoveKind.COMMITTED_SLOT:
                found[row.commitment].append(row)
        return {uuid: tuple(found[uuid]) for uuid in sorted(found)}

    @property
    def bare_vms(self) -> tuple[str, ...]:
        """VMs that had failover slots and end without any, although some are owed to them."""
        return tuple(row.vm for row in self.weakened if not row.after)

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """Why the hosts may not be drained; empty when they may."""
        return _blockers({row.kind for row in self.stuck}, is_bare=bool(self.bare_vms))

    @property
    def is_safe(self) -> bool:
        """Whether everything finds a place and no VM is left without any failover slot."""
        return not self.blockers


def plan_drain(ask: DrainInput) -> DrainReport:
    """Return whether hosts may be drained, and what would move where.

    Args:
        ask: The hosts and everything around them.

    Returns:
        Moves and what has none; the largest go first, ties by key.
    """
    gone = frozenset(ask.hosts)
    moves: list[DrainMove] = []
    stuck: list[Stuck] = []
    groups = sorted(
        _moving_together(ask.slots),
        key=lambda slots: (slots[0].host not in ask.first, _rank(_asked(slots), slots[0].name)),
    )
    placed = _placed(ask.table, map(_asked, groups), SLOT_PIPELINE, gone)
    table = _with_blocks(ask.table, placed)
    travelling: dict[str, str] = {}
    for slot, decision in ((s, d) for slots, d in zip(groups, placed, strict=True) for s in slots):
        row = (MoveKind.COMMITTED_SLOT, slot.name, slot.host)
        if decision.host_name is None:
            stuck.append(_stuck(row, decision, commitment=slot.commitment))
            continue
        moves.append(_move(row, decision))
        travelling.update(dict.fromkeys(slot.vm_uuids, decision.host_name))
    vms = sorted(ask.vms, key=lambda vm: (vm.host not in ask.first, _rank(vm.request, vm.uuid)))
    alone = [vm for vm in vms if vm.uuid not in travelling]
    placed = _placed(table, [vm.request for vm in alone], ask.vm_pipeline, gone)
    table = _with_blocks(table, placed)
    moves.extend(
        DrainMove(kind=MoveKind.VM, key=vm.uuid, from_host=vm.host, to_host=travelling[vm.uuid])
        for vm in vms
        if vm.uuid in travelling
    )
    for vm, decision in zip(alone, placed, strict=True):
        _note((MoveKind.VM, vm.uuid, vm.host), decision, moves, stuck)
    destinations = {move.key: move.to_host for move in moves if move.kind is MoveKind.VM}
    recreated = _failover(ask, table, destinations, moves, stuck)
    return DrainReport(
        hosts=tuple(sorted(gone)),
        moves=tuple(moves),
        stuck=tuple(stuck),
        weakened=cover_after(ask.state, gone, destinations, recreated),
    )


def _moving_together(slots: Iterable[DrainSlot]) -> list[tuple[DrainSlot, ...]]:
    """Return the slots in groups: those that have a part of the same VM go to one host with it."""
    group_of: dict[str, list[DrainSlot]] = {}
    for slot in slots:
        group = [slot]
        for vm_uuid in slot.vm_uuids:
            beside = group_of.get(vm_uuid, group)
            if beside is not group:
                group = [*beside, *group]
                group_of.update((uuid, group) for one in group for uuid in one.vm_uuids)
        group_of.update((uuid, group) for one in group for uuid in (one.name, *one.vm_uuids))
    unique = {id(group): group for group in group_of.values()}
    return [tuple(group) for group in unique.values()]


def _asked(slots: Sequence[DrainSlot]) -> PlacementRequest:
    """Return what slots that move together ask of a new host."""
    return replace(
        slots[0].request,
        memory_bytes=sum(slot.request.memory_bytes for slot in slots),
        vcpus=sum(slot.request.vcpus for slot in slots),
    )


def blockers_for(
    report: DrainReport, state: DrillState, hosts: Collection[str]
) -> tuple[Blocker, ...]:
    """Return why some of the hosts of a report may not be drained, whatever becomes of the others.

    Args:
        report: The drain of these and of other hosts.
        state: Hosts, VMs and failover slots before.
        hosts: The hosts that are asked about.
    """
    kinds = {row.kind for row in report.stuck if row.from_host in hosts}
    bare = any(
        state.vms[uuid].host in hosts
        or any(state.slots[name].host in hosts for name in state.slots_of.get(uuid, ()))
        for uuid in report.bare_vms
    )
    return _blockers(kinds, is_bare=bare)


def _blockers(kinds: Collection[MoveKind], *, is_bare: bool) -> tuple[Blocker, ...]:
    found = (
        (Blocker.COMMITMENT_STRANDED, MoveKind.COMMITTED_SLOT in kinds),
        (Blocker.VM_STUCK, MoveKind.VM in kinds),
        (Blocker.COVERAGE_LOST, MoveKind.FAILOVER_SLOT in kinds or is_bare),
    )
    return tuple(blocker for blocker, is_found in found if is_found)


def _failover(
    ask: DrainInput,
    table: HostTable,
    destinations: Mapping[str, str],
    moves: list[DrainMove],
    stuck: list[Stuck],
) -> Mapping[str, str]:
    """Find new hosts for the failover slots, where the rules allow them to stand."""
    gone = frozenset(ask.hosts)
    batch = Batch(table, ask.vm_pipeline)
    recreated: dict[str, str] = {}
    names = sorted(
        ask.failover_requests,
        key=lambda name: (
            ask.state.slots[name].host not in ask.first,
            _rank(ask.failover_requests[name], name),
        ),
    )
    for name in names:
        taken = _hosts_in_use(ask.state, name, destinations, recreated)
        request = replace(ask.failover_requests[name], ignore_hosts=gone | taken)
        decision = batch.decide(request, 1)
        _note((MoveKind.FAILOVER_SLOT, name, ask.state.slots[name].host), decision, moves, stuck)
        if decision.host_name is not None:
            recreated[name] = decision.host_name
    return recreated


def _hosts_in_use(
    state: DrillState, slot: str, destinations: Mapping[str, str], recreated: Mapping[str, str]
) -> frozenset[str]:
    """Return hosts that have a role for a user of the slot after the moves so far."""
    hosts: set[str] = set()
    for user in state.slots[slot].users:
        for name in state.slots_of[user]:
            if name != slot:
                hosts.add(recreated.get(name, state.slots[name].host))
            members = (member for member in state.slots[name].users if member in state.vms)
            hosts.update(destinations.get(member, state.vms[member].host) for member in members)
    return frozenset(hosts)


def _rank(request: PlacementRequest, key: str) -> tuple[int, int, str]:
    return (-request.memory_bytes, -request.vcpus, key)


def _placed(
    table: HostTable,
    requests: Iterable[PlacementRequest],
    pipeline: Pipeline,
    gone: Collection[str],
) -> tuple[Decision, ...]:
    hosts = frozenset(gone)
    return schedule_many(
        table, [replace(request, ignore_hosts=hosts) for request in requests], pipeline
    )


def _note(
    row: tuple[MoveKind, str, str], decision: Decision, moves: list[DrainMove], stuck: list[Stuck]
) -> None:
    if decision.host_name is None:
        stuck.append(_stuck(row, decision))
    else:
        moves.append(_move(row, decision))


def _move(row: tuple[MoveKind, str, str], decision: Decision) -> DrainMove:
    kind, key, host = row
    return DrainMove(kind=kind, key=key, from_host=host, to_host=str(decision.host_name))


def _stuck(row: tuple[MoveKind, str, str], decision: Decision, commitment: str = "") -> Stuck:
    kind, key, host = row
    return Stuck(
        kind=kind,
        key=key,
        from_host=host,
        memory_bytes=decision.request.memory_bytes,
        reason=explain_removals(decision),
        commitment=commitment,
    )


def _with_blocks(table: HostTable, decisions: Sequence[Decision]) -> HostTable:
    """Return the table with what was placed counted as blocks."""
    rows: dict[int, ResourceVector] = {}
    for decision in decisions:
        if decision.host_name is not None:
            row = table.row_of[decision.host_name]
            rows[row] = rows.get(row, ResourceVector()) + decision.request.asked
    if not rows:
        return table
    index = np.array(sorted(rows), dtype=np.int64)
    return table.replace_columns(
        index,
        {
            "in_flight_memory_bytes": table.in_flight_memory_bytes[index]
            + np.array([rows[row].memory_bytes for row in index.tolist()], dtype=np.int64),
            "in_flight_vcpus": table.in_flight_vcpus[index]
            + np.array([rows[row].vcpus for row in index.tolist()], dtype=np.int64),
        },
    )
