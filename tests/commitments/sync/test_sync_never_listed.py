"""Commitments that Limes asked for and forgot, because our answer was lost (spec liquid, 15.4).

They hold capacity that nobody knows of. One complete run that began long enough after them ends
them; every doubt leaves them to the ordinary count of misses.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from capacity.figures.group_capacity import ensure_totals
from capacity.locks import zone_lock
from capacity.models import Reservation
from commitments.conf import SyncSettings
from commitments.models import Commitment, CommitmentEvent, SyncRun
from commitments.services.repair import repair_due_commitments
from commitments.services.sync import sync_commitments
from commitments.services.sync_runs import accept_shrink
from journal.clock import database_now
from tests.commitments.change_requests import change, decide
from tests.factories import make_host
from tests.ledger import assert_ledger_holds
from tests.peers.fake_cloud import FakeCloud, limes_commitment

from .interrupting import Interrupting
from .world import GROUP, SYNCER, UUID, live_row, metric, sync, understood, uuid_of

pytestmark = pytest.mark.django_db(transaction=True)

RAM = f"hw_version_{GROUP}_ram"
GRACE = timedelta(seconds=SyncSettings().unlisted_grace_seconds)
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def host() -> None:
    make_host("h1", memory_gib=64, vcpus=64)
    ensure_totals("az-a")


def asked(*uuids: str, project: str = "p1", **wanted: Any) -> datetime:
    """Accept commitments as Limes asks for them, and return when."""
    now = database_now()
    wanted.setdefault("expires_at", now + timedelta(days=400))
    changes = [change(uuid, 1, **wanted) for uuid in uuids or (UUID,)]
    outcome = decide({project: {RAM: changes}}, now=now)
    assert (outcome.status, outcome.rejection_reason) == (200, "")
    return database_now()


def state(uuid: str = UUID) -> str:
    return Commitment.objects.get(commitment_uuid=uuid).state


def test_the_grace_is_ten_minutes() -> None:
    assert GRACE == 10 * MINUTE


def test_the_first_run_that_begins_after_the_grace_ends_it(cloud: FakeCloud) -> None:
    written = asked()
    assert Reservation.objects.count() == 1
    assert sync(cloud, now=written + GRACE - MINUTE).counts["ended"] == 0
    assert state() == "confirmed"
    end = written + GRACE + MINUTE
    report = sync(cloud, now=end)
    assert (report.outcome, report.counts["never_listed"], report.counts["ended"]) == (
        "success",
        1,
        1,
    )
    row = Commitment.objects.get()
    assert (row.state, row.origin, row.next_reconcile_at) == ("superseded", "sync", end)
    event = CommitmentEvent.objects.latest("pk")
    assert (event.action, event.actor) == ("commitment_missing_ended", SYNCER.name)
    assert event.reason == "Limes never listed it: our answer to its request was lost"
    repair_due_commitments(actor=SYNCER, request_id="repair", now=end)
    assert Reservation.objects.count() == 0
    assert_ledger_holds()


def test_without_a_given_time_the_clock_of_the_database_counts(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose clock is a day fast ends nothing that is a moment old."""
    written = asked()
    monkeypatch.setattr("django.utils.timezone.now", lambda: written + timedelta(days=1))
    assert sync(cloud, now=None).counts["ended"] == 0
    assert state() == "confirmed"


def test_one_that_was_listed_once_ends_by_the_count_of_misses_only(cloud: FakeCloud) -> None:
    written = asked()
    cloud.add("p1", [limes_commitment(UUID, amount=1)])
    assert sync(cloud, now=written + MINUTE).outcome == "success"
    cloud.commitments["p1"].clear()
    for hours in (1, 2, 3):
        assert sync(cloud, now=written + timedelta(hours=hours)).counts["ended"] == 0
    assert (state(), Commitment.objects.get().missed_syncs) == ("confirmed", 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"unit": "2048 MiB"},
        {"resource_name": "hw_version_other_ram"},
        {"status": "odd"},
        {"service_type": "volumev2"},
    ],
)
def test_one_that_was_listed_and_not_understood_was_listed(
    cloud: FakeCloud, fields: dict[str, Any]
) -> None:
    written = asked()
    understood(cloud)
    cloud.add("p1", [limes_commitment(UUID) | fields])
    assert sync(cloud, now=written + MINUTE).outcome == "success"
    row = Commitment.objects.get(commitment_uuid=UUID)
    assert row.first_listed_at == written + MINUTE
    assert row.limes_record is None
    cloud.commitments["p1"].clear()
    assert sync(cloud, now=written + timedelta(hours=1)).counts["ended"] == 0
    assert state() == "confirmed"


