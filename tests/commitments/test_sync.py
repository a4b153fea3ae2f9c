"""The syncer (spec commitments, 16; spec liquid, 15.3, 15.4), from HTTP to rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone
from prometheus_client import REGISTRY

from capacity.locks import LockSpace, lock_key
from capacity.models import FlavorGroupSnapshot, Reservation
from commitments.clients.http_cloud import HTTPCloud
from commitments.metrics_sync import SKIP_REASONS
from commitments.models import Commitment, CommitmentEvent, Condition, SyncOutcome, SyncRun
from commitments.services.limes import take_in_commitments
from commitments.services.repair import repair_due_commitments
from commitments.services.sync import SyncReport, sync_commitments
from commitments.services.sync_runs import accept_shrink
from config.sections import SyncSettings
from journal.actors import Actor, task_actor
from journal.errors import InvalidInput
from journal.metrics import metrics_page
from journal.models import AuditEntry, Outbox
from scheduling.resources import GIB
from tests.factories import make_commitment, make_group, make_host, make_hosts, make_slot
from tests.ledger import assert_ledger_holds
from tests.peers.fake_cloud import FakeCloud, limes_commitment

pytestmark = [pytest.mark.django_db(transaction=True)]

GROUP = "test_group_v1"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
UUID = "6a1d3c52-0d1c-4a7a-9d7e-1a2b3c4d5e6f"
LIMES = "/limes/v1/"
SYNCER = task_actor("commitments.sync")


def uuid_of(number: int) -> str:
    return f"aaaaaaaa-0000-0000-0000-{number:012}"


@pytest.fixture(autouse=True)
def group() -> None:
    make_group(GROUP, flavors=[("small", 1024, 1)])


@pytest.fixture
def cloud(fake_cloud: FakeCloud) -> FakeCloud:
    fake_cloud.add("p1")
    return fake_cloud


def sync(cloud: FakeCloud, *, now: datetime = NOW, **options: Any) -> SyncReport:
    settings = SyncSettings(retries=0, timeout_seconds=20)
    client = HTTPCloud(cloud.settings(), settings)
    return sync_commitments(client, actor=SYNCER, request_id="req", now=now, **options)


def many(cloud: FakeCloud, count: int) -> None:
    """Let Limes list commitments of four projects."""
    for number in range(count):
        cloud.add(f"p{number % 4}", [limes_commitment(uuid_of(number), id=number)])


def metric(name: str, **labels: str) -> float:
    full = f"cortex_committed_resource_syncer_{name}"
    return REGISTRY.get_sample_value(full, labels) or 0.0


def tuples() -> list[tuple[object, ...]]:
    """Return the physical versions of every row that a sync could write."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 'c', id, ctid::text, xmin::text FROM commitments_commitment UNION ALL "
            "SELECT 'e', id, ctid::text, xmin::text FROM commitments_commitmentevent UNION ALL "
            "SELECT 'o', id, ctid::text, xmin::text FROM journal_outbox UNION ALL "
            "SELECT 'r', id, ctid::text, xmin::text FROM capacity_reservation ORDER BY 1, 2"
        )
        return list(cursor.fetchall())


def live_row(uuid: str = UUID, **fields: Any) -> Commitment:
    return make_commitment(uuid, group=GROUP, amount_gib=2, project_id="p1", **fields)


