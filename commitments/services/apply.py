"""Applying an admission plan: rooms, commitments, slots, events (spec liquid, 11.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError
from django.db.models import Count

from capacity.ledger.apply import (
    hold_slots,
    note_unknown_flavor,
    put_slot,
    relabel_slots,
    release_slots,
    write_slots,
)
from capacity.ledger.plan import Move, Standing
from capacity.ledger.resources import shortage_of
from capacity.ledger.rooms import lock_reservations, move_blocks
from capacity.ledger.vms import NO_VMS, slot_vm_sums
from capacity.models import (
    AllocationState,
    ReadyReason,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from commitments.domain.admission import (
    AdmissionPlan,
    CommitmentDecision,
    SlotPlacement,
)
from commitments.domain.slot_room import SlotRoom, shrunk_block
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import Cause, Ruling
from commitments.models import Commitment, CommitmentEvent, InstanceAssignment
from commitments.selectors.payg import still_running_alone
from commitments.services.admission import slot_room
from commitments.services.commitment_rows import (
    TOPIC,
    WRITTEN_FIELDS,
    WantedCommitment,
    Written,
    spec_record,
    write_decision,
)
from commitments.services.division import divide_slots
from journal.actors import Actor
from journal.errors import HeadroomError
from journal.services import Change, record_changes
from scheduling.decision import Decision, explain_removals
from scheduling.resources import ResourceVector

CREATOR = "committed-resource-controller"
ROLLBACK_CREATOR = "committed-resource-controller-rollback"


class PlanSpoiled(HeadroomError):  # noqa: N818 - the field's word: plan again
    """Somebody took the room between plan and apply; the caller plans again."""

    code = "plan_spoiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One plan with what it is applied to.

    Attributes:
        plan: The plan; its decisions stand in the order of ``wanted``.
        wanted: What was asked, one per decision.
        rows: Stored commitments by uuid.
        rooms: Stored slot primary key to what it takes.
        now: Time of the decision.
    """

    plan: AdmissionPlan
    wanted: Sequence[WantedCommitment]
    rows: Mapping[str, Commitment]
    rooms: Mapping[int, SlotRoom]
    now: datetime
    actor: Actor
    request_id: str


@dataclass(slots=True, kw_only=True)
class _Written:
    """A commitment whose row changes, with the states that the event shows."""

    row: Commitment
    decision: CommitmentDecision
    before: dict[str, Any] | None
    written: Written

    @property
    def is_news(self) -> bool:
        """Whether something happened that its story tells, not only a timer."""
        return self.written is Written.NEWS or self.decision.changes_slots

    @property
    def slots_follow(self) -> CommitmentState:
        """What the slots are held for: what was accepted before, when it is rolled back."""
        state = self.decision.target.desired
        assert state is not None  # noqa: S101 - only a deleted commitment has none
        return state


def apply_admission(application: Application) -> None:
    """Write a plan as a whole. Locks host rooms, then writes commitments, then reservations.

    Raises:
        PlanSpoiled: a host has no room any more, or a VM came into a slot or left it; the caller
            rolls back and plans again.
    """
    plan = application.plan
    _require_same_vms(plan)
    _require_same_rooms(plan, application.rooms)
    refused = move_blocks(ReservationKind.COMMITTED, plan.block_deltas)
    if refused:
        raise PlanSpoiled(
            f"{len(refused)} host(s) filled up while the request was planned", hosts=refused
        )
    written, gone = _decide_rows(application)
    _save_commitments([item.row for item in written if item.written is not Written.UNCHANGED])
    owners = {item.row.commitment_uuid: item.row for item in written}
    divide_slots(plan.divisions, {uuid: row.pk for uuid, row in owners.items()})
    release_slots(plan.released_slot_ids)
    try:
        _change_slots(application, owners)
        for item in written:
            _relabel(item, application)
        _create_slots(written, application)
    except IntegrityError as error:
        shortage = shortage_of(error)
        if not shortage:
            raise
        raise PlanSpoiled(f"a host filled up while the request was planned: {shortage}") from error
    Commitment.objects.filter(pk__in=[row.pk for row in gone]).delete()
    _record(application, written, gone)


