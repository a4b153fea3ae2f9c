"""Freeing whole hosts by moving empty slots (spec commitments, 25 item 9).

A run plans on a snapshot without any lock. Then each host is freed in a transaction of its own,
under the zone's lock: all its slots get their new room, then give back the old, or none moves. What
a step stands on is looked at again first, so whatever others did meanwhile, a commitment holds at
every moment what it held before, and a step that would free nothing is not taken. A run that dies
leaves whole steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.db import DatabaseError, transaction
from django.db.models import F

from capacity.host_table import current_host_table
from capacity.ledger.apply import move_slots, write_slots
from capacity.ledger.leaving import leaving_room
from capacity.ledger.placing import place_slots
from capacity.ledger.plan import Move, Standing
from capacity.ledger.rooms import lock_reservations
from capacity.locks import zone_lock
from capacity.models import HostCapacity, Reservation, ReservationAllocation, ReservationKind
from capacity.nova.slot_requests import HeldSlot, held_slots
from commitments.metrics.slots import COMPACTION_RUNS, HOSTS_FREED, SLOTS_COMPACTED
from commitments.models import CompactionOutcome, CompactionRun
from commitments.selectors.compaction import (
    AskBook,
    movable_slots,
)
from commitments.services.apply import PlanSpoiled, decision_record
from commitments.services.compaction_plans import (
    PlannedCompaction,
    Release,
    SlotMove,
    plan_zone,
    refusal_of_facts,
)
from commitments.services.slot_story import SlotNews, record_slot_news
from core.jobs import Run
from hosts.models import Instance
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import Busy, NotReady
from journal.leases import held_lease
from scheduling.decision import Decision, explain_removals

KEPT = timedelta(days=90)


def begin_run(zone: str, *, now: datetime, actor: Actor, request_id: str) -> CompactionRun:
    """Write the row of a run that starts; the caller holds the lock of the zone's runs.

    Runs of the zone without an end died, since no other can be running.
    """
    with transaction.atomic(durable=True):
        runs = CompactionRun.objects.filter(zone=zone)
        runs.filter(finished_at__isnull=True).update(
            finished_at=now,
            outcome=CompactionOutcome.ABANDONED,
            message="the process died in the middle; the hosts it freed stay free",
        )
        runs.filter(started_at__lt=now - KEPT).delete()
        return CompactionRun.objects.create(
            zone=zone, started_at=now, actor=actor.name, request_id=request_id
        )


def note_release(run: CompactionRun, *, slots_moved: int) -> None:
    """Count a host that was freed, in the transaction that frees it."""
    CompactionRun.objects.filter(pk=run.pk).update(
        hosts_freed=F("hosts_freed") + 1, slots_moved=F("slots_moved") + slots_moved
    )


def finish_run(
    run: CompactionRun,
    outcome: CompactionOutcome,
    *,
    message: str = "",
    hosts_planned: int = 0,
    hosts_refused: int = 0,
    counts: Mapping[str, int] | None = None,
) -> CompactionRun:
    """Write how a run ended, and return it as it is stored."""
    CompactionRun.objects.filter(pk=run.pk).update(
        finished_at=database_now(),
        outcome=outcome,
        message=message,
        hosts_planned=hosts_planned,
        hosts_refused=hosts_refused,
        counts=dict(counts or {}),
    )
    COMPACTION_RUNS.labels(outcome=outcome.value).inc()
    run.refresh_from_db()
    return run


log = structlog.get_logger(__name__)

LOCK_NAME: Final = "commitments.compact_slots"
ACTION: Final = "slot_moved_to_free_host"
SAME_FIELDS: Final = (
    "target_host_id",
    "confirmed_host_id",
    "memory_bytes",
    "vcpus",
    "blocked_memory_bytes",
    "blocked_vcpus",
    "is_ready",
)
ROOM_COLUMNS: Final = tuple(
    f"{kind}_{part}"
    for kind in ("allocated", *ReservationKind.values)
    for part in ("memory_bytes", "vcpus")
)

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What a run did.

    Attributes:
        run: Its row; None when another run is at work in the zone.
        plan: What it set out to do.
    """

    zone: str
    run: CompactionRun | None = None
    plan: PlannedCompaction | None = None


