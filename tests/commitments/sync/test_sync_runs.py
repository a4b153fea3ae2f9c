"""Runs of the syncer: one at a time, what they count, the command (spec commitments, 16, 20)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from capacity.models import FlavorGroupSnapshot
from commitments.conf import SyncSettings
from commitments.metrics.sync import SKIP_REASONS
from commitments.models import Commitment, SyncOutcome, SyncRun
from commitments.services.intake import take_in_commitments
from journal.leases import held_lease
from journal.metrics import metrics_page
from tests.peers.fake_cloud import FakeCloud, limes_commitment

from .world import NOW, UUID, empty, fact, keystone_down, many, metric, sync, uuid_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("exists", "outcome", "error_code", "counted"),
    [
        pytest.param(True, "not_ready", "flavor_groups_not_ready", 0, id="not ready: success"),
        pytest.param(False, "failed", "flavor_groups_missing", 1, id="missing: an error"),
    ],
)
def test_without_flavor_groups_nobody_is_asked(
    cloud: FakeCloud, outcome: str, error_code: str, counted: int, *, exists: bool
) -> None:
    """Spec commitments, 4.6, 16.2 and the last row of 16.6."""
    cloud.add("p1", [limes_commitment(UUID)])
    FlavorGroupSnapshot.objects.update(is_ready=False)
    if not exists:
        FlavorGroupSnapshot.objects.all().delete()
    errors, durations = metric("errors_total"), metric("duration_seconds_count")
    report = sync(cloud)
    assert (report.outcome, report.error_code) == (outcome, error_code)
    assert cloud.seen.total() == 0
    assert not Commitment.objects.exists()
    assert metric("errors_total") == errors + counted
    assert metric("duration_seconds_count") == durations + 1
    run = SyncRun.objects.get()
    assert (run.outcome, run.error_code) == (outcome, error_code)
    assert run.message


def test_a_second_run_leaves_the_first_alone(cloud: FakeCloud) -> None:
    with held_lease("commitments.sync") as is_held:
        assert is_held
        assert sync(cloud).error_code == "already_running"
        assert not SyncRun.objects.exists()
        assert cloud.seen.total() == 0
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
    assert fact("limes_commitments_active") == 1
    run = SyncRun.objects.latest("pk")
    assert run.counts["known"] == run.counts["understood"] == run.counts["updated"] == 1


def test_a_run_that_fails_is_timed_too(cloud: FakeCloud) -> None:
    keystone_down(cloud)
    errors, durations = metric("errors_total"), metric("duration_seconds_count")
    assert sync(cloud).outcome == "failed"
    assert metric("duration_seconds_count") == durations + 1
    assert metric("errors_total") == errors + 1


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
