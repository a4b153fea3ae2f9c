"""Two beats: one acts, the other takes over where it stopped, each run is sent once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from config.celery_app import app
from journal.beat import AT_ONCE, LeasedScheduler
from journal.clock import database_now
from journal.models import BeatEntry, Lease
from tests.journal.schedulers import send_due
from tests.schedule import beat_schedule

pytestmark = pytest.mark.django_db(transaction=True)

AT_START = sorted(AT_ONCE & beat_schedule().keys())


def expire() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE journal_lease SET expires_at = clock_timestamp()")


def test_one_of_two_beats_sends(sent_entries: list[str]) -> None:
    first, second = LeasedScheduler(app), LeasedScheduler(app)
    send_due(first)
    send_due(second)
    assert sorted(sent_entries) == AT_START
    assert Lease.objects.get(name="beat").epoch == 1


def test_the_other_takes_over_at_once_when_the_first_is_stopped(sent_entries: list[str]) -> None:
    first, second = LeasedScheduler(app), LeasedScheduler(app)
    send_due(first)
    send_due(second)
    sent_entries.clear()
    first.close()
    send_due(second)
    assert sorted(sent_entries) == AT_START
    assert Lease.objects.get(name="beat").epoch == 2


def test_a_beat_that_was_silent_for_too_long_sends_nothing_more(sent_entries: list[str]) -> None:
    first, second = LeasedScheduler(app), LeasedScheduler(app)
    send_due(first)
    expire()
    send_due(second)
    sent_entries.clear()
    first.apply_entry(first.schedule["drills"])  # it did not look at its lease in between
    assert sent_entries == []
    assert not BeatEntry.objects.filter(entry="drills").exists()


def test_who_takes_over_goes_on_where_the_other_stopped(sent_entries: list[str]) -> None:
    now = database_now()
    BeatEntry.objects.create(entry="decisions", last_run_at=now - timedelta(hours=2), epoch=1)
    BeatEntry.objects.create(entry="placement-audit", last_run_at=now, epoch=1)
    beat = LeasedScheduler(app)
    send_due(beat)
    assert "decisions" in sent_entries
    assert "placement-audit" not in sent_entries
    assert BeatEntry.objects.get(entry="decisions").last_run_at >= now


@pytest.mark.usefixtures("sent_entries")
@pytest.mark.parametrize("ago", [timedelta(0), timedelta(days=3)])
def test_checks_run_soon_after_a_start_and_not_before_anything_works(ago: timedelta) -> None:
    sent_at = database_now() - ago
    BeatEntry.objects.create(entry="doctor", last_run_at=sent_at, epoch=1)
    beat = LeasedScheduler(app)
    send_due(beat)
    is_due, seconds = beat.schedule["doctor"].is_due()
    assert not is_due
    assert 0 < seconds <= 45
    assert BeatEntry.objects.get(entry="doctor").last_run_at == sent_at


def test_beat_keeps_no_file(sent_entries: list[str], tmp_path: object) -> None:
    beat = LeasedScheduler(app, schedule_filename=f"{tmp_path}/schedule")
    send_due(beat)
    beat.close()
    assert list(tmp_path.iterdir()) == []  # type: ignore[attr-defined]  # a path
    assert sent_entries