# What is taken in: spec commitments, 16.6; spec liquid, 15.3 and 15.4.


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ("confirmed", 2 * GIB), id="confirmed"),
        pytest.param({"unit": "GiB", "amount": 5}, ("confirmed", 5 * GIB), id="unit GiB"),
        pytest.param({"unit": None}, ("confirmed", 2 * GIB), id="no unit"),
        pytest.param({"unit": "1024 MiB"}, ("confirmed", 2 * GIB), id="the same unit in MiB"),
        pytest.param({"status": "guaranteed"}, ("guaranteed", 2 * GIB), id="guaranteed"),
        pytest.param({"status": "planned"}, ("planned", 2 * GIB), id="planned"),
        pytest.param({"status": "pending"}, ("pending", 2 * GIB), id="pending"),
        pytest.param(
            {"resource_name": f"hw_version_{GROUP}_cores", "unit": None, "amount": 7},
            ("confirmed", 7),
            id="cores",
        ),
        pytest.param({"status": "superseded"}, None, id="superseded"),
        pytest.param({"status": "expired"}, None, id="expired"),
        pytest.param({"status": ""}, None, id="status empty"),
        pytest.param({"expires_at": 1}, None, id="expires at unix 1"),
        pytest.param({"unit": "2048 MiB"}, None, id="unit 2048 MiB"),
        pytest.param({"uuid": ""}, None, id="uuid empty"),
        pytest.param({"service_type": "volumev2"}, None, id="other service"),
        pytest.param({"resource_name": "hw_version_other_ram"}, None, id="unknown group"),
        pytest.param({"resource_name": "ram"}, None, id="other resource"),
    ],
)
def test_a_listed_commitment_without_a_row(
    cloud: FakeCloud, fields: dict[str, Any], expected: tuple[str, int] | None
) -> None:
    cloud.add("p1", [limes_commitment(UUID, **fields)])
    report = sync(cloud)
    assert (report.outcome, report.error_code) == ("success", "")
    rows = Commitment.objects.values_list("state", "requested_amount", "project_id", "domain_id")
    assert list(rows) == ([(*expected, "p1", "domain-1")] if expected else [])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"service_type": "volumev2"}, "non_compute"),
        ({"status": "odd"}, "unknown_status"),
        ({"resource_name": "ram"}, "invalid_resource_name"),
        ({"resource_name": "hw_version_other_ram"}, "unknown_flavor_group"),
        ({"unit": "2048 MiB"}, "unit_mismatch"),
        ({"amount": -1}, "invalid_commitment"),
        ({"availability_zone": ""}, "invalid_commitment"),
    ],
)
def test_a_skipped_commitment_is_counted_and_its_row_and_slots_stay(
    cloud: FakeCloud, fields: dict[str, Any], reason: str
) -> None:
    row = live_row()
    make_slot(row, make_host("h1"))
    cloud.add("p1", [limes_commitment(UUID, **fields)])
    counted, before = metric("commitments_skipped_total", reason=reason), tuples()
    report = sync(cloud)
    assert metric("commitments_skipped_total", reason=reason) == counted + 1
    assert report.counts[f"skipped_{reason}"] == 1
    assert report.counts["missing"] == 0
    assert tuples() == before


def test_an_empty_uuid_is_counted(cloud: FakeCloud) -> None:
    cloud.add("p1", [limes_commitment("")])
    counted = metric("commitments_skipped_total", reason="empty_uuid")
    sync(cloud)
    assert metric("commitments_skipped_total", reason="empty_uuid") == counted + 1


def test_group_and_project_follow_limes(cloud: FakeCloud) -> None:
    make_group("other", flavors=[("other", 1024, 1)])
    live_row()
    cloud.add("p2", [limes_commitment(UUID, resource_name="hw_version_other_ram")])
    assert sync(cloud).counts["updated"] == 1
    row = Commitment.objects.get()
    assert (row.flavor_group_name, row.project_id, row.generation) == ("other", "p2", 2)


def test_a_superseded_commitment_keeps_its_row_which_is_due_for_release(cloud: FakeCloud) -> None:
    row = live_row()
    make_slot(row, make_host("h1"))
    cloud.add("p1", [limes_commitment(UUID, status="superseded")])
    sync(cloud)
    row.refresh_from_db()
    assert (row.state, row.next_reconcile_at) == ("superseded", NOW)
    assert Reservation.objects.count() == 1  # only the repair releases
    repair_due_commitments(actor=SYNCER, request_id="repair", now=NOW)
    assert Reservation.objects.count() == 0


def test_the_secret_of_a_transfer_is_not_kept(cloud: FakeCloud) -> None:
    cloud.add("p1", [limes_commitment(UUID, transfer_status="unlisted", transfer_token="s3")])
    sync(cloud)
    assert "s3" not in str(Commitment.objects.values().get())
    assert sync(cloud).counts["unchanged"] == 1