def test_one_that_an_incomplete_run_found_was_listed(cloud: FakeCloud) -> None:
    written = asked()
    cloud.add("p1", [limes_commitment(UUID, amount=1)])
    cloud.add("p2")
    cloud.always = {"/limes/v1/domains/domain-1/projects/p2/": 500}
    assert sync(cloud, now=written + MINUTE).outcome == "incomplete"
    cloud.always = {}
    cloud.commitments["p1"].clear()
    assert sync(cloud, now=written + timedelta(hours=1)).counts["ended"] == 0


def test_an_incomplete_run_ends_nothing(cloud: FakeCloud) -> None:
    written = asked()
    understood(cloud)
    cloud.always = {"/limes/v1/domains/domain-1/projects/p1/": 500}
    report = sync(cloud, now=written + timedelta(hours=1))
    assert (report.outcome, state()) == ("incomplete", "confirmed")


def test_a_dry_run_says_it_and_writes_nothing(cloud: FakeCloud) -> None:
    written = asked()
    report = sync(cloud, now=written + timedelta(hours=1), dry_run=True)
    assert (report.counts["never_listed"], report.counts["ended"]) == (1, 1)
    assert state() == "confirmed"


def test_what_limes_says_after_all_is_taken_in_again(cloud: FakeCloud) -> None:
    written = asked()
    sync(cloud, now=written + timedelta(hours=1))
    assert state() == "superseded"
    cloud.add("p1", [limes_commitment(UUID, amount=1)])
    later = written + timedelta(hours=2)
    assert sync(cloud, now=later).counts["updated"] == 1
    repair_due_commitments(actor=SYNCER, request_id="repair", now=later)
    assert (state(), Reservation.objects.count()) == ("confirmed", 1)


def test_a_change_within_the_grace_starts_it_anew(cloud: FakeCloud) -> None:
    """Limes moves it, so Limes has it; the run may have read one project before, one after."""
    asked()
    Commitment.objects.update(created_at=database_now() - timedelta(hours=1))
    _age_events()
    moved = database_now()
    gone = change(UUID, 1, None, old="confirmed", expires_at=moved + timedelta(days=400))
    arrived = change(UUID, 1, expires_at=moved + timedelta(days=400))
    decide({"p1": {RAM: [gone]}, "p2": {RAM: [arrived]}}, now=moved)
    assert sync(cloud, now=database_now()).counts["ended"] == 0
    assert state() == "confirmed"
    assert sync(cloud, now=database_now() + GRACE).counts["ended"] == 1


