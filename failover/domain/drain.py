"""May some hosts be drained, what has to move, and what would be lost (spec failover, 17; issue 6).

A drain moves whole committed slots with the VMs in them, then the other VMs, then failover slots,
each to what is left after those before, with the filters of the scheduler. Nothing is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from capacity.ledger.placing import SlotPlacer
from capacity.ledger.slot_request import SlotAsk
from failover.domain.drill_state import DrillState
from scheduling.decision import Decision, explain_removals
from scheduling.resources import ZERO
from scheduling.table import HostTable

NO_FLAVOR = "the slot does not say what flavor it is placed as"


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
class DrainVM:
    """A VM on a host that is to be drained.

    Attributes:
        ask: What it asks of a new host, by its uuid.
    """

    host: str
    ask: SlotAsk

    @property
    def uuid(self) -> str:
        """Its uuid."""
        return self.ask.slot_name


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSlot:
    """A committed slot on a host that is to be drained.

    Attributes:
        commitment: Uuid of the commitment.
        ask: What slot and VMs together ask of a new host.
        vm_uuids: VMs in it; they move with it, to where each of them may run.
    """

    name: str
    commitment: str
    host: str
    ask: SlotAsk
    vm_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainInput:
    """Everything a drain is judged by.

    Attributes:
        hosts: Names of the hosts to drain.
        vms: VMs on the hosts.
        slots: Committed slots on the hosts.
        failover_asks: Failover slot on the hosts -> what it asks of a new host.
        state: Hosts, VMs and failover slots of the zones, for coverage.
        first: Those of the hosts that are drained before the others: of each kind, what is on them
            is placed first.
    """

    hosts: tuple[str, ...]
    table: HostTable
    vms: tuple[DrainVM, ...] = ()
    slots: tuple[DrainSlot, ...] = ()
    failover_asks: Mapping[str, SlotAsk] = field(default_factory=dict)
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
class CoverAfter:
    """A VM that a drain leaves with fewer failover slots than it needs.

    Attributes:
        required: Slots it must have.
        before: Slots it has.
        after: Slots it keeps by the rules.
    """

    vm: str
    required: int
    before: int
    after: int


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


@dataclass(slots=True, kw_only=True)
class _Found:
    """What was found so far; gone when the plan is made."""

    moves: list[DrainMove] = field(default_factory=list)
    stuck: list[Stuck] = field(default_factory=list)


def plan_drain(ask: DrainInput) -> DrainReport:
    """Return whether hosts may be drained, and what would move where.

    Args:
        ask: The hosts and everything around them.

    Returns:
        Moves and what has none; the largest go first, ties by key.
    """
    gone = frozenset(ask.hosts)
    found = _Found()
    placer = SlotPlacer(ask.table)
    travelling = _slots(ask, placer, found)
    vms = sorted(ask.vms, key=lambda vm: (vm.host not in ask.first, _rank(vm.ask, vm.uuid)))
    found.moves.extend(
        DrainMove(kind=MoveKind.VM, key=vm.uuid, from_host=vm.host, to_host=travelling[vm.uuid])
        for vm in vms
        if vm.uuid in travelling
    )
    for vm in vms:
        if vm.uuid not in travelling:
            row = (MoveKind.VM, vm.uuid, vm.host)
            _settle(row, replace(vm.ask, ignore_hosts=gone), placer, found)
    destinations = {move.key: move.to_host for move in found.moves if move.kind is MoveKind.VM}
    recreated = _failover(ask, placer, destinations, found)
    return DrainReport(
        hosts=tuple(sorted(gone)),
        moves=tuple(found.moves),
        stuck=tuple(found.stuck),
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


def _asked(slots: Sequence[DrainSlot]) -> SlotAsk:
    """Return what slots that move together ask of a new host."""
    return replace(slots[0].ask, slot=sum((slot.ask.slot for slot in slots), ZERO))


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


def _slots(ask: DrainInput, placer: SlotPlacer, found: _Found) -> dict[str, str]:
    """Find new hosts for the committed slots; return where the VMs in them go."""
    gone = frozenset(ask.hosts)
    vm_asks = {vm.uuid: vm.ask for vm in ask.vms}
    travelling: dict[str, str] = {}
    for slots in sorted(
        _moving_together(ask.slots),
        key=lambda slots: (slots[0].host not in ask.first, _rank(_asked(slots), slots[0].name)),
    ):
        inside = {uuid: vm_asks[uuid] for s in slots for uuid in s.vm_uuids if uuid in vm_asks}
        wanted = replace(_asked(slots), ignore_hosts=gone)
        others = [*inside.values(), *(slot.ask for slot in slots[1:])]
        if others:
            allowed = placer.passing(others)
            before = wanted.only_hosts
            wanted = replace(wanted, only_hosts=allowed if before is None else allowed & before)
        decision = placer.place(wanted)
        for slot in slots:
            row = (MoveKind.COMMITTED_SLOT, slot.name, slot.host)
            _note(row, slot.ask, decision, found, commitment=slot.commitment)
        if decision is not None and decision.host_name is not None:
            travelling.update(
                (uuid, decision.host_name) for slot in slots for uuid in slot.vm_uuids
            )
            for vm_ask in inside.values():
                placer.note(vm_ask, decision.host_name)
    return travelling


def _failover(
    ask: DrainInput,
    placer: SlotPlacer,
    destinations: Mapping[str, str],
    found: _Found,
) -> Mapping[str, str]:
    """Find new hosts for the failover slots, where the rules allow them to stand."""
    gone = frozenset(ask.hosts)
    recreated: dict[str, str] = {}
    names = sorted(
        ask.failover_asks,
        key=lambda name: (
            ask.state.slots[name].host not in ask.first,
            _rank(ask.failover_asks[name], name),
        ),
    )
    for name in names:
        taken = _hosts_in_use(ask.state, name, destinations, recreated)
        wanted = replace(ask.failover_asks[name], ignore_hosts=gone | taken)
        row = (MoveKind.FAILOVER_SLOT, name, ask.state.slots[name].host)
        host = _settle(row, wanted, placer, found)
        if host is not None:
            recreated[name] = host
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


def _rank(ask: SlotAsk, key: str) -> tuple[int, int, str]:
    return (-ask.slot.memory_bytes, -ask.slot.vcpus, key)


def _settle(
    row: tuple[MoveKind, str, str], ask: SlotAsk, placer: SlotPlacer, found: _Found
) -> str | None:
    """Look for a host, note what was found, and return it; None where nothing fits."""
    decision = placer.place(ask)
    _note(row, ask, decision, found)
    return None if decision is None else decision.host_name


def _note(
    row: tuple[MoveKind, str, str],
    ask: SlotAsk,
    decision: Decision | None,
    found: _Found,
    *,
    commitment: str = "",
) -> None:
    kind, key, host = row
    if decision is not None and decision.host_name is not None:
        found.moves.append(
            DrainMove(kind=kind, key=key, from_host=host, to_host=decision.host_name)
        )
        return
    found.stuck.append(
        Stuck(
            kind=kind,
            key=key,
            from_host=host,
            memory_bytes=ask.slot.memory_bytes,
            reason=NO_FLAVOR if decision is None else explain_removals(decision),
            commitment=commitment,
        )
    )


def cover_after(
    state: DrillState,
    gone: Collection[str],
    destinations: Mapping[str, str],
    recreated: Mapping[str, str],
) -> tuple[CoverAfter, ...]:
    """Return the VMs that lose failover slots which they need.

    A VM that moves stays in a slot as long as the five rules hold with its new host; slots on the
    hosts are lost unless they are made again elsewhere.

    Args:
        state: Hosts, VMs and slots before.
        gone: Hosts that are drained.
        destinations: VM that moves -> its new host.
        recreated: Slot on one of the hosts -> host where it is made again.

    Returns:
        VMs in order of uuid.
    """
    leaving = {name for host in gone for name in state.slots_on.get(host, ())}
    losing = {user for name in leaving for user in state.slots[name].users} & state.vms.keys()
    losing |= state.vms.keys() & destinations
    slot_hosts = {
        name: recreated.get(name, state.slots[name].host)
        for name in _judged_with(state, losing)
        if name not in leaving or name in recreated
    }
    graph = state.sharing(slot_hosts)
    for uuid in sorted(state.vms.keys() & destinations):
        names = sorted(graph.vm_slots.get(uuid, ()))
        for name in names:
            graph.remove(uuid, name, slot_hosts[name])
        for name in names:
            graph.joined(uuid, destinations[uuid], name, slot_hosts[name])
    lost = []
    for uuid in sorted(losing):
        vm = state.vms[uuid]
        before = len(state.slots_of.get(uuid, ()))
        after = len(graph.vm_slots.get(uuid, ()))
        if after < min(before, vm.required_count):
            lost.append(CoverAfter(vm=uuid, required=vm.required_count, before=before, after=after))
    return tuple(lost)


def _judged_with(state: DrillState, vms: Iterable[str]) -> set[str]:
    """Return the slots that the five rules read for VMs and all that share one with them."""
    own = {name for uuid in vms for name in state.slots_of.get(uuid, ())}
    sharers = {user for name in own for user in state.slots[name].users}
    return own.union(*(state.slots_of.get(uuid, ()) for uuid in sharers))
