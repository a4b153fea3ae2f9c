"""What the syncer takes in, leaves and ends (spec commitments, 16; spec liquid, 15.3, 15.4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from capacity.models import FlavorGroupSettings, Reservation
from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment, CommitmentEvent, Condition, SyncRun
from commitments.services import sync_missing
from commitments.services.repair import repair_due_commitments
from commitments.services.sync import sync_commitments
from journal.models import AuditEntry, Outbox
from scheduling.resources import GIB
from tests.factories import make_group, make_host, make_slot
from tests.peers.fake_cloud import FakeCloud, limes_commitment

from .interrupting import Interrupting
from .world import (
    GROUP,
    NOW,
    SYNCER,
    UUID,
    fact,
    live_row,
    many,
    metric,
    sync,
    tuples,
    understood,
    uuid_of,
)

pytestmark = pytest.mark.django_db(transaction=True)


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
    understood(cloud)
    cloud.add("p1", [limes_commitment(UUID, **fields)])
    report = sync(cloud)
    assert (report.outcome, report.error_code) == ("success", "")
    rows = Commitment.objects.filter(commitment_uuid=UUID)
    found = rows.values_list("state", "requested_amount", "project_id", "domain_id")
    assert list(found) == ([(*expected, "p1", "domain-1")] if expected else [])


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
        ({"resource_name": f"hw_version_{GROUP}_cores", "unit": None}, "decided_by_limes"),
        ({"resource_name": f"hw_version_{GROUP}_instances", "unit": None}, "decided_by_limes"),
    ],
)
def test_a_skipped_commitment_is_counted_and_its_row_and_slots_stay(
    cloud: FakeCloud, fields: dict[str, Any], reason: str
) -> None:
    FlavorGroupSettings.objects.update(cores_handles_commitments=False)
    understood(cloud)
    assert sync(cloud).outcome == "success"
    row = live_row(first_listed_at=NOW)
    make_slot(row, make_host("h1"))
    cloud.add("p1", [limes_commitment(UUID, **fields)])
    counted, before = metric("commitments_skipped_total", reason=reason), tuples()
    report = sync(cloud)
    assert metric("commitments_skipped_total", reason=reason) == counted + 1
    assert report.counts[f"skipped_{reason}"] == 1
    assert report.counts["missing"] == 0
    assert tuples() == before


@pytest.mark.parametrize("resource", ["ram", "cores"])
def test_commitments_that_limes_decides_itself_are_not_taken_in(
    cloud: FakeCloud, resource: str
) -> None:
    """Nobody asked us whether there is room for them (spec liquid, 4.1, handlesCommitments)."""
    FlavorGroupSettings.objects.update(**{f"{resource}_handles_commitments": False})
    name = f"hw_version_{GROUP}_{resource}"
    cloud.add("p1", [limes_commitment(UUID, resource_name=name, unit=None)])
    counted = metric("commitments_skipped_total", reason="decided_by_limes")
    report = sync(cloud)
    assert (report.outcome, report.error_code) == ("success", "")
    assert report.counts["skipped_decided_by_limes"] == 1
    assert metric("commitments_skipped_total", reason="decided_by_limes") == counted + 1
    assert not Commitment.objects.exists()
    FlavorGroupSettings.objects.update(**{f"{resource}_handles_commitments": True})
    assert sync(cloud).counts["created"] == 1


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
    assert (report.outcome, report.counts["missing"], fact("crd_unmatched")) == ("success", 1, 1)
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


def test_a_row_missing_since_tomorrow_is_missing_since_now(cloud: FakeCloud) -> None:
    """A fast clock dated it: the time that it is waited for begins with this run."""
    live_row()
    Commitment.objects.update(missed_syncs=3, missing_since=NOW + timedelta(days=1))
    assert sync(cloud).counts["ended"] == 0
    assert Commitment.objects.get().missing_since == NOW
    assert sync(cloud, now=NOW + timedelta(hours=6)).counts["ended"] == 1


def test_a_row_that_reappears_starts_anew(cloud: FakeCloud) -> None:
    live_row()
    sync(cloud)
    sync(cloud, now=NOW + timedelta(hours=3))
    cloud.add("p1", [limes_commitment(UUID)])
    sync(cloud, now=NOW + timedelta(hours=7))
    row = Commitment.objects.get()
    assert (row.state, row.missed_syncs, row.missing_since) == ("confirmed", 0, None)


def test_a_row_that_changes_while_limes_is_read_is_neither_overwritten_nor_judged(
    cloud: FakeCloud,
) -> None:
    listed, unlisted = live_row(), live_row(uuid_of(1))
    cloud.add("p1", [limes_commitment(UUID, amount=1)])

    def change() -> None:
        for row in (listed, unlisted):
            Commitment.objects.filter(pk=row.pk).update(requested_amount=8 * GIB, generation=2)

    report = sync_commitments(Interrupting(cloud, change), actor=SYNCER, now=NOW)
    assert report.counts["left_changed_since_fetch"] == 1
    assert set(Commitment.objects.values_list("requested_amount", "missed_syncs")) == {(8 * GIB, 0)}


def test_a_row_that_is_made_while_limes_is_read_is_not_judged(cloud: FakeCloud) -> None:
    report = sync_commitments(Interrupting(cloud, live_row), actor=SYNCER, now=NOW)
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


@pytest.mark.parametrize(
    ("state", "is_deleted"),
    [
        (CommitmentStatus.SUPERSEDED, True),
        (CommitmentStatus.EXPIRED, True),
        (CommitmentStatus.CONFIRMED, False),
    ],
)
def test_a_row_without_an_end_is_forgotten_once_its_state_is_final(
    cloud: FakeCloud, state: str, *, is_deleted: bool
) -> None:
    row = expired_row(hours=48)
    Commitment.objects.update(end_time=None, state=state, ready_reason=Condition.SUPERSEDED)
    assert sync(cloud).counts["deleted"] == int(is_deleted)
    assert Commitment.objects.filter(pk=row.pk).exists() is not is_deleted
    if is_deleted:
        event = CommitmentEvent.objects.latest("pk")
        assert event.reason.startswith(f"{state} without an end, its slots went 2026-11-")


def test_an_expired_row_of_tomorrow_is_deleted(cloud: FakeCloud) -> None:
    expired_row(hours=1)
    Commitment.objects.update(ready_changed_at=NOW + timedelta(days=1))
    assert sync(cloud).counts["deleted"] == 1


def test_a_row_that_lives_again_when_its_lock_is_free_is_not_deleted(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = expired_row(hours=48)
    lock = sync_missing._locked

    def renew_first(pks: Any) -> Any:
        Commitment.objects.filter(pk__in=pks).update(end_time=NOW + timedelta(days=1))
        return lock(pks)

    monkeypatch.setattr(sync_missing, "_locked", renew_first)
    assert sync(cloud).counts["deleted"] == 0
    assert Commitment.objects.filter(pk=row.pk).exists()


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