def _age_events() -> None:
    """Events are append-only by trigger: make the present ones old as the table's owner."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE commitments_commitmentevent SET created_at = now() - interval '1h'")
        cursor.execute("SET session_replication_role = origin")


class TestGuard:
    """The guard counts them among what should be listed."""

    def lost(self, cloud: FakeCloud, count: int, listed: int) -> datetime:
        cloud.add("p1", [limes_commitment(uuid_of(n), id=n) for n in range(listed)])
        assert sync(cloud, now=database_now()).outcome == "success"
        return asked(*(uuid_of(1000 + n) for n in range(count)))

    def test_many_at_once_are_not_believed(self, cloud: FakeCloud) -> None:
        """The set of a good run is whole, and yet a quarter of what we hold is not in it."""
        written = self.lost(cloud, 6, 16)
        guarded = metric("runs_total", outcome="guarded")
        for hours in (1, 7, 14):
            report = sync(cloud, now=written + timedelta(hours=hours))
            assert (report.outcome, report.error_code) == ("guarded", "commitments_shrank")
            assert report.message == (
                "Limes lists 16 commitments, 16 in the last good run, and never listed 6 of ours"
            )
        assert metric("runs_total", outcome="guarded") == guarded + 3
        assert state(uuid_of(1000)) == "confirmed"

    def test_an_operator_may_accept_it(self, cloud: FakeCloud) -> None:
        written = self.lost(cloud, 6, 16)
        sync(cloud, now=written + timedelta(hours=1))
        accept_shrink(SyncRun.objects.latest("pk").pk, actor=SYNCER, request_id="req")
        report = sync(cloud, now=written + timedelta(hours=2))
        assert (report.outcome, report.counts["ended"]) == ("success", 6)

    def test_few_or_a_small_share_are_believed(self, cloud: FakeCloud) -> None:
        written = self.lost(cloud, 6, 40)
        report = sync(cloud, now=written + timedelta(hours=1))
        assert (report.outcome, report.counts["ended"]) == ("success", 6)

    def test_a_list_that_shrank_too_far_ends_none_of_them(self, cloud: FakeCloud) -> None:
        written = self.lost(cloud, 1, 12)
        cloud.commitments["p1"] = cloud.commitments["p1"][:2]
        assert sync(cloud, now=written + timedelta(hours=1)).outcome == "guarded"
        assert state(uuid_of(1000)) == "confirmed"


class TestRaces:
    """What happens while Limes is read, or while the run waits for its locks."""

    def test_one_written_after_the_first_request_is_not_judged(self, cloud: FakeCloud) -> None:
        """Limes listed it for nobody yet, however old the clocks make it."""
        later = database_now() + timedelta(days=1)
        report = sync_commitments(Interrupting(cloud, asked), actor=SYNCER, now=later)
        assert (report.outcome, report.counts["never_listed"]) == ("success", 0)
        assert (state(), Commitment.objects.get().missed_syncs) == ("confirmed", 0)

    def test_one_whose_transaction_began_before_and_ended_after_is_not_judged(
        self, cloud: FakeCloud
    ) -> None:
        """Its time is that of its beginning, which says nothing of when others can see it."""
        began, go_on = threading.Event(), threading.Event()

        def write() -> None:
            with transaction.atomic():
                live_row(UUID)
                began.set()
                assert go_on.wait(30)
            connection.close()

        writer = threading.Thread(target=write)
        writer.start()
        assert began.wait(30)

        def end() -> None:
            go_on.set()
            writer.join(30)

        later = database_now() + timedelta(days=1)
        report = sync_commitments(Interrupting(cloud, end), actor=SYNCER, now=later)
        assert report.counts["never_listed"] == 0
        assert state() == "confirmed"

    def test_one_that_changes_while_limes_is_read_is_not_ended(self, cloud: FakeCloud) -> None:
        written = asked()

        def grow() -> None:
            decide(
                {"p1": {RAM: [change(UUID, 2, old="confirmed", expires_at=written + 9 * GRACE)]}},
                now=database_now(),
            )

        later = written + timedelta(days=1)
        report = sync_commitments(Interrupting(cloud, grow), actor=SYNCER, now=later)
        assert report.counts["ended"] == 0
        assert state() == "confirmed"

    def test_one_that_changes_while_the_run_waits_for_its_zone_is_not_ended(
        self, cloud: FakeCloud
    ) -> None:
        written = asked()
        held, judged = threading.Event(), threading.Event()

        def change_slowly() -> None:
            with transaction.atomic():
                zone_lock(["az-a"])
                held.set()
                assert judged.wait(30)
                _wait_for_a_waiter()
                Commitment.objects.update(generation=2)
            connection.close()

        changer = threading.Thread(target=change_slowly)

        def begin() -> None:
            changer.start()
            assert held.wait(30)
            judged.set()

        later = written + timedelta(days=1)
        report = sync_commitments(Interrupting(cloud, begin), actor=SYNCER, now=later)
        changer.join(30)
        assert (report.outcome, report.counts["never_listed"]) == ("success", 1)
        assert (report.counts["ended"], state()) == (0, "confirmed")


def _wait_for_a_waiter() -> None:
    """Return once another connection waits for an advisory lock."""
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    deadline = database_now() + timedelta(seconds=30)
    with connection.cursor() as cursor:
        while database_now() < deadline:
            cursor.execute(waiting)
            row = cursor.fetchone()
            if row is not None and row[0]:
                return
    message = "nobody waits for the zone"
    raise AssertionError(message)