def _require_same_vms(plan: AdmissionPlan) -> None:
    """Lock the running VMs that get slots, and see that they run where they did and are in none."""
    wanted = {
        placement.vm.vm_uuid: placement.vm.host_id
        for decision in plan.decisions
        for placement in decision.placements
        if placement.vm is not None
    }
    if wanted and still_running_alone(wanted) != wanted:
        raise PlanSpoiled(
            "a running VM moved or came into a slot while the request was planned",
            vms=sorted(wanted),
        )


def _require_same_rooms(plan: AdmissionPlan, rooms: Mapping[int, SlotRoom]) -> None:
    """Lock the stored slots that the plan changes and see that they are as it was planned.

    VMs are booked into slots without the zone lock (spec scheduling, 16.2).
    """
    touched = {
        *plan.released_slot_ids,
        *(handover.slot_id for handover in plan.handovers),
        *(division.slot_id for division in plan.divisions),
        *(
            shrink.slot_id
            for decision in plan.decisions
            if decision.slot_plan is not None
            for shrink in decision.slot_plan.shrinks
        ),
        *(
            placement.slot_id
            for decision in plan.decisions
            for placement in decision.placements
            if placement.slot_id is not None
        ),
    }
    if not touched:
        return
    known_hosts = {host_id for slot_id in touched for host_id in rooms[slot_id].host_ids}
    slots = lock_reservations(touched, hosts={*plan.block_deltas, *known_hosts})
    inside = slot_vm_sums(touched)
    spoiled = sorted(
        slot_id
        for slot_id in touched
        if slot_id not in slots
        or slot_room(slots[slot_id], inside.get(slot_id, NO_VMS)) != rooms[slot_id]
    )
    if spoiled:
        raise PlanSpoiled(
            f"{len(spoiled)} slot(s) changed while the request was planned", slots=spoiled
        )


def _decide_rows(application: Application) -> tuple[list[_Written], list[Commitment]]:
    written: list[_Written] = []
    gone: list[Commitment] = []
    vm_counts = _assigned_vm_counts(application.rows.values())
    for wanted, decision in zip(application.wanted, application.plan.decisions, strict=True):
        stored = application.rows.get(wanted.commitment_uuid)
        if decision.outcome is Ruling.DELETED:
            if stored is not None:
                gone.append(stored)
            continue
        before = spec_record(stored) if stored is not None else None
        row = stored or Commitment(commitment_uuid=wanted.commitment_uuid)
        outcome = write_decision(
            row,
            decision,
            wanted,
            application.now,
            assigned_vm_count=vm_counts.get(row.pk, 0),
        )
        written.append(_Written(row=row, decision=decision, before=before, written=outcome))
    return written, gone


def _assigned_vm_counts(rows: Iterable[Commitment]) -> dict[int, int]:
    """Return how many VMs each stored commitment covers."""
    ids = [row.pk for row in rows]
    if not ids:
        return {}
    counts = InstanceAssignment.objects.filter(commitment_id__in=ids).order_by()
    return dict(
        counts.values("commitment_id").annotate(vms=Count("pk")).values_list("commitment_id", "vms")
    )


def _save_commitments(rows: Sequence[Commitment]) -> None:
    """Write commitments, stored ones by primary key: so whoever counts their usage locks them."""
    new = [row for row in rows if row.pk is None]
    stored = sorted((row for row in rows if row.pk is not None), key=lambda row: row.pk)
    Commitment.objects.bulk_create(new, batch_size=500)
    if stored:
        Commitment.objects.bulk_create(
            stored,
            batch_size=500,
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=WRITTEN_FIELDS,
        )


