"""Admission of commitments: who holds capacity, on which hosts, or why not (spec liquid, 11).

One plan serves the API (all or nothing), the dry run (a plan that is not applied) and background
repair (each commitment for itself). Releases come first, then hand-over of freed slots, then new
slots are placed in the order of the targets, each placement seeing those before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np

from capacity.figures.zone_capacity import DEFAULT_PROBES, Probes
from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.ledger.blocking import blocked_resources
from capacity.ledger.placing import SlotPlacer, table_with_released
from capacity.ledger.slot_request import DomainHint
from commitments.domain.accounting import slots_message
from commitments.domain.cores_account import CoresAccount, CoresHolding, CoresLedger
from commitments.domain.cutting import SlotsFound, SlotsWanted, find_hosts
from commitments.domain.payg import PaygVM
from commitments.domain.planner import (
    NewSlot,
    SlotLimitExceeded,
    SlotPlan,
    SlotView,
    count_new_slots,
    plan_slots,
)
from commitments.domain.renewal import plan_renewal
from commitments.domain.slot_asks import OpenHosts, like_ask, stored_ask
from commitments.domain.slot_room import SlotRoom, divided_rooms, shrunk_block
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import Cause, ResourceType, Ruling
from commitments.domain.succession import SlotDivision, SlotHandover, hand_over_slots
from scheduling.decision import Decision
from scheduling.evaluation import CompiledPipeline
from scheduling.needs import NO_NEEDS, Needs
from scheduling.resources import ZERO, ResourceVector
from scheduling.table import HostTable

MOST_PLANNED_SLOTS = 10_000
"""More slots than this are not planned one by one where the zone is too small for them anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentTarget:
    """One commitment with what it should become and what it holds.

    Attributes:
        commitment_uuid: Whose target this is.
        desired: The state to reach; None deletes the commitment.
        is_holding: Whether the state wants capacity now (pending, guaranteed or confirmed, with a
            positive amount and an end ahead).
        is_planned: Whether nothing is promised yet.
        slots: Its stored slots.
        accepted_cores: vCPUs it holds by an earlier acceptance, and may go on holding; 0 when none.
        held_cores: vCPUs it holds, whatever it shall become; None when none.
        previous_project_id: Project it belonged to before; empty when it is new.
        holds_all_or_nothing: Whether a part of its slots is of no use: nothing was ever promised.
    """

    commitment_uuid: str
    desired: CommitmentState | None
    is_holding: bool
    is_planned: bool = False
    slots: tuple[SlotView, ...] = ()
    accepted_cores: int = 0
    held_cores: CoresHolding | None = None
    previous_project_id: str = ""
    holds_all_or_nothing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSnapshot:
    """Everything an admission is decided on.

    Attributes:
        hosts: Host table with the blocks of all stored slots.
        groups: Flavor group definitions by name.
        rooms: Stored slot id to what it takes.
        cores: (group, zone) to cores ledger.
        max_slots: Most new slots of one commitment; 0 is no limit.
        payg: (project, group, zone) to running VMs that new slots may be made for.
        domains: Domain id to what is known of it.
        pipelines: Flavor group to the pipeline that judges its slots; others use that of slots.
        probes: Pipelines that count the cores of hosts that are not as they are now.
        renews_slots: Whether empty slots of sizes that no flavor has now are replaced; only for a
            commitment that is planned alone.
    """

    hosts: HostTable
    groups: Mapping[str, FlavorGroupDef]
    rooms: Mapping[int, SlotRoom] = field(default_factory=dict)
    cores: Mapping[tuple[str, str], CoresLedger] = field(default_factory=dict)
    max_slots: int = 0
    payg: Mapping[tuple[str, str, str], Sequence[PaygVM]] = field(default_factory=dict)
    domains: Mapping[str, DomainHint] = field(default_factory=dict)
    pipelines: Mapping[str, CompiledPipeline] = field(default_factory=dict)
    probes: Probes = DEFAULT_PROBES
    renews_slots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlacement:
    """Where one slot shall be held.

    Attributes:
        slot_id: Stored slot that had no host; None for a new slot.
        slot_index: Its number in the commitment.
        resource_name: Flavor it is placed as; empty for a stored slot that does not say.
        slot: What it takes.
        decision: Host chosen, or none, with the reasons; None when nothing could be asked.
        vm: Running VM that the slot is made for; its host is the slot's, nobody is asked.
    """

    slot_id: int | None
    slot_index: int
    resource_name: str
    slot: ResourceVector
    decision: Decision | None
    vm: PaygVM | None = None

    @property
    def host_id(self) -> int | None:
        """Key of the host that holds the slot; None when it found none."""
        if self.vm is not None:
            return self.vm.host_id
        return self.decision.host_id if self.decision is not None else None

    @property
    def block(self) -> ResourceVector:
        """What the slot blocks on its host from then on."""
        if self.host_id is None:
            return ZERO
        seen = ZERO if self.vm is None else self.vm.resources
        return blocked_resources(slot=self.slot, confirmed=seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentDecision:
    """What was decided about one commitment, and the slot changes that follow.

    Attributes:
        target: What was asked.
        outcome: The answer.
        message: Why, for a person; texts of spec liquid 11.5 where it is a no.
        cause: Why not, as a code; None for a yes.
        slot_plan: Planned slot changes; None when it holds no slots.
        placements: Hosts of new and unplaced slots.
        exceeds_slot_limit: Whether it would need more new slots than allowed.
        is_complete: Whether all that it shall hold is held. Only a rejected commitment that is
            rolled back to what was accepted before may be incomplete otherwise than its outcome
            says.
        retry_at: When to look again although it is accepted; None for its next start or end.
    """

    target: CommitmentTarget
    outcome: Ruling
    message: str = ""
    cause: Cause | None = None
    slot_plan: SlotPlan | None = None
    placements: tuple[SlotPlacement, ...] = ()
    exceeds_slot_limit: bool = False
    is_complete: bool = True
    retry_at: datetime | None = None

    @property
    def changes_slots(self) -> bool:
        """Whether slots are made, shrunk, given up or find a host."""
        plan = self.slot_plan
        return plan is not None and (
            bool(plan.removed_ids or plan.creates or plan.shrinks)
            or any(placement.host_id is not None for placement in self.placements)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPlan:
    """An immutable proposal; applying it is a separate act.

    Attributes:
        decisions: One per target, in the order of the targets.
        released_slot_ids: Stored slots to delete, sorted.
        handovers: Stored slots that change their commitment.
        divisions: Stored slots that are cut in place.
        freed_blocks: Host key to what slots that go or shrink give back there before any other is
            placed, in bytes and vCPUs, negative.
        block_deltas: Host key to the net change of what committed slots block there.
        freed_needs: As ``freed_blocks``, of network, disk I/O and GPUs; without what slots that
            shrink give back, as the rest of each rounds up its part.
        need_deltas: As ``block_deltas``, likewise.
    """

    decisions: tuple[CommitmentDecision, ...]
    released_slot_ids: tuple[int, ...] = ()
    handovers: tuple[SlotHandover, ...] = ()
    divisions: tuple[SlotDivision, ...] = ()
    freed_blocks: Mapping[int, ResourceVector] = field(default_factory=dict)
    block_deltas: Mapping[int, ResourceVector] = field(default_factory=dict)
    freed_needs: Mapping[int, Needs] = field(default_factory=dict)
    need_deltas: Mapping[int, Needs] = field(default_factory=dict)

    @property
    def rejections(self) -> tuple[CommitmentDecision, ...]:
        """Return the decisions that are a no, in order."""
        return tuple(d for d in self.decisions if d.outcome is Ruling.REJECTED)


def plan_admission(
    snapshot: AdmissionSnapshot,
    targets: Sequence[CommitmentTarget],
    *,
    may_reject: bool,
    now: datetime,
) -> AdmissionPlan:
    """Decide a batch of commitments on one snapshot.

    Args:
        snapshot: Hosts, groups, stored slots and cores, all of one moment.
        targets: What the commitments should become, in the order of the request.
        may_reject: Whether "no" may be answered. A no then plans no slots for that commitment;
            otherwise it keeps what could be placed and tries again later.

    Returns:
        A plan with one decision per target. It depends on nothing but the arguments.

    Source: spec liquid, 11.3 (hand-over), 11.4, 20 row 2a (releases first); spec commitments, 8.
    """
    return _Admission(snapshot, targets, may_reject=may_reject, now=now).plan()


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A decision in the making."""

    target: CommitmentTarget
    slots: tuple[SlotView, ...]
    slot_plan: SlotPlan | None = None
    wanted: SlotsWanted | None = None
    refusal: str = ""
    cause: Cause | None = None
    exceeds_slot_limit: bool = False


class _Admission:
    """One planning run; the only mutable state, gone when the run ends."""

    def __init__(
        self,
        snapshot: AdmissionSnapshot,
        targets: Sequence[CommitmentTarget],
        *,
        may_reject: bool,
        now: datetime,
    ) -> None:
        self._snapshot = snapshot
        self._may_reject = may_reject
        self._now = now
        self._deltas: defaultdict[int, ResourceVector] = defaultdict(ResourceVector)
        self._needs: defaultdict[int, Needs] = defaultdict(Needs)
        self._released: set[int] = set()
        self._shrunk_blocks: dict[int, ResourceVector] = {}
        self._adopted: set[str] = set()
        self._rooms = dict(snapshot.rooms)
        succession = hand_over_slots(targets, now, OpenHosts(snapshot).admit)
        self._handovers = succession.handovers
        self._divisions: list[SlotDivision] = []
        self._drafts = [_Draft(target=t, slots=succession.kept[t.commitment_uuid]) for t in targets]
        for slot_id in succession.surplus_ids:
            self._release(slot_id)
        for division in succession.divisions:
            self._divide(division)

    def plan(self) -> AdmissionPlan:
        for draft in self._drafts:
            if draft.target.is_holding and _wants_slots(draft.target):
                self._plan_slots(draft)
        freed_blocks = dict(sorted(self._deltas.items()))
        freed_needs = dict(sorted(self._needs.items()))
        decisions = self._place_and_decide()
        return AdmissionPlan(
            decisions=decisions,
            released_slot_ids=tuple(sorted(i for i in self._released if not _is_new_piece(i))),
            handovers=tuple(h for h in self._handovers if h.slot_id not in self._released),
            divisions=tuple(self._without_released(division) for division in self._divisions),
            freed_blocks=freed_blocks,
            block_deltas={
                host_id: delta for host_id, delta in sorted(self._deltas.items()) if delta != ZERO
            },
            freed_needs=freed_needs,
            need_deltas=dict(sorted(self._needs.items())),
        )

    def _divide(self, division: SlotDivision) -> None:
        """Cut a slot; its pieces block what it blocked. What nobody takes is given back."""
        whole = self._rooms[division.slot_id]
        rooms = divided_rooms(whole, [piece.slot for piece in division.pieces])
        for host_id in whole.host_ids:
            self._deltas[host_id] -= whole.blocked
        for piece, room in zip(division.pieces, rooms, strict=True):
            self._rooms[piece.piece_id] = room
            if piece.commitment_uuid:
                for host_id in room.host_ids:
                    self._deltas[host_id] += room.blocked
        pieces = zip(division.pieces, rooms, strict=True)
        self._divisions.append(
            replace(division, pieces=tuple(replace(p, block=room.blocked) for p, room in pieces))
        )

    def _without_released(self, division: SlotDivision) -> SlotDivision:
        """Return the division with pieces that were given up again left to nobody."""
        return replace(
            division,
            pieces=tuple(
                replace(piece, commitment_uuid="")
                if _is_new_piece(piece.piece_id) and piece.piece_id in self._released
                else piece
                for piece in division.pieces
            ),
        )

    def _release(self, slot_id: int) -> None:
        self._released.add(slot_id)
        room = self._rooms[slot_id]
        for host_id in room.host_ids:
            self._deltas[host_id] -= self._shrunk_blocks.get(slot_id, room.blocked)
            if any(room.needs):
                self._needs[host_id] = self._needs[host_id].with_less(room.needs)

    def _plan_slots(self, draft: _Draft) -> None:
        desired = draft.target.desired
        assert desired is not None  # noqa: S101 - a holding target has a desired state
        group = self._snapshot.groups.get(desired.flavor_group_name)
        if group is None or not group.flavors:
            draft.refusal = f"flavor group not found: {desired.flavor_group_name}"
            draft.cause = Cause.STRUCTURAL
            return
        missing_bytes = desired.effective_memory_bytes(self._now) - sum(
            slot.memory_bytes for slot in draft.slots
        )
        wanted_slots = count_new_slots(group, missing_bytes)
        if wanted_slots > MOST_PLANNED_SLOTS and missing_bytes > self._zone_memory_bytes(
            desired.zone
        ):
            draft.refusal = slots_message(len(draft.slots), len(draft.slots) + wanted_slots)
            draft.cause = Cause.CAPACITY
            return
        plan_them = plan_renewal if self._snapshot.renews_slots else plan_slots
        outcome = plan_them(
            draft.slots,
            desired,
            group,
            now=self._now,
            max_slots=self._snapshot.max_slots,
            payg=self._payg_vms(desired),
        )
        if not isinstance(outcome, SlotPlan):
            draft.refusal = outcome.message
            draft.cause = Cause.STRUCTURAL
            draft.exceeds_slot_limit = isinstance(outcome, SlotLimitExceeded)
            return
        draft.slot_plan = outcome
        self._adopted.update(new.vm.vm_uuid for new in outcome.creates if new.vm is not None)
        for slot_id in outcome.removed_ids:
            self._release(slot_id)
        for shrink in outcome.shrinks:
            smaller = ResourceVector(memory_bytes=shrink.memory_bytes, vcpus=shrink.vcpus)
            self._shrink(shrink.slot_id, smaller)
        draft.wanted = self._wanted(draft, outcome, group, desired)

    def _wanted(
        self, draft: _Draft, plan: SlotPlan, group: FlavorGroupDef, desired: CommitmentState
    ) -> SlotsWanted:
        """Return what needs a host: stored slots that have none, and the memory of new ones."""
        removed = set(plan.removed_ids)
        like = like_ask(self._snapshot, desired, group)
        stored = tuple(
            stored_ask(like, slot, group, desired.slot_prefix)
            for slot in draft.slots
            if slot.target_host is None and slot.slot_id not in removed
        )
        used = [slot.slot_index for slot in draft.slots]
        used += [new.slot_index for new in plan.creates if new.vm is not None]
        return SlotsWanted(
            like=like,
            group=group,
            stored=stored,
            whole_ids=frozenset(slot.slot_id for slot in draft.slots if slot.has_allocations),
            new_bytes=sum(new.memory_bytes for new in plan.creates if new.vm is None),
            next_index=max(used, default=-1) + 1,
            prefix=desired.slot_prefix,
        )

    def _payg_vms(self, desired: CommitmentState) -> list[PaygVM]:
        """Return the VMs that this commitment may cover and no other of the batch does."""
        key = (desired.project_id, desired.flavor_group_name, desired.zone)
        vms = self._snapshot.payg.get(key, ())
        return [vm for vm in vms if vm.vm_uuid not in self._adopted]

    def _zone_memory_bytes(self, zone: str) -> int:
        hosts = self._snapshot.hosts
        if zone not in hosts.zones:
            return 0
        in_zone = hosts.zone == hosts.zones.index(zone)
        return int(hosts.eff_memory_bytes[in_zone].sum(dtype=np.int64))

    def _shrink(self, slot_id: int, smaller: ResourceVector) -> None:
        room = self._rooms[slot_id]
        if not room.host_ids:
            return
        block = shrunk_block(room, smaller)
        self._shrunk_blocks[slot_id] = block
        for host_id in room.host_ids:
            self._deltas[host_id] -= room.blocked - block

    def _place_and_decide(self) -> tuple[CommitmentDecision, ...]:
        placer = self._new_placer()
        cores = CoresAccount(self._snapshot.cores, [draft.target for draft in self._drafts])
        decisions = []
        for draft in self._drafts:
            placements = _made_for_vms(draft)
            if draft.wanted is not None:
                found = find_hosts(placer, draft.wanted)
                self._cut(draft, found)
                placements += _placements(found)
            decision = self._decide(draft, placements, cores)
            if decision.outcome is Ruling.RESERVING and _may_give_up(draft):
                decision = self._gives_up(draft, decision)
                placer = self._new_placer()
            if decision.outcome in {Ruling.ACCEPTED, Ruling.RESERVING}:
                self._hold(decision.placements)
                self._released.update(decision.slot_plan.cut_ids if decision.slot_plan else ())
            decisions.append(decision)
        return tuple(decisions)

    def _new_placer(self) -> SlotPlacer:
        """Return a placer that sees what was released and held so far."""
        return SlotPlacer(table_with_released(self._snapshot.hosts, self._deltas, self._needs))

    def _gives_up(self, draft: _Draft, decision: CommitmentDecision) -> CommitmentDecision:
        """Return the decision of a commitment that lacks a part, and so holds nothing.

        What it gives up must not be in the way of those after it. Slots without a host stay, or are
        made, to tell what removed the hosts.
        """
        placed_ids = tuple(slot.slot_id for slot in draft.slots if slot.target_host is not None)
        for slot_id in placed_ids:
            if slot_id not in self._released:
                self._release(slot_id)
        lacking: tuple[SlotPlacement, ...] = ()
        if len(placed_ids) == len(draft.slots):
            lacking = tuple(p for p in decision.placements if p.host_id is None)
        indexes = {placement.slot_index for placement in lacking}
        made = draft.slot_plan.creates if draft.slot_plan is not None else ()
        plan = SlotPlan(
            delete_ids=placed_ids,
            creates=tuple(new for new in made if new.slot_index in indexes),
        )
        return replace(decision, slot_plan=plan, placements=lacking)

    def _cut(self, draft: _Draft, found: SlotsFound) -> None:
        """Plan the new slots as they were found, in place of those that were planned before."""
        plan = draft.slot_plan
        assert plan is not None  # noqa: S101 - what is wanted comes from a plan
        for_vms = tuple(new for new in plan.creates if new.vm is not None)
        creates = for_vms + tuple(
            NewSlot(
                slot_index=slot.ask.slot_index,
                name=slot.ask.slot_name,
                resource_name=slot.ask.flavor.name,
                memory_bytes=slot.ask.slot.memory_bytes,
                vcpus=slot.ask.slot.vcpus,
            )
            for slot in found.new
        )
        draft.slot_plan = replace(
            plan,
            creates=creates,
            cut_ids=found.cut_ids,
            total_slots=plan.total_slots + len(creates) - len(plan.creates) - len(found.cut_ids),
        )
        new_count, limit = len(found.new), self._snapshot.max_slots
        if 0 < limit < new_count and not found.missing:
            draft.refusal = SlotLimitExceeded(new_slots=new_count, limit=limit).message
            draft.cause = Cause.STRUCTURAL
            draft.exceeds_slot_limit = True

    def _hold(self, placements: Sequence[SlotPlacement]) -> None:
        for placement in placements:
            if placement.host_id is not None:
                self._deltas[placement.host_id] += placement.block
                needs = placement.decision.request.needs if placement.decision else NO_NEEDS
                if any(needs):
                    self._needs[placement.host_id] = self._needs[placement.host_id].with_more(needs)

    def _decide(
        self, draft: _Draft, placements: tuple[SlotPlacement, ...], cores: CoresAccount
    ) -> CommitmentDecision:
        target = draft.target
        if target.desired is None:
            return CommitmentDecision(target=target, outcome=Ruling.DELETED)
        if not target.is_holding:
            outcome = Ruling.PLANNED if target.is_planned else Ruling.RELEASED
            return CommitmentDecision(target=target, outcome=outcome)
        if not _wants_slots(target):
            draft.refusal, draft.cause = cores.ask(target, target.desired)
        elif not draft.refusal:
            missing = sum(1 for placement in placements if placement.host_id is None)
            total = draft.slot_plan.total_slots if draft.slot_plan else 0
            if missing:
                draft.refusal = slots_message(total - missing, total)
                draft.cause = Cause.CAPACITY
        outcome = Ruling.ACCEPTED
        if draft.refusal:
            outcome = Ruling.REJECTED if self._may_reject else Ruling.RESERVING
        return CommitmentDecision(
            target=target,
            outcome=outcome,
            message=draft.refusal,
            cause=draft.cause,
            slot_plan=draft.slot_plan,
            placements=placements,
            exceeds_slot_limit=draft.exceeds_slot_limit,
        )


def _is_new_piece(slot_id: int) -> bool:
    return slot_id < 0


def _may_give_up(draft: _Draft) -> bool:
    return draft.target.holds_all_or_nothing and _wants_slots(draft.target)


def _wants_slots(target: CommitmentTarget) -> bool:
    return target.desired is not None and target.desired.resource_type is ResourceType.MEMORY


def _placements(found: SlotsFound) -> tuple[SlotPlacement, ...]:
    return tuple(
        SlotPlacement(
            slot_id=slot.ask.slot_id,
            slot_index=slot.ask.slot_index,
            resource_name=slot.ask.flavor.name if slot.ask.names_flavor else "",
            slot=slot.ask.slot,
            decision=slot.decision,
        )
        for slot in found.slots
    )


def _made_for_vms(draft: _Draft) -> tuple[SlotPlacement, ...]:
    """Return the placements that nobody has to be asked for: slots of running VMs."""
    creates = draft.slot_plan.creates if draft.slot_plan is not None else ()
    return tuple(
        SlotPlacement(
            slot_id=None,
            slot_index=new.slot_index,
            resource_name=new.resource_name,
            slot=ResourceVector(memory_bytes=new.memory_bytes, vcpus=new.vcpus),
            decision=None,
            vm=new.vm,
        )
        for new in creates
        if new.vm is not None
    )
