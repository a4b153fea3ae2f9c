"""What a project had over time, compared with sums of hours by hand."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from commitments.domain.statuses import ResourceType
from commitments.selectors import usage_history as history
from commitments.selectors.usage_history import DAY, HOUR, usage_history
from commitments.usage_models import CommitmentAccount, CommitmentHour, ObservedHour
from core.text import memory_short
from journal.clock import database_now
from scheduling.resources import MIB
from tests import factories

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 10, 12, 34, tzinfo=UTC)


def test_days_are_means_over_the_time_in_which_somebody_looked() -> None:
    first, second = (factories.make_commitment(project_id="p1") for _ in range(2))
    other = factories.make_commitment(project_id="p2")
    cores = factories.make_commitment(project_id="p1", resource_type=ResourceType.CORES)
    start = datetime(2026, 3, 1, tzinfo=UTC)
    promised, used, seen = (defaultdict[datetime, int](int) for _ in range(3))
    for number in range(7 * 24):
        if number // 24 == 4:
            continue
        at = start + number * HOUR
        day = at.replace(hour=0)
        factories.make_commitment_hour(other, at=at, promised=999, used=1)
        factories.make_commitment_hour(cores, at=at, promised=7, used=1)
        seen[day] += 3600
        for row, most in ((first, 4096), (second, 100 + number)):
            if row is first or number % 3:
                hour = factories.make_commitment_hour(row, at=at, promised=most, used=number)
                promised[day] += hour.promised_amount_seconds
                used[day] += hour.used_amount_seconds
    ObservedHour.objects.update_or_create(at=start, defaults={"observed_seconds": 1800})
    seen[start] -= 1800

    found = usage_history("p1", now=NOW)

    assert [span.at for span in found] == sorted(seen)
    assert len(found) == 6
    assert {span.length for span in found} == {DAY}
    for span in found:
        assert abs(span.held_memory_bytes / MIB - promised[span.at] / seen[span.at]) <= 1
        assert abs(span.used_memory_bytes / MIB - used[span.at] / seen[span.at]) <= 1
        assert span.idle_memory_bytes == span.held_memory_bytes - span.used_memory_bytes >= 0


def test_few_days_are_told_by_hours_from_the_first_commitment_on() -> None:
    row = factories.make_commitment(project_id="p1")
    ObservedHour.objects.create(at=NOW.replace(minute=0) - 9 * HOUR, observed_seconds=3600)
    for hours, amount in ((5, 2048), (4, 1024)):
        at = NOW.replace(minute=0) - hours * HOUR
        factories.make_commitment_hour(row, at=at, promised=amount, used=512)

    found = usage_history("p1", now=NOW)

    assert [(span.length, span.held_memory_bytes // MIB) for span in found] == [
        (HOUR, 2048), (HOUR, 1024)
    ]  # fmt: skip
    assert usage_history("unknown", now=NOW) == []


def test_a_project_with_many_commitments_is_told_of_for_fewer_days(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [factories.make_commitment(project_id="p1") for _ in range(3)]
    for days in range(1, 10):
        for row in rows:
            factories.make_commitment_hour(row, at=NOW.replace(minute=0) - days * DAY)
    assert CommitmentAccount.objects.count() == 3
    assert CommitmentHour.objects.count() == 27

    monkeypatch.setattr(history, "MOST_HOURS_READ", 3 * 24 * 5)

    assert len(usage_history("p1", now=NOW)) == 5


def test_the_page_of_a_project_draws_it(admin_client: Client) -> None:
    project = factories.make_project("p1")
    row = factories.make_commitment(project_id="p1")
    today = database_now().replace(hour=0, minute=0, second=0, microsecond=0)
    for days in range(1, 6):
        at = today - timedelta(days=days)
        factories.make_commitment_hour(row, at=at, promised=2048, used=512 * (days % 2))

    page = admin_client.get(reverse("headroom_project", args=[project.pk])).context["page"]

    expected = [
        [memory_short(amount * MIB) for amount in (512 * (days % 2), 2048 - 512 * (days % 2), 2048)]
        for days in range(1, 6)
    ]
    assert [line.cells for line in page.chart.lines] == expected
    assert page.chart.headings == ["used", "idle", "committed"]
    assert page.chart.summary.startswith("now 2 GiB committed")
