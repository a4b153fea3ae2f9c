"""The change log and the allocation history stay short (spec placement, 9.4, 12)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone

from journal.models import PrunedLog
from placement.models import AllocationEvent, Change
from placement.services.upkeep import keep_history, prune_changes
from placement.tasks import keep_history as keep_history_task
from placement.tasks import prune_changes as prune_changes_task
from tests.placement.client import PlacementClient, placement_settings, uuid

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def placement(settings: Any) -> PlacementClient:
    placement_settings(settings, history_days=20)
    return PlacementClient()


def weeks() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = 'placement_allocation_event'::regclass ORDER BY 1"
        )
        return [row[0].removeprefix("placement_allocation_event_") for row in cursor.fetchall()]


@pytest.fixture(autouse=True)
def _no_weeks_left(transactional_db: None) -> Any:
    yield
    with connection.cursor() as cursor:
        for name in weeks():
            if name != "rest":
                cursor.execute(f"DROP TABLE placement_allocation_event_{name}")


def add_event(created_at: datetime) -> None:
    AllocationEvent.objects.create(
        created_at=created_at,
        consumer_uuid=uuid(),
        provider_uuid=uuid(),
        resource_class="VCPU",
        amount=1,
        previous=0,
        actor="a",
        request_id="r",
    )


def test_weeks_come_and_go(placement: PlacementClient) -> None:
    start = datetime(2026, 3, 4, 12, tzinfo=UTC)
    assert keep_history(start) == {"made": 3, "dropped": 0, "forgotten": 0}
    assert weeks() == ["rest", "w20260302", "w20260309", "w20260316"]
    assert keep_history(start) == {"made": 0, "dropped": 0, "forgotten": 0}
    add_event(start)
    add_event(start - timedelta(weeks=1))
    later = start + timedelta(days=26)
    assert keep_history(later) == {"made": 3, "dropped": 1, "forgotten": 1}
    assert weeks()[1] == "w20260309"
    assert not AllocationEvent.objects.exists()


def test_a_week_whose_events_lie_elsewhere_is_left_there(placement: PlacementClient) -> None:
    start = datetime(2026, 3, 4, 12, tzinfo=UTC)
    add_event(start)
    assert keep_history(start)["made"] == 2
    assert AllocationEvent.objects.count() == 1


def test_history_may_be_off(placement: PlacementClient, settings: Any) -> None:
    placement_settings(settings, history_days=0)
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    assert placement.allocate(consumer, {provider: {"VCPU": 4}}).status == 204
    assert placement.delete(f"/allocations/{consumer}").status == 204
    assert not AllocationEvent.objects.exists()


def an_hour_goes_by() -> None:
    noted = PrunedLog.objects.filter(log=PrunedLog.Log.PLACEMENT_CHANGES)
    assert noted.update(pruned_at=timezone.now() - timedelta(hours=1)) == 1


@pytest.mark.sql("prune_changes")
def test_changes_are_forgotten_once_everybody_saw_them(placement: PlacementClient) -> None:
    placement.make_provider(VCPU=8)
    count = Change.objects.update(xid=3)  # below every transaction that may still run
    assert count
    assert prune_changes() == 0, "nobody noted yet what had ended"
    assert prune_changes() == 0, "that was just now"
    an_hour_goes_by()
    assert prune_changes_task() == {"forgotten": count}
    Change.objects.create(root_id=1, kind=Change.Kind.TREE, xid=3)
    assert prune_changes() == 0, "noted again"
    an_hour_goes_by()
    assert prune_changes() == 1


def test_changes_that_were_committed_late_stay_however_old_they_are(
    placement: PlacementClient,
) -> None:
    Change.objects.all().delete()  # what filling the new database left
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(
                "INSERT INTO placement_change (root_id, kind, created_at)"
                " VALUES (1, 2, now() - interval '3 hours')"
            )
            placement.make_provider()
            later = Change.objects.count()
            prune_changes()
            cursor.execute("COMMIT")
    finally:
        other.close()
    an_hour_goes_by()
    prune_changes()
    assert Change.objects.filter(root_id=1).exists()
    assert Change.objects.count() == later + 1


def test_the_task_keeps_room_for_today(placement: PlacementClient) -> None:
    assert keep_history_task()["made"] == 3
    provider = placement.make_provider(VCPU=8)
    assert placement.allocate(uuid(), {provider: {"VCPU": 4}}).status == 204
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM placement_allocation_event_rest")
        assert cursor.fetchone() == (0,)
    assert AllocationEvent.objects.count() == 1
