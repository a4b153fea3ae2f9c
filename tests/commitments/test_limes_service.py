from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from commitments.domain.limes_intake import Converted
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.models import Commitment, CommitmentEvent
from commitments.services.intake import Intake, IntakeResult, SeenRows, take_in_commitments
from journal.actors import Actor
from journal.models import Outbox
from scheduling.resources import GIB
from tests.factories import make_group

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 21, tzinfo=UTC)
UUID = "6a1d3c52-0d1c-4a7a-9d7e-1a2b3c4d5e6f"
STATE = CommitmentState(
    commitment_uuid=UUID,
    project_id="p1",
    domain_id="d1",
    flavor_group_name="test_group_v1",
    zone="az-a",
    resource_type=ResourceType.MEMORY,
    requested_amount=2 * GIB,
    status=CommitmentStatus.CONFIRMED,
    start_time=NOW - timedelta(days=1),
    end_time=NOW + timedelta(days=400),
)


@pytest.fixture(autouse=True)
def group() -> None:
    make_group(STATE.flavor_group_name)


def take(*, options: dict[str, Any] | None = None, **changes: Any) -> IntakeResult:
    converted = Converted(limes_id=7, state=replace(STATE, **changes))
    intake = Intake(actor=Actor(name="test"), request_id="req", now=NOW, **(options or {}))
    with transaction.atomic():
        return take_in_commitments([(converted, {"uuid": UUID})], intake)


@pytest.mark.parametrize("status", ["confirmed", "guaranteed", "pending"])
def test_a_live_commitment_makes_a_row_that_is_due(status: str) -> None:
    result = take(status=CommitmentStatus(status))
    row = Commitment.objects.get()
    assert result.created == 1
    assert (row.resource_name, row.requested_amount, row.state) == (
        f"commitment-{UUID}",
        2 * GIB,
        status,
    )
    assert (row.next_reconcile_at, row.generation, row.allow_rejection) == (NOW, 1, False)
    assert (CommitmentEvent.objects.get().after or {})["state"] == status
    assert Outbox.objects.filter(topic="commitments", object_id=UUID).count() == 1


def test_a_planned_commitment_says_so_and_waits_for_its_end() -> None:
    take(status=CommitmentStatus.PLANNED)
    row = Commitment.objects.get()
    assert (row.ready_status, row.ready_reason) == (False, "Planned")
    assert row.next_reconcile_at == STATE.end_time


@pytest.mark.parametrize(
    "changes",
    [
        {"status": CommitmentStatus.SUPERSEDED},
        {"status": CommitmentStatus.EXPIRED},
        {"end_time": datetime.fromtimestamp(1, tz=UTC)},
    ],
)
def test_an_ended_commitment_makes_no_row(changes: dict[str, Any]) -> None:
    result = take(**changes)
    assert not Commitment.objects.exists()
    assert [reason for _, reason, _ in result.skipped] == ["terminal"]


def test_an_ended_commitment_updates_its_row_so_that_it_is_released() -> None:
    take()
    Commitment.objects.update(next_reconcile_at=None)
    result = take(status=CommitmentStatus.SUPERSEDED)
    row = Commitment.objects.get()
    assert (result.updated, row.state, row.generation) == (1, "superseded", 2)
    assert row.next_reconcile_at == NOW


def test_group_and_project_follow_limes() -> None:
    take()
    take(flavor_group_name="other", project_id="p2")
    row = Commitment.objects.get()
    assert (row.flavor_group_name, row.project_id, row.generation) == ("other", "p2", 2)


def test_the_same_again_changes_nothing() -> None:
    take()
    before = Commitment.objects.values().get()
    result = take()
    assert result.unchanged == 1
    assert Commitment.objects.values().get() == before
    assert CommitmentEvent.objects.count() == 1


def test_the_zone_of_a_row_never_changes() -> None:
    take()
    result = take(zone="az-b", requested_amount=GIB)
    row = Commitment.objects.get()
    assert (row.zone, row.requested_amount) == ("az-a", 2 * GIB)
    assert [reason for _, reason, _ in result.skipped] == ["zone_mismatch"]


def test_allow_rejection_is_kept() -> None:
    take()
    Commitment.objects.update(allow_rejection=True)
    take(requested_amount=4 * GIB)
    row = Commitment.objects.get()
    assert (row.allow_rejection, row.requested_amount) == (True, 4 * GIB)


def seen_now() -> SeenRows:
    rows = Commitment.objects.values_list("commitment_uuid", "generation")
    newest = CommitmentEvent.objects.order_by("-pk").values_list("pk", flat=True).first()
    return SeenRows(generations=dict(rows), last_event_id=newest or 0)


def reasons(result: IntakeResult) -> list[str]:
    return [reason for _, reason, _ in result.skipped]


def test_a_row_changed_after_the_fetch_began_is_left_alone() -> None:
    take()
    seen = seen_now()
    take(requested_amount=4 * GIB)
    result = take(requested_amount=GIB, options={"seen": seen})
    assert Commitment.objects.get().requested_amount == 4 * GIB
    assert reasons(result) == ["changed_since_fetch"]


def test_a_row_made_after_the_fetch_began_is_left_alone() -> None:
    seen = seen_now()
    take()
    assert reasons(take(requested_amount=GIB, options={"seen": seen})) == ["changed_since_fetch"]
    assert Commitment.objects.get().requested_amount == 2 * GIB


def test_a_row_removed_after_the_fetch_began_does_not_come_back() -> None:
    take()
    seen = seen_now()
    Commitment.objects.all().delete()
    assert reasons(take(options={"seen": seen})) == ["changed_since_fetch"]
    assert not Commitment.objects.exists()


def test_a_row_made_and_removed_after_the_fetch_began_does_not_come_back() -> None:
    seen = seen_now()
    take()
    Commitment.objects.all().delete()
    assert reasons(take(options={"seen": seen})) == ["changed_since_fetch"]
    assert not Commitment.objects.exists()


def test_counting_usage_does_not_keep_a_row_from_being_repaired() -> None:
    take()
    seen = seen_now()
    Commitment.objects.update(used_vcpus=7)
    assert take(requested_amount=GIB, options={"seen": seen}).updated == 1