def _change_slots(application: Application, owners: Mapping[str, Commitment]) -> None:
    """Write the stored slots that change their owner, get smaller, or get a host."""
    plan, rooms = application.plan, application.rooms
    plans = [decision.slot_plan for decision in plan.decisions if decision.slot_plan is not None]
    shrinks = [shrink for slot_plan in plans for shrink in slot_plan.shrinks]
    placed = {
        placement.slot_id: placement
        for decision in plan.decisions
        if decision.slot_plan is not None
        for placement in decision.placements
        if placement.slot_id is not None
    }
    changing = {
        *(handover.slot_id for handover in plan.handovers),
        *(shrink.slot_id for shrink in shrinks),
        *placed,
    }
    if not changing:
        return
    slots = Reservation.objects.in_bulk(changing)
    for handover in plan.handovers:
        slot = slots[handover.slot_id]
        slot.commitment = owners[handover.commitment_uuid]
        slot.slot_index = handover.slot_index
    for shrink in shrinks:
        slot, room = slots[shrink.slot_id], rooms[shrink.slot_id]
        smaller = ResourceVector(memory_bytes=shrink.memory_bytes, vcpus=shrink.vcpus)
        block = shrunk_block(room, smaller) if room.host_ids else ResourceVector()
        slot.memory_bytes, slot.vcpus = smaller.memory_bytes, smaller.vcpus
        slot.blocked_memory_bytes, slot.blocked_vcpus = block.memory_bytes, block.vcpus
    for slot_id, placement in placed.items():
        if slot_id in slots:
            put_slot(slots[slot_id], _move(placement), now=application.now)
    write_slots(slots.values())


def _relabel(item: _Written, application: Application) -> None:
    """Write what the slots of a commitment are held for, or why no host is looked for."""
    plan, row = item.decision.slot_plan, item.row
    if plan is None:
        if item.decision.cause is Cause.STRUCTURAL and item.decision.target.slots:
            note_unknown_flavor(row.pk, item.decision.message, now=application.now)
    elif item.decision.target.slots or application.plan.handovers or application.plan.divisions:
        held_for = item.slots_follow
        relabel_slots(
            row.pk,
            {
                "parent_generation": row.generation,
                "observed_parent_generation": row.generation,
                "project_id": held_for.project_id,
                "domain_id": held_for.domain_id,
                "start_time": held_for.start_time,
                "end_time": held_for.end_time,
            },
        )


def _create_slots(written: Sequence[_Written], application: Application) -> None:
    """Write the new slots of all commitments, and the VMs they are made for, in few statements."""
    placements = [
        (item, placement)
        for item in written
        for placement in item.decision.placements
        if placement.slot_id is None
    ]
    slots = [_new_slot(item, placement, application) for item, placement in placements]
    hold_slots(
        slots,
        [
            ReservationAllocation(
                reservation=slot,
                vm_uuid=placement.vm.vm_uuid,
                state=AllocationState.CONFIRMED,
                memory_bytes=placement.vm.resources.memory_bytes,
                vcpus=placement.vm.resources.vcpus,
                since=application.now,
                confirmed_host_id=placement.vm.host_id,
                confirmed_at=application.now,
            )
            for slot, (_, placement) in zip(slots, placements, strict=True)
            if placement.vm is not None
        ],
    )


def _new_slot(item: _Written, placement: SlotPlacement, application: Application) -> Reservation:
    row, held_for = item.row, item.slots_follow
    is_rollback = item.decision.outcome is Ruling.REJECTED
    slot = Reservation(
        kind=ReservationKind.COMMITTED,
        zone=held_for.zone,
        flavor_group_name=held_for.flavor_group_name,
        resource_name=placement.resource_name,
        project_id=held_for.project_id,
        domain_id=held_for.domain_id,
        memory_bytes=placement.slot.memory_bytes,
        vcpus=placement.slot.vcpus,
        commitment=row,
        slot_index=placement.slot_index,
        start_time=held_for.start_time,
        end_time=held_for.end_time,
        creator=ROLLBACK_CREATOR if is_rollback else CREATOR,
        creator_request_id=row.creator_request_id or application.request_id,
        parent_generation=row.generation,
        observed_parent_generation=row.generation,
    )
    put_slot(slot, _move(placement), now=application.now)
    return slot