# What costs nothing when nothing changed.


def test_an_unchanged_set_is_not_written(cloud: FakeCloud) -> None:
    many(cloud, 40)
    assert sync(cloud).counts["created"] == 40
    before = tuples()
    report = sync(cloud, now=NOW + timedelta(hours=1))
    assert (report.counts["unchanged"], report.counts["updated"]) == (40, 0)
    assert tuples() == before


def test_a_dry_run_tells_and_writes_nothing_at_all(cloud: FakeCloud) -> None:
    many(cloud, 6)
    live_row()
    before, entries = tuples(), AuditEntry.objects.count()
    report = sync(cloud, dry_run=True)
    assert (report.counts["created"], report.counts["missing"]) == (6, 1)
    assert tuples() == before
    assert not SyncRun.objects.exists()
    assert AuditEntry.objects.count() == entries


# What is missing.


def test_a_row_that_limes_does_not_list_stays_and_is_counted(cloud: FakeCloud) -> None:
    make_slot(live_row(), make_host("h1"))
    report = sync(cloud)
    row = Commitment.objects.get()
    assert (report.outcome, report.counts["missing"], metric("crd_unmatched")) == ("success", 1, 1)
    assert (row.state, row.missed_syncs, row.missing_since) == ("confirmed", 1, NOW)
    assert Reservation.objects.count() == 1


def test_a_row_missing_in_three_runs_and_six_hours_ends_through_the_normal_path(
    cloud: FakeCloud,
) -> None:
    make_slot(live_row(), make_host("h1"))
    for hours in (0, 2, 4):
        assert sync(cloud, now=NOW + timedelta(hours=hours)).counts["ended"] == 0
    end = NOW + timedelta(hours=6)
    assert sync(cloud, now=end).counts["ended"] == 1
    row = Commitment.objects.get()
    assert (row.state, row.origin, row.generation) == ("superseded", "sync", 2)
    assert (row.missed_syncs, row.missing_since, row.next_reconcile_at) == (0, None, end)
    event = CommitmentEvent.objects.latest("pk")
    assert (event.action, event.actor) == ("commitment_missing_ended", SYNCER.name)
    assert Outbox.objects.filter(object_id=UUID).exists()
    assert Reservation.objects.count() == 1
    repair_due_commitments(actor=SYNCER, request_id="repair", now=end)
    assert Reservation.objects.count() == 0
    assert sync(cloud, now=end).counts["missing"] == 0


def test_a_row_that_reappears_starts_anew(cloud: FakeCloud) -> None:
    live_row()
    sync(cloud)
    sync(cloud, now=NOW + timedelta(hours=3))
    cloud.add("p1", [limes_commitment(UUID)])
    sync(cloud, now=NOW + timedelta(hours=7))
    row = Commitment.objects.get()
    assert (row.state, row.missed_syncs, row.missing_since) == ("confirmed", 0, None)


class _Interrupting:
    """Keystone and Limes, with something that happens after they were asked."""

    def __init__(self, cloud: FakeCloud, happens: Any) -> None:
        self._client = HTTPCloud(cloud.settings(), SyncSettings(retries=0))
        self._happens = happens

    def list_projects(self) -> Any:
        return self._client.list_projects()

    def list_commitments(self, projects: Any) -> Any:
        answers = list(self._client.list_commitments(projects))
        self._happens()
        return iter(answers)


def test_a_row_that_changes_while_limes_is_read_is_neither_overwritten_nor_judged(
    cloud: FakeCloud,
) -> None:
    listed, unlisted = live_row(), live_row(uuid_of(1))
    cloud.add("p1", [limes_commitment(UUID, amount=1)])

    def change() -> None:
        for row in (listed, unlisted):
            Commitment.objects.filter(pk=row.pk).update(requested_amount=8 * GIB, generation=2)

    report = sync_commitments(_Interrupting(cloud, change), actor=SYNCER, now=NOW)
    assert report.counts["left_changed_since_fetch"] == 1
    assert set(Commitment.objects.values_list("requested_amount", "missed_syncs")) == {(8 * GIB, 0)}


