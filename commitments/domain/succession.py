"""Which slots pass from ending to beginning commitments of a batch (spec liquid, 11.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING

from capacity.ledger.sharing import cut_slot
from commitments.domain.handover import (
    FreedSlot,
    SlotCut,
    SlotDemand,
    plan_cuts,
    plan_handover,
)
from commitments.domain.planner import SlotView
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import ResourceType
from scheduling.resources import ZERO, ResourceVector

if TYPE_CHECKING:
    from commitments.domain.admission import CommitmentTarget

Admits = Callable[[SlotView, CommitmentState], bool]
"""Whether the host of a slot would take VMs of the project of a commitment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHandover:
    """A stored slot that changes its commitment.

    Attributes:
        slot_id: Database key of the slot.
        commitment_uuid: New owner.
        slot_index: Its index there.
    """

    slot_id: int
    commitment_uuid: str
    slot_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPiece:
    """A part of a stored slot that becomes a slot of its own on the same host.

    Attributes:
        piece_id: Key of the stored slot for the first piece, which keeps its row; a negative number
            of its own for every other one.
        commitment_uuid: New owner; empty for what nobody takes, which is given back.
        slot_index: Its index there.
        slot: Its size.
        block: What it blocks on its hosts.
    """

    piece_id: int
    commitment_uuid: str
    slot_index: int
    slot: ResourceVector
    block: ResourceVector = ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDivision:
    """A stored slot that is cut in place.

    Attributes:
        slot_id: Its database key.
        pieces: What becomes of it; they add up to it. VMs fill the first ones first.
    """

    slot_id: int
    pieces: tuple[SlotPiece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """Slots of a batch after hand-over.

    Attributes:
        kept: Commitment uuid to the slots it starts planning with, own and received.
        handovers: What changed hands.
        divisions: What was cut, each piece with its new owner.
        surplus_ids: Slots that nobody takes over, to be released; sorted.
    """

    kept: dict[str, tuple[SlotView, ...]]
    handovers: tuple[SlotHandover, ...]
    divisions: tuple[SlotDivision, ...]
    surplus_ids: tuple[int, ...]


def hand_over_slots(
    targets: Sequence[CommitmentTarget], now: datetime, admits: Admits
) -> Succession:
    """Offer the slots of ending commitments to those that begin to be promised.

    Slots pass on with their VMs within a project, and between projects only without VMs and where
    the new project's VMs could be, as far as amounts allow: first within each project, then between
    projects, both in the order of the batch. Whole slots go first, then what is missing is cut off
    the others, so that within a project no new room is needed. What is left then is for pending
    commitments of the same project. A commitment that moves to another project keeps such slots as
    could be handed to it.

    Args:
        targets: The batch, in order.
        now: The present, decides what is claimed.
        admits: Asked about slots without VMs that another project shall have.

    Source: spec liquid, 11.3; decisions (confirmed move between projects; split, merge, renewal).
    """
    estates: dict[tuple[str, str], _Estate] = {}
    kept: dict[str, tuple[SlotView, ...]] = {}
    piece_ids = count(-1, -1)
    for target in targets:
        desired = target.desired
        if not _holds_slots(target):
            kept[target.commitment_uuid] = ()
            for slot in target.slots:
                place = (slot.flavor_group_name, slot.zone)
                estates.setdefault(place, _Estate(kept, piece_ids, now, admits)).slots.append(slot)
            continue
        kept[target.commitment_uuid] = _moved_along(target, admits)
        if desired is not None and desired.status is not None and desired.status.is_live:
            place = (desired.flavor_group_name, desired.zone)
            estate = estates.setdefault(place, _Estate(kept, piece_ids, now, admits))
            (estate.takers if desired.status.is_active else estate.waiting).append(target)
    settled = [estate for _, estate in sorted(estates.items(), key=lambda item: item[0])]
    for estate in settled:
        estate.settle()
    return Succession(
        kept=kept,
        handovers=tuple(handover for estate in settled for handover in estate.handovers),
        divisions=tuple(division for estate in settled for division in estate.divisions),
        surplus_ids=tuple(sorted(i for estate in settled for i in estate.left)),
    )


@dataclass(slots=True)
class _Estate:
    """What is freed in one flavor group and zone, and who may take it; gone after hand-over."""

    kept: dict[str, tuple[SlotView, ...]]
    piece_ids: Iterator[int]
    now: datetime
    admits: Admits
    slots: list[SlotView] = field(default_factory=list)
    takers: list[CommitmentTarget] = field(default_factory=list)
    waiting: list[CommitmentTarget] = field(default_factory=list)
    left: dict[int, SlotView] = field(default_factory=dict)
    handovers: list[SlotHandover] = field(default_factory=list)
    divisions: list[SlotDivision] = field(default_factory=list)

    def settle(self) -> None:
        """Hand over whole slots, then pieces, to those promised, then to those that wait."""
        self.left = {slot.slot_id: slot for slot in self.slots}
        self._give(self.takers, self.left.values())
        for project_id in sorted({_project_of(target) for target in self.waiting}):
            self._give(
                [target for target in self.waiting if _project_of(target) == project_id],
                [slot for slot in self.left.values() if slot.project_id == project_id],
            )

    def _give(self, takers: Sequence[CommitmentTarget], slots: Iterable[SlotView]) -> None:
        by_uuid = {target.commitment_uuid: target for target in takers}
        offered = [self._freed(slot, takers) for slot in slots]
        outcome = plan_handover(offered, self._demands(takers))
        for slot_id, uuid in outcome.new_owners.items():
            received = _received(self.left.pop(slot_id), by_uuid[uuid], self.kept[uuid])
            self.kept[uuid] += (received,)
            self.handovers.append(
                SlotHandover(slot_id=slot_id, commitment_uuid=uuid, slot_index=received.slot_index)
            )
        remaining = [slot for slot in offered if slot.slot_id in self.left]
        for cut in plan_cuts(remaining, self._demands(takers)):
            self._divide(self.left.pop(cut.slot_id), cut, by_uuid)

    def _freed(self, slot: SlotView, takers: Sequence[CommitmentTarget]) -> FreedSlot:
        others = {
            target.desired.project_id: target.desired
            for target in takers
            if target.desired is not None and target.desired.project_id != slot.project_id
        }
        return FreedSlot(
            slot_id=slot.slot_id,
            project_id=slot.project_id,
            memory_bytes=slot.memory_bytes,
            has_allocations=slot.has_allocations,
            is_placed=slot.target_host is not None,
            closed_to=frozenset(
                project_id
                for project_id, desired in others.items()
                if not _may_change_hands(slot, desired, self.admits)
            ),
        )

    def _demands(self, takers: Sequence[CommitmentTarget]) -> list[SlotDemand]:
        return [
            SlotDemand(
                commitment_uuid=target.commitment_uuid,
                project_id=_project_of(target),
                memory_bytes=_missing_bytes(target, self.kept[target.commitment_uuid], self.now),
            )
            for target in takers
        ]

    def _divide(self, slot: SlotView, cut: SlotCut, takers: Mapping[str, CommitmentTarget]) -> None:
        owners = [uuid for uuid, _ in cut.shares] + [""] * (cut.rest_bytes > 0)
        memories = [share for _, share in cut.shares] + [cut.rest_bytes] * (cut.rest_bytes > 0)
        whole = ResourceVector(memory_bytes=slot.memory_bytes, vcpus=slot.vcpus)
        pieces = []
        for position, (uuid, size) in enumerate(
            zip(owners, cut_slot(whole, memories), strict=True)
        ):
            piece_id = slot.slot_id if position == 0 else next(self.piece_ids)
            slot_index = 0
            if uuid:
                piece = replace(
                    slot, slot_id=piece_id, memory_bytes=size.memory_bytes, vcpus=size.vcpus
                )
                received = _received(piece, takers[uuid], self.kept[uuid])
                self.kept[uuid] += (received,)
                slot_index = received.slot_index
            pieces.append(
                SlotPiece(piece_id=piece_id, commitment_uuid=uuid, slot_index=slot_index, slot=size)
            )
        self.divisions.append(SlotDivision(slot_id=slot.slot_id, pieces=tuple(pieces)))


def _received(slot: SlotView, taker: CommitmentTarget, kept: Sequence[SlotView]) -> SlotView:
    """Return the slot as the taker's next one; gaps in its numbers are never filled."""
    desired = taker.desired
    assert desired is not None  # noqa: S101 - takers have a desired state
    taken_indexes = [own.slot_index for own in (*taker.slots, *kept)]
    return replace(
        slot,
        commitment_uuid=taker.commitment_uuid,
        slot_index=max(taken_indexes, default=-1) + 1,
        project_id=desired.project_id,
        domain_id=desired.domain_id,
    )


def _holds_slots(target: CommitmentTarget) -> bool:
    return (
        target.is_holding
        and target.desired is not None
        and target.desired.resource_type is ResourceType.MEMORY
    )


def _may_change_hands(slot: SlotView, desired: CommitmentState, admits: Admits) -> bool:
    """Return whether another project may have a slot."""
    return not slot.has_allocations and (slot.target_host is None or admits(slot, desired))


def _moved_along(target: CommitmentTarget, admits: Admits) -> tuple[SlotView, ...]:
    """Return the own slots; those that may follow their commitment to another project."""
    desired = target.desired
    assert desired is not None  # noqa: S101 - a holding target has a desired state
    return tuple(
        replace(slot, project_id=desired.project_id, domain_id=desired.domain_id)
        if slot.project_id != desired.project_id and _may_change_hands(slot, desired, admits)
        else slot
        for slot in target.slots
    )


def _project_of(target: CommitmentTarget) -> str:
    return target.desired.project_id if target.desired is not None else ""


def _missing_bytes(target: CommitmentTarget, own: Sequence[SlotView], now: datetime) -> int:
    desired = target.desired
    assert desired is not None  # noqa: S101 - takers have a desired state
    usable_bytes = sum(
        slot.memory_bytes
        for slot in own
        if slot.project_id == desired.project_id
        and slot.flavor_group_name == desired.flavor_group_name
        and slot.zone == desired.zone
    )
    return max(0, desired.effective_memory_bytes(now) - usable_bytes)