def _move(placement: SlotPlacement) -> Move:
    """Return that a slot goes to the host chosen for it, or why there is none."""
    decision = placement.decision
    return Move(
        slot_id=placement.slot_id or 0,
        host_id=placement.host_id,
        block=placement.block,
        standing=Standing(
            reason=_ready_reason(placement),
            message=_placement_text(placement),
            decision=decision_record(decision) if decision is not None else None,
        ),
    )


def _ready_reason(placement: SlotPlacement) -> ReadyReason:
    if placement.vm is not None:
        return ReadyReason.PRE_ALLOCATED
    if placement.host_id is not None:
        return ReadyReason.ACTIVE
    if not placement.resource_name:
        return ReadyReason.MISSING_FLAVOR
    decision = placement.decision
    knows_no_host = decision is not None and not decision.candidates_in
    return ReadyReason.NO_HOSTS_AVAILABLE if knows_no_host else ReadyReason.NO_HOSTS_FOUND


def _placement_text(placement: SlotPlacement) -> str:
    if placement.vm is not None:
        return f"made for VM {placement.vm.vm_uuid}, which runs on {placement.vm.host_name}"
    if not placement.resource_name:
        return "it names no flavor, so no host is asked for it; deleted, it is made anew"
    if placement.decision is None:
        return "nothing to place"
    return explain_removals(placement.decision)


def decision_record(decision: Decision) -> dict[str, Any]:
    """Return a scheduling decision as it is stored: who was removed, who won, who came next."""
    return {
        "pipeline": decision.pipeline,
        "candidates_in": decision.candidates_in,
        "removals": [
            {"step": removal.step, "removed": removal.removed, "remaining": removal.remaining}
            for removal in decision.removals
        ],
        "host": decision.host_name,
        "top": [
            {
                "host": candidate.host_name,
                "score": round(candidate.score, 6),
                "contributions": {name: round(share, 6) for name, share in candidate.contributions},
            }
            for candidate in decision.top
        ],
        "closest": decision.closest.host_name if decision.closest is not None else None,
    }


def _record(
    application: Application, written: Sequence[_Written], gone: Sequence[Commitment]
) -> None:
    """Write event, audit and outbox rows of what changed, each in one statement."""
    changes = [_change(item) for item in written if item.is_news]
    changes += [
        Change(
            action="commitment_deleted",
            object_type="Commitment",
            object_id=row.commitment_uuid,
            before=spec_record(row),
            reason="deleted by the caller",
            topic=TOPIC,
        )
        for row in gone
    ]
    CommitmentEvent.objects.bulk_create(
        CommitmentEvent(
            commitment_uuid=change.object_id,
            actor=application.actor.name,
            request_id=application.request_id,
            action=change.action,
            before=change.before,
            after=change.after,
            reason=change.reason,
        )
        for change in changes
    )
    record_changes(changes, actor=application.actor, request_id=application.request_id)


def _change(item: _Written) -> Change:
    return Change(
        action=f"commitment_{item.decision.outcome.value}",
        object_type="Commitment",
        object_id=item.row.commitment_uuid,
        before=item.before,
        after=spec_record(item.row),
        reason=_renewal_text(item.decision) or item.row.ready_message,
        topic=TOPIC,
    )


def _renewal_text(decision: CommitmentDecision) -> str:
    plan = decision.slot_plan
    if plan is None or not plan.renew_ids:
        return ""
    return (
        f"flavors changed size: {len(plan.renew_ids)} empty slot(s) of old sizes were replaced by "
        f"{plan.created}"
    )
