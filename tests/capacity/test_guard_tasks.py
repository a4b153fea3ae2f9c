from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.guard import oversubscription
from capacity.locks import zone_lock
from capacity.models import HostCapacity, SchedulingDecision
from capacity.tasks import check_oversubscription, prune_decisions
from tests import factories
from tests.capacity.decision_records import store_decision
from tests.schedule import beat_schedule

pytestmark = pytest.mark.django_db


@pytest.fixture
def lacking() -> HostCapacity:
    host = factories.make_host(memory_gib=8)
    factories.make_vm(host=host, memory_gib=16)
    return HostCapacity.objects.get(host=host)


def test_the_guard_task_looks_at_hosts_and_reports(lacking: HostCapacity) -> None:
    assert check_oversubscription() == {"in grace": 1, "moved": 0, "evicted": 0}

    lacking.refresh_from_db()
    assert lacking.oversubscribed_since is not None


def test_a_host_that_goes_while_its_zone_is_locked_is_passed_over(
    lacking: HostCapacity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def awaited(zones: list[str]) -> None:
        HostCapacity.objects.all().delete()
        zone_lock(zones)

    monkeypatch.setattr(oversubscription, "zone_lock", awaited)

    assert check_oversubscription() == {"skipped": 1, "moved": 0, "evicted": 0}


def test_the_guard_can_be_turned_off(lacking: HostCapacity, settings: Any) -> None:
    chosen = settings.HEADROOM.oversubscription.model_copy(update={"check": False})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"oversubscription": chosen})

    assert check_oversubscription() == {}

    lacking.refresh_from_db()
    assert lacking.oversubscription_checked_at is None


def test_the_pruning_task_forgets_what_is_past_its_retention() -> None:
    store_decision()
    SchedulingDecision.objects.update(created_at=timezone.now() - timedelta(days=31))
    kept = store_decision()

    assert prune_decisions() == {"decisions": 1, "listings": 0}
    assert list(SchedulingDecision.objects.all()) == [kept]


@pytest.mark.parametrize("task", ["capacity.check_oversubscription", "capacity.prune_decisions"])
def test_beat_starts_it(task: str) -> None:
    entries = beat_schedule().values()

    (entry,) = [one for one in entries if one["task"] == task]
    assert entry["options"]["expires"] == entry["schedule"].run_every.total_seconds()
