"""Questions of operators, answered by filters of lists and compared with a count by hand."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from commitments.domain.statuses import LIVE_STATUSES, CommitmentStatus
from commitments.models import Commitment, Condition
from console.commitments import commitments as page
from console.journal.admin import AuditEntryAdmin
from core.text import memory_text
from journal.actors import Actor
from journal.models import AuditEntry
from journal.services import Change, record_changes
from tests import factories
from tests.admin.test_pages import page_url

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
GIB = 1024**3


def listed(client: Client, **query: str) -> set[Any]:
    response = client.get(page_url(Commitment, "changelist"), query)
    assert response.status_code == 200
    return {row.pk for row in response.context["cl"].result_list}


@pytest.fixture
def _frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "database_now", lambda: NOW)


@pytest.mark.usefixtures("_frozen")
def test_which_commitments_end_next_month(admin_client: Client) -> None:
    ends = [
        None, NOW - timedelta(seconds=1), NOW + timedelta(hours=1),
        datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC),
        datetime(2026, 2, 28, 23, 59, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC),
        NOW + timedelta(days=7), NOW + timedelta(days=30), NOW + timedelta(days=90, seconds=1),
    ]  # fmt: skip
    rows = [
        factories.make_commitment(state=state, end_time=end)
        for state, end in itertools.product(CommitmentStatus, ends)
    ]

    def chosen(start: datetime, end: datetime) -> set[Any]:
        over = {CommitmentStatus.SUPERSEDED, CommitmentStatus.EXPIRED}
        return {
            row.pk
            for row in rows
            if row.state not in over and row.end_time and start <= row.end_time <= end
        }

    now = NOW + timedelta(microseconds=1)
    month = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC)
    assert listed(admin_client, ends="next_month") == chosen(*month)
    for word, days in (("week", 7), ("month", 30), ("quarter", 90)):
        assert listed(admin_client, ends=word) == chosen(now, NOW + timedelta(days=days))
    assert len(listed(admin_client, ends="never")) == 4


def test_which_are_idle_and_which_wait(admin_client: Client) -> None:
    for state, used_gib, is_known in itertools.product(LIVE_STATUSES, (0, 1, 4, 9), (True, False)):
        factories.make_commitment(
            state=state, amount_gib=4, used_memory_bytes=used_gib * GIB,
            last_usage_reconcile_at=NOW if is_known else None, ready_status=True,
            accepted_amount=4 * GIB,
        )  # fmt: skip
    waiting = factories.make_commitment(
        state=CommitmentStatus.PENDING, is_accepted=False, ready_status=False,
        ready_reason=Condition.RESERVING, status_summary="Reserving: az-a is full",
    )  # fmt: skip
    refused = factories.make_commitment(
        state=CommitmentStatus.PENDING, is_accepted=False, ready_status=False,
        ready_reason=Condition.REJECTED,
    )  # fmt: skip
    rows = list(Commitment.objects.exclude(pk__in=[waiting.pk, refused.pk]))
    known = [row for row in rows if row.last_usage_reconcile_at]

    def used(low: int, high: int) -> set[Any]:
        return {row.pk for row in known if low <= row.used_memory_bytes // GIB <= high}

    assert listed(admin_client, use="idle") == used(0, 0)
    assert listed(admin_client, use="partly") == used(1, 3)
    assert listed(admin_client, use="full") == used(4, 99)
    assert listed(admin_client, fulfilled="waiting") == {waiting.pk}
    assert listed(admin_client, fulfilled="refused") == {refused.pk}
    shown = admin_client.get(page_url(Commitment, "changelist")).content.decode()
    assert "Reserving: az-a is full" in shown
    assert f'title="{memory_text(GIB)} of {memory_text(4 * GIB)}"' in shown
    assert "25 %" in shown


def test_what_changed_yesterday(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    record_changes(
        [Change(action="x", object_type="Host", object_id="h", after={}, topic="host")],
        actor=Actor(name="limes"), request_id="req-1",
    )  # fmt: skip
    entry = AuditEntry.objects.get(action="x")
    found = {}
    for hours in (0, 24, 48):
        moment = entry.created_at + timedelta(hours=hours)
        monkeypatch.setattr("console.base.filters.database_now", lambda moment=moment: moment)
        answer = admin_client.get(
            page_url(AuditEntry, "changelist"), {"since": "yesterday", "action": "x"}
        )
        found[hours] = answer.context["cl"].result_count
    assert found == {0: 0, 24: 1, 48: 0}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"amount": 4 * GIB, "z": 1}, {"amount": 8 * GIB, "z": 1}, ["amount: 4 GiB → 8 GiB"]),
        (None, {"zone": "a", "state": "planned"}, ["state: planned", "zone: a"]),
        ({"cores": 4, "gone": None}, None, ["cores: 4"]),
        (dict.fromkeys("abcd", 1), {"a": 2}, ["a: 1 → 2", "b: 1 → —", "c: 1 → —", "1 more"]),
        ({"hosts": ["<b>"]}, {"hosts": True}, ["hosts: [&quot;&lt;b&gt;&quot;] → true"]),
        ({"same": 1}, {"same": 1}, []),
        (None, None, []),
    ],
)  # fmt: skip
def test_a_change_says_its_first_facts(
    before: dict[str, Any] | None, after: dict[str, Any] | None, told: list[str]
) -> None:
    page = AuditEntryAdmin(AuditEntry, admin.site)
    shown = str(page.difference(AuditEntry(before=before, after=after)))
    assert re.findall("<li>(.*?)</li>", shown) == told
