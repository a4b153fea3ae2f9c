"""The change log and the allocation history stay short (spec placement, 9.4, 12)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections

from placement.models import AllocationEvent, Change
from placement.services.upkeep import keep_history, prune_changes
from placement.tasks import keep_history as keep_history_task
from placement.tasks import prune_changes as prune_changes_task
from tests.placement.client import PlacementClient, placement_settings, uuid

AGE = "UPDATE placement_change SET created_at = now() - interval '2 hours'"

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


def test_changes_are_forgotten_once_everybody_saw_them(placement: PlacementClient) -> None:
    placement.make_provider(VCPU=8)
    assert prune_changes() == 0, "they are young"
    with connection.cursor() as cursor:
        cursor.execute(f"{AGE}, xid = 3")  # below every transaction that may still run
    count = Change.objects.count()
    assert count
    assert prune_changes_task() == {"forgotten": count}


def test_changes_that_a_reader_may_not_have_seen_stay(placement: PlacementClient) -> None:
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_current_xact_id()::text::bigint")
            (other_xid,) = cursor.fetchone()
            placement.make_provider()
            with connection.cursor() as mine:
                mine.execute(AGE)
            unseen = Change.objects.filter(xid__gt=other_xid).count()
            prune_changes()
            cursor.execute("ROLLBACK")
    finally:
        other.close()
    assert unseen
    assert Change.objects.filter(xid__gt=other_xid).count() == unseen


def test_the_task_keeps_room_for_today(placement: PlacementClient) -> None:
    assert keep_history_task()["made"] == 3
    provider = placement.make_provider(VCPU=8)
    assert placement.allocate(uuid(), {provider: {"VCPU": 4}}).status == 204
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM placement_allocation_event_rest")
        assert cursor.fetchone() == (0,)
    assert AllocationEvent.objects.count() == 1