def test_a_row_that_is_made_while_limes_is_read_is_not_judged(cloud: FakeCloud) -> None:
    report = sync_commitments(_Interrupting(cloud, live_row), actor=SYNCER, now=NOW)
    assert report.counts["missing"] == 0
    assert Commitment.objects.get().missed_syncs == 0


# What is long over.


def expired_row(*, hours: float, **fields: Any) -> Commitment:
    released = NOW - timedelta(hours=hours)
    return live_row(
        end_time=released,
        ready_status=False,
        ready_reason=Condition.EXPIRED,
        ready_changed_at=released,
        next_reconcile_at=None,
        **fields,
    )


def test_an_expired_row_outlives_its_slots_by_a_day(cloud: FakeCloud) -> None:
    expired_row(hours=23.9)
    assert sync(cloud).counts["deleted"] == 0
    deleted = metric("cr_deletes_total")
    assert sync(cloud, now=NOW + timedelta(hours=1)).counts["deleted"] == 1
    assert metric("cr_deletes_total") == deleted + 1
    assert not Commitment.objects.exists()
    assert CommitmentEvent.objects.latest("pk").action == "commitment_forgotten"


def test_an_expired_row_with_slots_is_not_deleted(cloud: FakeCloud) -> None:
    make_slot(expired_row(hours=48), make_host("h1"))
    assert sync(cloud).counts["deleted"] == 0
    assert Reservation.objects.count() == 1


def test_an_expired_row_that_waits_for_its_release_is_not_deleted(cloud: FakeCloud) -> None:
    expired_row(hours=48)
    Commitment.objects.update(next_reconcile_at=NOW)
    assert sync(cloud).counts["deleted"] == 0


def test_an_expired_row_that_limes_lists_is_not_deleted(cloud: FakeCloud) -> None:
    expired_row(hours=48)
    cloud.add("p1", [limes_commitment(UUID, status="expired")])
    assert sync(cloud).counts["deleted"] == 0


# What must never release anything.


def held(cloud: FakeCloud, count: int = 12) -> list[tuple[object, ...]]:
    """Let a good run take in commitments, hold them, and return every row's version."""
    many(cloud, count)
    make_hosts(2, memory_gib=64, vcpus=64)
    assert sync(cloud).outcome == "success"
    repair_due_commitments(actor=SYNCER, request_id="repair", now=timezone.now())
    assert Reservation.objects.count() == 2 * count
    return tuples()


def empty(cloud: FakeCloud) -> None:
    cloud.commitments.clear()


def cut_lists(cloud: FakeCloud) -> None:
    for commitments in cloud.commitments.values():
        del commitments[1:]


def unknown_projects(cloud: FakeCloud) -> None:
    cloud.always = {LIMES: 404}


def half_the_projects(cloud: FakeCloud) -> None:
    del cloud.projects["p0"], cloud.projects["p1"]


def cut_answers(cloud: FakeCloud) -> None:
    cloud.always = {LIMES: "cut"}


def one_project_down(cloud: FakeCloud) -> None:
    del cloud.commitments["p2"]
    cloud.always = {f"{LIMES}domains/domain-1/projects/p2/": 500}


def limes_down(cloud: FakeCloud) -> None:
    cloud.always = {LIMES: 503}


def keystone_down(cloud: FakeCloud) -> None:
    cloud.always = {"/v3/": 503}


def no_projects(cloud: FakeCloud) -> None:
    cloud.projects.clear()


