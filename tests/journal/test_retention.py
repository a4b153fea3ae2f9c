"""Forgetting what is over: sessions, clocks, audit, runs; and that every table has a retention."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib.sessions.models import Session
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from commitments.models import CommitmentEvent, CompactionRun, SyncOutcome, SyncRun
from commitments.services.retention import FORGET_EVENTS, prune_runs
from commitments.services.sync_runs import last_good_run
from failover.drill_models import EvacuationPlan, FailureDrill
from failover.models import FailoverEvent
from failover.services.housekeeping import forget_old
from journal.models import AuditEntry, ProcessClock
from journal.pruning import FORGET_AUDIT, prune_append_only, prune_over
from tests.docs.tour import ROOT
from tests.factories import make_commitment, make_event

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


@pytest.fixture
def now() -> datetime:
    return timezone.now()


def sync_run(at: datetime, **fields: Any) -> SyncRun:
    chosen = {"source": "limes", "outcome": SyncOutcome.FAILED, "finished_at": at, **fields}
    return SyncRun.objects.create(started_at=at, **chosen)


def test_sessions_that_expired_and_clocks_of_ended_processes_are_forgotten(now: datetime) -> None:
    for key, days in (("a", -1), ("b", 1)):
        Session.objects.create(session_key=key, session_data="", expire_date=now + days * DAY)
    for process, days in (("web@old", -2), ("web@new", 0)):
        ProcessClock.objects.create(
            process=process, deviation_seconds=0, looked_at=now + days * DAY
        )
    assert prune_over(now=now, batch_rows=1) == {"sessions": 1, "clocks": 1, "kept_answers": 0}
    assert [row.session_key for row in Session.objects.all()] == ["b"]
    assert [row.process for row in ProcessClock.objects.all()] == ["web@new"]
    assert prune_over(now=now) == {"sessions": 0, "clocks": 0, "kept_answers": 0}


def test_old_runs_go_and_those_that_are_read_stay_however_old(now: datetime) -> None:
    old = now - 200 * DAY
    good = sync_run(old, outcome=SyncOutcome.SUCCESS, counts={"understood": 7})
    accepted = sync_run(old, outcome=SyncOutcome.GUARDED, shrink_accepted_by="ann")
    missing = sync_run(old, counts={"missing": 1})
    gone = [sync_run(old) for _ in range(3)]
    last = sync_run(old)
    imported = sync_run(old, source="region_file", outcome=SyncOutcome.SUCCESS)
    running = sync_run(old, outcome="", finished_at=None)
    compactions = [
        CompactionRun.objects.create(zone="az-a", started_at=old, finished_at=old, outcome="done")
        for _ in range(2)
    ]
    assert prune_runs(now=now) == len(gone) + 1
    kept = {good.pk, accepted.pk, missing.pk, last.pk, imported.pk, running.pk}
    assert set(SyncRun.objects.values_list("pk", flat=True)) == kept
    assert [run.pk for run in CompactionRun.objects.all()] == [compactions[1].pk]
    assert last_good_run() == accepted
    assert prune_runs(now=now) == 0


def test_old_drills_go_but_the_last_and_open_evacuations_stay(now: datetime) -> None:
    old = now - 200 * DAY
    drills = [
        FailureDrill.objects.create(
            zone="az-a",
            scope="host",
            started_at=old,
            finished_at=old,
            cases=1,
            simulated=1,
            unprotected_vms=0,
        )
        for _ in range(2)
    ]
    EvacuationPlan.objects.create(
        zone="az-a", state="done", started_at=old, changed_at=old, finished_at=old
    )
    running = EvacuationPlan.objects.create(
        zone="az-b", state="open", started_at=old, changed_at=old
    )
    forget_old(now=now)
    assert [drill.pk for drill in FailureDrill.objects.all()] == [drills[1].pk]
    assert [plan.pk for plan in EvacuationPlan.objects.all()] == [running.pk]


def test_validations_that_passed_are_told_for_a_day_and_what_happened_for_a_month(
    now: datetime,
) -> None:
    hours = timedelta(hours=1)
    kept = {("ValidationPassed", 23), ("CoverageLost", 25), ("ValidationFailed", 29 * 24)}
    gone = {("ValidationPassed", 25), ("ValidationPassed", 31 * 24), ("CoverageLost", 31 * 24)}
    for reason, ago in kept | gone:
        FailoverEvent.objects.create(happened_at=now - ago * hours, reason=reason)
    assert forget_old(now=now)["events"] == len(gone)
    left = FailoverEvent.objects.values_list("reason", "happened_at")
    assert {(reason, (now - at) // hours) for reason, at in left} == kept
    assert forget_old(now=now)["events"] == 0


def age(table: str, days: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(f"UPDATE {table} SET created_at = now() - {days} * interval '1 day'")  # noqa: S608 - ours
        cursor.execute("SET session_replication_role = origin")


def keep_days(settings: Any, days: int) -> None:
    journal = settings.HEADROOM.journal.model_copy(update={"audit_retention_days": days})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"journal": journal})


@pytest.mark.parametrize(("days", "kept"), [(0, 1), (402, 1), (400, 0)])
def test_audit_entries_are_kept_for_as_long_as_the_setting_says(
    settings: Any, now: datetime, days: int, kept: int
) -> None:
    AuditEntry.objects.create(actor="ann", action="x", object_type="Y", object_id="1")
    age("journal_auditentry", 401)
    keep_days(settings, days)
    prune_append_only(FORGET_AUDIT, now=now)
    assert AuditEntry.objects.filter(action="x").count() == kept


@pytest.mark.sql("headroom_refuse_change", "journal_triggers")
def test_forgetting_leaves_the_audit_trail_closed_to_others(now: datetime) -> None:
    AuditEntry.objects.create(actor="ann", action="x", object_type="Y", object_id="1")
    prune_append_only(FORGET_AUDIT, now=now)
    with pytest.raises(IntegrityError), transaction.atomic():
        AuditEntry.objects.all().delete()


def test_events_of_commitments_that_are_there_stay(now: datetime) -> None:
    living = make_commitment("aaaaaaaa-000001")
    make_event(living)
    gone = make_commitment("aaaaaaaa-000002")
    make_event(gone)
    gone.delete()
    age("commitments_commitmentevent", 4000)
    assert prune_append_only(FORGET_EVENTS, now=now) >= 1
    kept = set(CommitmentEvent.objects.values_list("commitment_uuid", flat=True))
    assert kept == {"aaaaaaaa-000001"}


def test_events_are_forgotten_as_far_as_they_are_old(now: datetime) -> None:
    for number, days in enumerate((4000, 3000, 10, 4000)):
        gone = make_commitment(f"aaaaaaaa-00000{number}")
        make_event(gone)
        last = CommitmentEvent.objects.latest("id")
        gone.delete()
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            CommitmentEvent.objects.filter(pk=last.pk).update(created_at=now - days * DAY)
            cursor.execute("SET session_replication_role = origin")
    assert prune_append_only(FORGET_EVENTS, now=now) == 2
    # One that got its number after a younger one waits until that is old as well.
    assert prune_append_only(FORGET_EVENTS, now=now) == 0
    assert prune_append_only(FORGET_EVENTS, now=now + 2000 * DAY) == 2


def documented_tables() -> list[str]:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## What grows")[2]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name.strip(" `") for row in rows for name in row.split(",")]


def test_every_table_is_in_the_manual_with_its_growth_and_retention() -> None:
    tables = {
        model._meta.db_table
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed
    }
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition "
            "AND relnamespace = 'public'::regnamespace"
        )
        tables |= {name for (name,) in cursor.fetchall()}
    documented = documented_tables()
    assert sorted(tables - set(documented)) == []
    assert sorted(set(documented) - tables) == []
    assert len(documented) == len(set(documented))
