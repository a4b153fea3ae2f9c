"""A worker and a beat whose clocks are a day ahead, beside correct ones, on real processes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment, Condition
from commitments.services.repair import repair_due_commitments
from config.celery_app import app
from config.launcher.processes import wait_until
from config.queues import QUEUES
from failover.models import FailoverZone
from failover.selectors.zone import waiting_zones
from journal.actors import Actor
from journal.clock import database_now
from journal.models import Heartbeat, ProcessClock
from tests.e2e.processes import Process, Worker
from tests.factories import make_commitment, make_group, make_hosts
from tests.ledger import assert_ledger_holds
from tests.scraping import scrape

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

DAY = timedelta(days=1)
PATIENCE_SECONDS = 150.0
QUEUES_OF_ALL = ",".join(QUEUES)
ZONE = "az-a"
SLOTS = 3
OPERATOR = Actor(name="operator")
LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@pytest.fixture
def day_ahead() -> dict[str, str]:
    """The environment of a process whose wall clock is a day ahead."""
    assert LIBRARIES, "libfaketime is not installed (Debian: faketime)"
    return {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME": "+1d",
    }


@pytest.fixture(autouse=True)
def empty_queue() -> Iterator[None]:
    """No message of other tests waits for the workers of these."""
    app.control.purge()
    yield
    app.control.purge()


@pytest.fixture
def fast_worker(tmp_path: Path, day_ahead: dict[str, str]) -> Iterator[Worker]:
    place = tmp_path / "fast"
    place.mkdir()
    # Waits of threads hang with a monotonic clock that is faked, sleeps fail with one that is not:
    # beat sleeps, a worker waits.
    overrides = {**day_ahead, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    process = Worker(directory=place, overrides=overrides, queue=QUEUES_OF_ALL, name="fast")
    yield process
    process.forget()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    place = tmp_path / "correct"
    place.mkdir()
    process = Worker(directory=place, queue=QUEUES_OF_ALL, name="correct")
    yield process
    process.forget()


def beat_process(directory: Path, **overrides: str) -> Process:
    directory.mkdir()
    return Process(role="beat", directory=directory, overrides=overrides)


@pytest.fixture
def beat(tmp_path: Path) -> Iterator[Process]:
    process = beat_process(tmp_path / "beat")
    yield process
    if process.child is not None:
        process.kill()


@pytest.fixture
def fast_beat(tmp_path: Path, day_ahead: dict[str, str]) -> Iterator[Process]:
    process = beat_process(tmp_path / "fast-beat", **day_ahead)
    yield process
    if process.child is not None:
        process.kill()


@pytest.fixture
def commitment() -> Commitment:
    """An accepted commitment that ends in twelve hours."""
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(2, memory_gib=64, vcpus=64, zone=ZONE)
    now = database_now()
    row = make_commitment(
        "aaaaaaaa-000001",
        amount_gib=SLOTS,
        state="confirmed",
        end_time=now + timedelta(hours=12),
        next_reconcile_at=now,
        zone=ZONE,
    )
    repair_due_commitments(actor=OPERATOR, request_id="req-1")
    row.refresh_from_db()
    assert row.ready_reason == Condition.ACCEPTED
    return row


def has_noted(process: str) -> bool:
    """Return whether a process has seen how far its clock is off."""
    return ProcessClock.objects.filter(
        process__startswith=process, deviation_seconds__gt=DAY.total_seconds() - 60
    ).exists()


def is_whole(row: Commitment) -> bool:
    row.refresh_from_db()
    slots = Reservation.objects.filter(commitment=row, target_host__isnull=False).count()
    return (row.ready_reason, slots) == (Condition.ACCEPTED, SLOTS)


def beaten() -> Heartbeat | None:
    return Heartbeat.objects.filter(name="beat").first()


def times_ahead() -> dict[str, int]:
    """Return the columns that hold a moment beyond the commitment's end, and in how many rows."""
    late = database_now() + timedelta(hours=13)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT table_name, column_name FROM information_schema.columns
             WHERE table_schema = current_schema() AND data_type LIKE 'timestamp%'
               AND table_name ~ '^(journal|hosts|capacity|commitments|failover|placement)_'
            """
        )
        found = {}
        for table, column in cursor.fetchall():
            count_late = f'SELECT count(*) FROM "{table}" WHERE "{column}" > %s'  # noqa: S608
            cursor.execute(count_late, [late])
            (count,) = cursor.fetchone() or (0,)
            if count:
                found[f"{table}.{column}"] = int(count)
    return found


def test_a_worker_a_day_ahead_does_no_harm_and_others_do_its_tasks(
    fast_worker: Worker, worker: Worker, beat: Process, commitment: Commitment
) -> None:
    assert times_ahead() == {}
    begun = database_now()
    fast_worker.start_unasked()  # its answer to a ping would be too old
    beat.start()
    assert wait_until(lambda: has_noted("fast@"), PATIENCE_SECONDS), fast_worker.log()
    app.send_task("commitments.dispatch_due", expires=600)
    app.send_task("failover.reconcile_zone", args=[ZONE], expires=600)
    worker.start()

    def all_is_done() -> bool:
        sign, zone = beaten(), FailoverZone.objects.filter(zone=ZONE).first()
        return bool(sign and zone and zone.next_run_at)

    assert wait_until(all_is_done, PATIENCE_SECONDS), worker.log()
    sign = beaten()
    assert sign is not None
    assert begun < sign.beaten_at <= database_now()
    assert is_whole(commitment)
    assert times_ahead() == {}
    assert_ledger_holds()
    page = scrape()
    assert "cortex_clock_refusing_processes 1.0" in page


def test_a_beat_a_day_ahead_sends_nothing(fast_beat: Process, worker: Worker) -> None:
    fast_beat.start()
    assert wait_until(lambda: has_noted("beat@"), PATIENCE_SECONDS), fast_beat.log()
    worker.start()  # it would run what was sent
    app.send_task("journal.prune")
    assert wait_until(lambda: ProcessClock.objects.filter(process="correct@test").exists(), 60.0)
    assert beaten() is None


def test_what_a_clock_a_day_ahead_did_is_repaired_by_the_ordinary_looks(
    worker: Worker, beat: Process, commitment: Commitment
) -> None:
    now = database_now()
    repair_due_commitments(actor=OPERATOR, request_id="req-2", now=now + DAY)
    commitment.refresh_from_db()
    assert commitment.ready_reason == Condition.EXPIRED
    assert not Reservation.objects.filter(commitment=commitment).exists()
    FailoverZone.objects.update_or_create(zone=ZONE, defaults={"next_run_at": now + DAY})
    HostCapacity.objects.update(oversubscription_checked_at=now + DAY)
    Heartbeat.objects.create(name="beat", beaten_at=now + DAY)
    worker.start()
    beat.start()
    assert wait_until(lambda: is_whole(commitment), PATIENCE_SECONDS), worker.log()
    assert wait_until(
        lambda: waiting_zones(database_now()).filter(zone=ZONE).exists(), PATIENCE_SECONDS
    ), worker.log()
    assert wait_until(
        lambda: not Heartbeat.objects.filter(beaten_at__gt=database_now()).exists(),
        PATIENCE_SECONDS,
    ), worker.log()
    assert_ledger_holds()