def compact_zone(
    zone: str,
    *,
    actor: Actor,
    request_id: str,
    now: datetime,
    most_moves: int | None = None,
    on_step: OnStep | None = None,
) -> Compaction:
    """Free hosts of a zone by moving empty slots. Only one such run of a zone is on at a time.

    Args:
        most_moves: Most slots to move; the setting's when left out.
        on_step: Told after each host how many are done, of how many.
    """
    with held_lease(f"{LOCK_NAME}:{zone}") as is_ours:
        if not is_ours:
            log.info("compaction_skipped", zone=zone)
            return Compaction(zone=zone)
        row = begin_run(zone, now=now, actor=actor, request_id=request_id)
        work = _Run(row=row, actor=actor, request_id=request_id, now=now)
        try:
            return work.done(most_moves, on_step)
        except Exception as error:
            finish_run(row, CompactionOutcome.FAILED, message=str(error) or type(error).__name__)
            raise


@dataclass(slots=True, kw_only=True)
class _Run(Run):
    """One run; gone when it ends."""

    row: CompactionRun

    def done(self, most_moves: int | None, on_step: OnStep | None) -> Compaction:
        """Plan, carry out, and write how it went."""
        zone = self.row.zone
        refusal = refusal_of_facts(zone, self.now)
        if refusal:
            log.warning("compaction_refused", zone=zone, reason=refusal)
            run = finish_run(self.row, CompactionOutcome.REFUSED, message=refusal)
            return Compaction(
                zone=zone, run=run, plan=PlannedCompaction(zone=zone, refusal=refusal)
            )
        try:
            plan = plan_zone(zone, now=self.now, most_moves=most_moves)
        except NotReady as error:
            run = finish_run(self.row, CompactionOutcome.FAILED, message=error.message)
            return Compaction(zone=zone, run=run)
        refused, message = self._carry_out(plan.releases, on_step)
        outcome = CompactionOutcome.LIMITED if plan.not_tried else CompactionOutcome.DONE
        run = finish_run(
            self.row,
            CompactionOutcome.BUSY if message else outcome,
            message=message,
            hosts_planned=len(plan.releases),
            hosts_refused=refused,
            counts=_counts(plan),
        )
        return Compaction(zone=zone, run=run, plan=plan)

    def _carry_out(self, releases: Sequence[Release], on_step: OnStep | None) -> tuple[int, str]:
        """Free host after host; return how many others got in the way of, and why it stopped."""
        refused = 0
        for number, release in enumerate(releases, start=1):
            try:
                refused += not self._freed(release)
            except Busy as busy:
                return refused, busy.message
            if on_step is not None:
                on_step(number, len(releases))
        return refused, ""

    def _freed(self, release: Release) -> bool:
        """Free one host in a transaction of its own; False if others got in the way.

        Raises:
            Busy: a planner has the zone for longer than the lock timeout.
        """
        try:
            with transaction.atomic(durable=True):
                zone_lock([self.row.zone])
                self._move(release)
        except (PlanSpoiled, DatabaseError) as problem:
            log.info(
                "host_not_freed",
                zone=self.row.zone,
                host=release.host_name,
                reason=str(problem),
            )
            return False
        HOSTS_FREED.inc()
        SLOTS_COMPACTED.inc(len(release.moves))
        return True

    def _move(self, release: Release) -> None:
        """Move all slots of a host.

        Raises:
            PlanSpoiled: what the plan stands on has changed; the caller rolls back.
        """
        ids = [move.slot_id for move in release.moves]
        chosen = movable_slots(self.row.zone, self.now).filter(
            pk__in=ids, target_host_id=release.host_id
        )
        slots = {row.pk: row for row in chosen}
        _require(len(slots) == len(ids), "a slot is not empty, or not there any more")
        decisions = self._decisions(release, held_slots(chosen))
        targets = {move.host_id for move in release.moves}
        locked = lock_reservations(ids, hosts={release.host_id, *targets})
        _require(_are_same(slots, locked), "a slot changed, or a VM came into it")
        in_use = not any(_is_free(host_id) for host_id in targets)
        _require(in_use, "a host that was to take slots is free itself now")
        moves = (
            _move(move, locked[move.slot_id], release.host_name, decisions[move.slot_id])
            for move in release.moves
        )
        _require(
            not move_slots(locked, moves, now=self.now), "a host that was to take slots filled up"
        )
        write_slots(locked.values())
        record_slot_news(
            [
                SlotNews(
                    slot=locked[move.slot_id],
                    lines=[f"moved to {move.host_name}, so that {release.host_name} is free"],
                )
                for move in release.moves
            ],
            actor=self.actor,
            request_id=self.request_id,
            action=ACTION,
        )
        _require(_is_free(release.host_id), "something else came to the host")
        note_release(self.row, slots_moved=len(ids))

    def _decisions(self, release: Release, slots: Sequence[HeldSlot]) -> dict[int, Decision]:
        """Ask the scheduler about every move."""
        table = current_host_table()
        book, target = AskBook(slots, table), _targets(release)
        wanted = []
        for slot in slots:
            ask = book.own_ask_for(slot)
            _require(ask is not None, "a slot must stay where it is now")
            if ask is not None:
                wanted.append(replace(ask, only_hosts=frozenset({target[slot.slot_id]})))
        decisions: dict[int, Decision] = {}
        for ask, decision in zip(wanted, place_slots(table, wanted), strict=True):
            agrees = decision is not None and decision.host_name in (ask.only_hosts or ())
            _require(agrees, "the scheduler does not let a slot go where it was to go any more")
            if decision is not None and ask.slot_id is not None:
                decisions[ask.slot_id] = decision
        return decisions


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise PlanSpoiled(otherwise)