@pytest.mark.parametrize(
    ("breaks", "outcome", "error_code"),
    [
        (empty, "guarded", "commitments_shrank"),
        (cut_lists, "guarded", "commitments_shrank"),
        (unknown_projects, "guarded", "commitments_shrank"),
        (half_the_projects, "guarded", "commitments_shrank"),
        (cut_answers, "failed", "limes_unavailable"),
        (one_project_down, "incomplete", "sync_incomplete"),
        (limes_down, "failed", "limes_unavailable"),
        (keystone_down, "failed", "keystone_unavailable"),
        (no_projects, "failed", "no_projects"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_a_broken_answer_releases_nothing_however_often_it_comes(
    cloud: FakeCloud, breaks: Any, outcome: str, error_code: str
) -> None:
    before = held(cloud)
    breaks(cloud)
    errors, runs = metric("errors_total"), metric("runs_total", outcome=outcome)
    for number in range(1, 6):
        report = sync(cloud, now=NOW + timedelta(hours=6 * number))
        assert (report.outcome, report.error_code) == (outcome, error_code)
        run = SyncRun.objects.latest("pk")
        assert (run.outcome, run.error_code) == (outcome, error_code)
        assert run.message
        assert run.finished_at is not None
    assert metric("errors_total") == errors + 5
    assert metric("runs_total", outcome=outcome) == runs + 5
    assert tuples() == before
    assert_ledger_holds()


def test_what_an_incomplete_run_could_read_is_repaired(cloud: FakeCloud) -> None:
    held(cloud)
    one_project_down(cloud)
    cloud.commitments["p1"][0]["amount"] = 3
    assert sync(cloud).counts["updated"] == 1
    assert Commitment.objects.filter(requested_amount=3 * GIB).count() == 1


def test_the_first_run_of_all_is_compared_with_the_rows_there_are(cloud: FakeCloud) -> None:
    for number in range(8):
        live_row(uuid_of(number))
    report = sync(cloud)
    assert (report.outcome, report.error_code) == ("guarded", "commitments_shrank")


def test_projects_that_vanish_are_not_believed_even_when_they_had_no_commitments(
    cloud: FakeCloud,
) -> None:
    live_row()
    cloud.add("p1", [limes_commitment(UUID)])
    for number in range(20):
        cloud.add(f"empty-{number}")
    sync(cloud)
    cloud.projects = {"p1": "domain-1"}
    assert sync(cloud).error_code == "projects_shrank"


def test_an_operator_may_accept_that_the_set_shrank(cloud: FakeCloud) -> None:
    held(cloud)
    empty(cloud)
    sync(cloud)
    run = accept_shrink(
        SyncRun.objects.latest("pk").pk, actor=Actor(name="admin"), request_id="req"
    )
    assert run.shrink_accepted_by == "admin"
    assert AuditEntry.objects.latest("pk").action == "sync_shrink_accepted"
    for hours in (0, 3, 6):
        report = sync(cloud, now=NOW + timedelta(days=1, hours=hours))
        assert report.outcome == "success"
    assert report.counts["ended"] == 12


def test_only_the_newest_guarded_run_can_be_accepted(cloud: FakeCloud) -> None:
    held(cloud)
    good = SyncRun.objects.latest("pk")
    with pytest.raises(InvalidInput, match="not stopped by the guard"):
        accept_shrink(good.pk, actor=SYNCER, request_id="req")
    listed = {key: list(commitments) for key, commitments in cloud.commitments.items()}
    empty(cloud)
    sync(cloud)
    guarded = SyncRun.objects.latest("pk")
    cloud.commitments.update(listed)
    sync(cloud)
    with pytest.raises(InvalidInput, match="was good already"):
        accept_shrink(guarded.pk, actor=SYNCER, request_id="req")


# How a run goes.


def test_without_flavor_groups_nobody_is_asked(cloud: FakeCloud) -> None:
    FlavorGroupSnapshot.objects.all().delete()
    errors = metric("errors_total")
    report = sync(cloud)
    assert (report.outcome, cloud.seen.total(), metric("errors_total")) == ("not_ready", 0, errors)


def test_a_second_run_leaves_the_first_alone(cloud: FakeCloud) -> None:
    from django.db import connections  # noqa: PLC0415 - a second session for the lock

    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            key = lock_key(LockSpace.TASK, "commitments.sync")
            cursor.execute("SELECT pg_advisory_lock(%s)", [key])
        assert sync(cloud).error_code == "already_running"
        assert not SyncRun.objects.exists()
        assert cloud.seen.total() == 0
        with other.cursor() as cursor:  # closing alone gives it back a moment later
            cursor.execute("SELECT pg_advisory_unlock(%s)", [key])
    finally:
        other.close()
    assert sync(cloud).outcome == "success"


def test_a_run_that_died_is_called_abandoned_by_the_next(cloud: FakeCloud) -> None:
    died = SyncRun.objects.create(source="limes", started_at=NOW)
    other = SyncRun.objects.create(source="something-else", started_at=NOW)
    sync(cloud)
    died.refresh_from_db()
    other.refresh_from_db()
    assert (died.outcome, died.error_code) == ("abandoned", "abandoned")
    assert other.finished_at is None


def test_one_row_that_cannot_be_written_does_not_stop_the_others(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(cloud, 9)
    bad = uuid_of(4)

    def take(part: Any, intake: Any) -> Any:
        if any(converted.state.commitment_uuid == bad for converted, _ in part):
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")
        return take_in_commitments(part, intake)

    monkeypatch.setattr("commitments.services.sync.take_in_commitments", take)
    report = sync(cloud)
    assert (report.counts["created"], report.counts["failed"]) == (8, 1)
    assert (report.outcome, report.error_code) == ("success", "rows_failed")


def test_a_bug_is_told_in_the_row_and_not_hidden(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("commitments.services.sync._settle", fail)
    with pytest.raises(ZeroDivisionError):
        sync(cloud)
    run = SyncRun.objects.get()
    assert (run.outcome, run.error_code) == ("failed", "internal")
    assert not transaction.get_connection().in_atomic_block


def test_metrics_and_counts_of_a_run(cloud: FakeCloud) -> None:
    cloud.add("p1", [limes_commitment(UUID)])
    created, updated = metric("cr_creates_total"), metric("cr_updates_total")
    durations = metric("duration_seconds_count")
    sync(cloud)
    cloud.commitments["p1"][0]["amount"] = 3
    sync(cloud)
    assert metric("cr_creates_total") == created + 1
    assert metric("cr_updates_total") == updated + 1
    assert metric("duration_seconds_count") == durations + 2
    assert metric("limes_commitments_active") == 1
    run = SyncRun.objects.latest("pk")
    assert run.counts["known"] == run.counts["understood"] == run.counts["updated"] == 1


def last_success() -> list[float]:
    name = b"cortex_committed_resource_syncer_last_success_timestamp_seconds "
    lines = metrics_page().splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith(name)]


def test_a_scrape_tells_when_the_last_good_run_was(cloud: FakeCloud) -> None:
    assert last_success() == []
    sync(cloud)
    keystone_down(cloud)
    sync(cloud, now=NOW + timedelta(hours=1))
    assert last_success() == [NOW.timestamp()]


def test_every_series_is_there_before_the_first_run() -> None:
    page = metrics_page().decode()
    for reason in SKIP_REASONS:
        series = f'syncer_commitments_skipped_total{{reason="{reason}"}}'
        assert f"cortex_committed_resource_{series}" in page
    for outcome in SyncOutcome.values:
        series = f'syncer_runs_total{{outcome="{outcome}"}}'
        assert f"cortex_committed_resource_{series}" in page


def test_the_command_syncs_and_fails_when_the_run_is_no_success(
    cloud: FakeCloud, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    keystone = cloud.settings()
    sync_settings = SyncSettings(retries=0)
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"keystone": keystone, "sync": sync_settings}
    )
    many(cloud, 8)
    call_command("sync_commitments", "--dry-run", "--json")
    assert '"created": 8' in capsys.readouterr().out
    assert not Commitment.objects.exists()
    call_command("sync_commitments")
    assert Commitment.objects.count() == 8
    empty(cloud)
    with pytest.raises(CommandError, match="commitments_shrank"):
        call_command("sync_commitments")
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"keystone": keystone.model_copy(update={"password": None})}
    )
    with pytest.raises(CommandError, match="no login"):
        call_command("sync_commitments")
