"""The database's time everywhere: who asks for it, who follows it, and who must not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from celery.exceptions import Reject
from django.conf import settings
from django.db import connection, transaction

from config.celery_app import app
from hosts.models import PlannedHostChange
from journal import clock, task_clock
from journal.beat import LeasedScheduler
from journal.clock import FollowedClock, database_now, followed_clock
from journal.health import check_beat
from journal.models import BeatEntry, Heartbeat, ProcessClock
from journal.task_clock import ClockedRequest
from tests.factories import make_host
from tests.journal.schedulers import send_due
from tests.scraping import scrape

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)

#: What reads the clock of the machine or writes it into rows.
WALL_CLOCK = re.compile(
    r"timezone\.now\b|datetime\.now\b|\.utcnow\b|\btime\.time\b(?!out)|date\.today\b|\bauto_now"
)

#: Where that is right, and why.
ALLOWED = {
    "journal/clock.py": "compares it with the database's",
    "journal/keystone.py": "Keystone's ends of tokens, kept in the process",
    "placement/api/rendering.py": "a header of an answer, stored nowhere",
    "journal/tracing.py": "a header of a message, told of one that waits; no row has it",
    "hosts/management/commands/dump_region.py": "needs no database; says when a file was written",
    "core/doctor/own.py": "compares it with the database's",
    "hosts/clients/cloud_probe.py": "compares it with the cloud's",
    "commitments/management/commands/check_commitments.py": "asks a server over HTTP, no database",
}
PRODUCT = (
    "bridge",
    "capacity",
    "commitments",
    "console",
    "core",
    "failover",
    "hosts",
    "journal",
    "placement",
)


def test_nothing_new_reads_the_clock_of_the_machine() -> None:
    root = Path(settings.BASE_DIR)
    users = {
        str(path.relative_to(root))
        for app_name in PRODUCT
        for path in (root / app_name).rglob("*.py")
        if "migrations" not in path.parts and WALL_CLOCK.search(path.read_text(encoding="utf-8"))
    }
    assert users == set(ALLOWED), "use journal.clock.database_now, or db_default=Now()"


def test_the_present_is_the_databases_and_goes_on_within_a_transaction() -> None:
    with transaction.atomic():
        first = database_now()
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            (between,) = cursor.fetchone() or (first,)
        last = database_now()
    assert first <= between <= last
    assert first.utcoffset() == timedelta(0)


def test_times_of_rows_come_from_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is a day ahead saves rows, by whatever way."""
    ahead = datetime.now(UTC) + DAY
    monkeypatch.setattr("django.utils.timezone.now", lambda: ahead)
    host = make_host("h1")
    change = PlannedHostChange.objects.create(edit="drain", at=ahead, host=host)
    for row in (host, change):
        row.save()
        row.refresh_from_db()
        assert row.created_at < ahead - DAY / 2
        assert row.updated_at < ahead - DAY / 2
        assert row.created_at <= row.updated_at


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The wall clock of this process, to be set."""
    hands = SimpleNamespace(ahead=timedelta())
    monkeypatch.setattr(clock, "_wall", lambda: datetime.now(UTC) + hands.ahead)
    monkeypatch.setattr(task_clock, "REFUSAL_PAUSE_SECONDS", 0.0)
    followed_clock.forget()
    yield hands
    followed_clock.forget()


def test_a_process_follows_the_database_whatever_its_own_clock_does(
    wall: SimpleNamespace,
) -> None:
    follower = FollowedClock()
    for ahead in (timedelta(), DAY, -DAY):
        wall.ahead = ahead
        assert abs(follower.now() - database_now()) < timedelta(minutes=1)
        assert abs(follower.deviation() - ahead) < timedelta(minutes=1)
    assert not ProcessClock.objects.exists()


def test_a_look_notes_the_deviation_under_the_name_of_the_process(wall: SimpleNamespace) -> None:
    wall.ahead = DAY
    follower = FollowedClock()
    follower.now()
    follower.follow_as("celery@here")
    follower.now()
    noted = ProcessClock.objects.get()
    assert noted.process == "celery@here"
    assert abs(noted.deviation_seconds - DAY.total_seconds()) < 60
    page = scrape()
    assert "cortex_clock_refusing_processes 1.0" in page
    assert re.search(r"cortex_clock_deviation_seconds 86\d{3}\.", page)


def test_while_the_database_is_away_the_last_look_stands(
    wall: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    follower = FollowedClock()
    follower.now()
    monkeypatch.setattr(clock, "LOOK_SECONDS", 0.0)
    monkeypatch.setitem(connection.settings_dict, "HOST", str(tmp_path))
    wall.ahead = DAY
    assert abs(follower.deviation() - DAY) < timedelta(minutes=1)
    assert abs(FollowedClock().deviation()) < timedelta(minutes=1)  # it knows nothing better


@pytest.mark.parametrize(
    ("ahead", "runs"),
    [
        pytest.param(timedelta(seconds=20), True, id="20 s"),
        pytest.param(timedelta(seconds=45), False, id="45 s"),
        pytest.param(-DAY, False, id="a day behind"),
    ],
)
def test_a_task_is_given_back_when_the_clock_is_too_far_off(
    wall: SimpleNamespace, ahead: timedelta, *, runs: bool
) -> None:
    wall.ahead = ahead
    app.loader.import_default_modules()
    task = app.tasks["journal.beat"]
    task.push_request(called_directly=False, hostname="celery@here")
    try:
        if runs:
            task()
        else:
            with pytest.raises(Reject) as given_back:
                task()
            assert given_back.value.args[1] is True  # it goes back to the queue
    finally:
        task.pop_request()
    assert Heartbeat.objects.exists() is runs


@pytest.mark.parametrize(
    ("seconds", "events"),
    [
        pytest.param(4, [], id="4 s"),
        pytest.param(6, ["clock_deviates"], id="6 s"),
        pytest.param(-6, ["clock_deviates"], id="6 s behind"),
        pytest.param(45, ["clock_off_work_refused"], id="45 s"),
    ],
)
def test_a_deviation_above_five_seconds_is_logged_once_a_minute(
    wall: SimpleNamespace, seconds: int, events: list[str]
) -> None:
    wall.ahead = timedelta(seconds=seconds)
    watch = task_clock.ClockWatch()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            watch.may_work("celery@here")
    assert [line["event"] for line in lines] == events


def request_with(**times: datetime) -> ClockedRequest:
    made: Any = object.__new__(ClockedRequest)  # Any: without a message behind it
    made._expires, made._eta = times.get("expires"), times.get("eta")
    made._request_dict = {"id": "1"}
    made.id = "1"
    request: ClockedRequest = made
    return request


def test_expiry_and_start_of_a_message_are_the_databases_times(wall: SimpleNamespace) -> None:
    now = database_now()
    wall.ahead = DAY
    soon, past = now + timedelta(minutes=5), now - timedelta(minutes=5)
    assert not request_with(expires=soon).maybe_expire()
    assert request_with(expires=past).maybe_expire()
    begins = request_with(eta=soon).eta
    assert begins is not None
    assert abs(begins - (soon + DAY)) < timedelta(minutes=1)  # the timer goes by the wall clock
    assert abs(app.now() - database_now()) < timedelta(minutes=1)


def test_beat_sends_at_once_what_a_wrong_clock_said_it_sent_tomorrow(
    wall: SimpleNamespace, sent_entries: list[str]
) -> None:
    del wall
    BeatEntry.objects.create(entry="drills", last_run_at=database_now() + DAY, epoch=1)
    scheduler = LeasedScheduler(app)
    send_due(scheduler)
    assert "drills" in sent_entries
    assert BeatEntry.objects.get(entry="drills").last_run_at <= database_now()
    scheduler.close()


def test_beat_with_a_wrong_clock_sends_nothing(
    wall: SimpleNamespace, sent_entries: list[str]
) -> None:
    scheduler = LeasedScheduler(app)
    wall.ahead = DAY
    send_due(scheduler)
    assert sent_entries == []
    wall.ahead = timedelta()
    scheduler.apply_entry(scheduler.schedule["heartbeat"])
    assert sent_entries == ["heartbeat"]
    scheduler.close()


def test_a_beat_of_tomorrow_is_no_sign_of_life() -> None:
    Heartbeat.objects.create(name="beat", beaten_at=database_now() + DAY)
    assert not check_beat().is_ok