def _counts(plan: PlannedCompaction) -> dict[str, int]:
    counts = {use.value: count for use, count in plan.uses.items()}
    counts |= {"no_room": plan.no_room, "not_tried": plan.not_tried}
    return {name: count for name, count in sorted(counts.items()) if count}


def _are_same(slots: Mapping[int, Reservation], locked: Mapping[int, Reservation]) -> bool:
    """Whether slots are under lock what they were before, and still without VMs."""
    if slots.keys() != locked.keys():
        return False
    if ReservationAllocation.objects.filter(reservation_id__in=list(locked)).exists():
        return False
    return all(
        getattr(slots[pk], name) == getattr(locked[pk], name)
        for pk in slots
        for name in SAME_FIELDS
    )


def _is_free(host_id: int) -> bool:
    """Whether a host holds nothing but what its agent gives back; its room is locked."""
    leaving = leaving_room(host_id)
    held = dict.fromkeys(ROOM_COLUMNS, 0) | {
        "committed_memory_bytes": leaving.memory_bytes,
        "committed_vcpus": leaving.vcpus,
    }
    holds_nothing = HostCapacity.objects.filter(host_id=host_id, **held)
    return holds_nothing.exists() and not Instance.objects.filter(host_id=host_id).exists()


def _targets(release: Release) -> dict[int, str]:
    return {move.slot_id: move.host_name for move in release.moves}


def _move(move: SlotMove, slot: Reservation, host_name: str, decision: Decision) -> Move:
    message = f"moved here so that {host_name} is free; {explain_removals(decision)}"
    return Move(
        slot_id=move.slot_id,
        host_id=move.host_id,
        block=move.size,
        standing=Standing(
            reason=slot.ready_reason, message=message, decision=decision_record(decision)
        ),
    )
