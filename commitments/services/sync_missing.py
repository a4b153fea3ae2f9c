"""Ending commitments that Limes stopped listing, and forgetting rows that are long over.

Source: spec commitments, 16.7; spec liquid, 15.4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from capacity.locks import zone_lock
from capacity.models import Reservation
from commitments.domain.statuses import FINAL_STATUSES, CommitmentStatus
from commitments.domain.sync_guard import MissingPlan, StoredRow, SyncRules, plan_missing
from commitments.models import Commitment, CommitmentEvent, Condition, InstanceAssignment
from commitments.selectors.live import live_commitments
from commitments.services.commitment_rows import spec_record
from commitments.services.intake import BATCH_ROWS, SeenRows, tell
from journal.actors import Actor
from journal.clock import TOLERANCE, trusted

ORIGIN_SYNC = "sync"
ENDED_REASON = "Limes does not list it any more"
NEVER_LISTED_REASON = "Limes never listed it: our answer to its request was lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingResult:
    """What was done about commitments that Limes does not list.

    Attributes:
        missed: Missing, those that were ended included.
        ended: Missing long enough: superseded now.
        deleted: Rows that were over for long and are gone.
    """

    missed: int = 0
    ended: int = 0
    deleted: int = 0


def live_rows(seen: SeenRows, now: datetime) -> Iterator[StoredRow]:
    """Yield stored commitments that are not over, with what they missed so far."""
    rows = live_commitments(now).order_by("pk")
    for pk, uuid, generation, missed_syncs, missing_since in rows.values_list(
        "pk", "commitment_uuid", "generation", "missed_syncs", "missing_since"
    ).iterator(chunk_size=5000):
        yield StoredRow(
            pk=pk,
            commitment_uuid=uuid,
            missed_syncs=missed_syncs,
            missing_since=trusted(missing_since, now),
            is_untouched=seen.generations.get(uuid) == generation,
        )


def mark_listed(known: Collection[str], now: datetime) -> None:
    """Note of commitments that a run found for the first time that Limes lists them.

    Locks their rows, and no other, in order of primary key. One transaction.

    Args:
        known: Uuids that Limes lists, whether we understand them or not.
        now: Start of the run.
    """
    unmarked = Commitment.objects.filter(first_listed_at__isnull=True).order_by("pk")
    pks = [pk for pk, uuid in unmarked.values_list("pk", "commitment_uuid") if uuid in known]
    if not pks:
        return
    with transaction.atomic(durable=True):
        _locked(pks)
        Commitment.objects.filter(pk__in=pks).update(first_listed_at=now)


def never_listed(
    known: Collection[str], seen: SeenRows, *, rules: SyncRules, now: datetime
) -> frozenset[str]:
    """Return live commitments that no run ever found, this one neither.

    Only those count that were stored before reading began and that nothing happened to for the
    grace before it: Limes stores a commitment after we accepted it. Whether one was changed
    while Limes was read is asked again when it ends.

    Args:
        known: Uuids that Limes lists.
        seen: Rows as they were when reading from Limes began.
        rules: Thresholds.
        now: Start of the run, by the database's clock.
    """
    quiet_since = now - rules.unlisted_grace
    rows = live_commitments(now).filter(
        first_listed_at__isnull=True, limes_record__isnull=True, created_at__lte=quiet_since
    )
    uuids = rows.order_by().values_list("commitment_uuid", flat=True)
    candidates = {uuid for uuid in uuids if uuid not in known and uuid in seen.generations}
    if not candidates:
        return frozenset()
    events = CommitmentEvent.objects.filter(
        commitment_uuid__in=candidates, created_at__gt=quiet_since
    )
    return frozenset(candidates - set(events.values_list("commitment_uuid", flat=True)))


def settle_missing(
    known: Collection[str],
    seen: SeenRows,
    *,
    rules: SyncRules,
    now: datetime,
    actor: Actor,
    request_id: str,
    unheard: Collection[str] = (),
) -> MissingResult:
    """Count, end and forget commitments that Limes does not list. Runs in the caller's transaction.

    Takes the zone locks of commitments that it ends, then rows in order of primary key. Nothing is
    released here: an ended commitment is due for repair, which gives its capacity back.

    Args:
        known: Uuids that Limes lists.
        seen: Rows as they were when reading from Limes began.
        rules: Thresholds.
        now: Start of the run.
        unheard: What :func:`never_listed` found.
    """
    plan = plan_missing(live_rows(seen, now), known, rules=rules, now=now, never_listed=unheard)
    rows = _end(plan, seen, now)
    tell([_ending(row, before, unheard, actor, request_id) for row, before in rows])
    ended = [row for row, _ in rows]
    _count(plan, {row.pk for row in ended}, now)
    deleted = _forget(known, rules, now, actor, request_id)
    return MissingResult(missed=len(plan.missed), ended=len(ended), deleted=deleted)


def _end(
    plan: MissingPlan, seen: SeenRows, now: datetime
) -> list[tuple[Commitment, dict[str, Any]]]:
    """End rows that nobody changed meanwhile, and return each with what it was."""
    zones = Commitment.objects.filter(pk__in=plan.ended).order_by().values_list("zone").distinct()
    zone_lock(zone for (zone,) in zones)
    rows = [
        row
        for row in _locked(plan.ended)
        if seen.generations.get(row.commitment_uuid) == row.generation
    ]
    ended = [(row, spec_record(row)) for row in rows]
    for row in rows:
        row.state, row.origin = CommitmentStatus.SUPERSEDED.value, ORIGIN_SYNC
        row.generation += 1
        row.next_reconcile_at = now
        row.missed_syncs, row.missing_since = 0, None
    Commitment.objects.bulk_update(
        rows,
        ("state", "origin", "generation", "next_reconcile_at", "missed_syncs", "missing_since"),
        batch_size=BATCH_ROWS,
    )
    return ended


def _ending(
    row: Commitment,
    before: dict[str, Any],
    unheard: Collection[str],
    actor: Actor,
    request_id: str,
) -> CommitmentEvent:
    was_listed = row.commitment_uuid not in unheard
    return CommitmentEvent(
        commitment_uuid=row.commitment_uuid,
        actor=actor.name,
        request_id=request_id,
        action="commitment_missing_ended",
        before=before,
        after=spec_record(row),
        reason=ENDED_REASON if was_listed else NEVER_LISTED_REASON,
    )


def _count(plan: MissingPlan, ended: set[int], now: datetime) -> None:
    found_again, missed = list(plan.found_again), [pk for pk in plan.missed if pk not in ended]
    if not found_again and not missed:
        return
    rows = {row.pk: row for row in _locked([*found_again, *missed])}
    for pk in found_again:
        if pk in rows:
            rows[pk].missed_syncs, rows[pk].missing_since = 0, None
    for pk in missed:
        if pk in rows:
            rows[pk].missed_syncs += 1
            rows[pk].missing_since = trusted(rows[pk].missing_since, now) or now
    Commitment.objects.bulk_update(
        rows.values(), ("missed_syncs", "missing_since"), batch_size=BATCH_ROWS
    )


def _forget(
    known: Collection[str], rules: SyncRules, now: datetime, actor: Actor, request_id: str
) -> int:
    """Delete rows that are over and whose slots went long ago; Limes hides them.

    Over is what is past its end; what has none, once its state is final. A row that was given
    another end while its lock was waited for is not.
    """
    endless = Q(end_time__isnull=True, state__in=[status.value for status in FINAL_STATUSES])
    over = Commitment.objects.filter(
        Q(end_time__lte=now) | endless,
        Q(ready_changed_at__lte=now - rules.expired_retention)
        | Q(ready_changed_at__gt=now + TOLERANCE),
        ready_reason__in=(Condition.EXPIRED, Condition.SUPERSEDED),
        next_reconcile_at__isnull=True,
    ).exclude(Exists(Reservation.objects.filter(commitment=OuterRef("pk"))))
    unlisted = over.values_list("pk", "commitment_uuid")
    locked = _locked([pk for pk, uuid in unlisted if uuid not in known])
    pks = set(over.filter(pk__in=[row.pk for row in locked]).values_list("pk", flat=True))
    rows = [row for row in locked if row.pk in pks]
    if not pks:
        return 0
    InstanceAssignment.objects.filter(commitment_id__in=pks).delete()
    Commitment.objects.filter(pk__in=pks).delete()
    events = [
        CommitmentEvent(
            commitment_uuid=row.commitment_uuid,
            actor=actor.name,
            request_id=request_id,
            action="commitment_forgotten",
            before=spec_record(row),
            reason=f"{_ended(row)}, its slots went {row.ready_changed_at:%Y-%m-%d}",
        )
        for row in rows
    ]
    tell(events)
    return len(pks)


def _ended(row: Commitment) -> str:
    if row.end_time is None:
        return f"{row.state} without an end"
    return f"ended {row.end_time:%Y-%m-%d}"


def _locked(pks: Sequence[int]) -> list[Commitment]:
    if not pks:
        return []
    rows = Commitment.objects.filter(pk__in=pks).order_by("pk")
    return list(rows.select_for_update(of=("self",), no_key=True))
