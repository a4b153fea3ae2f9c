"""Pictures over time: the numbers behind them, gaps, permissions, and what a browser draws."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from capacity.figures.history_reads import DAY, HOUR, gaps, recent_history
from capacity.models import GroupCapacity, HistorySpan
from commitments.domain.statuses import CommitmentStatus
from commitments.selectors.timeline import known_memory_changes
from console.time_charts import GROUP_LAYERS, Moment, history_moments, time_chart
from journal.clock import database_now
from scheduling.resources import GIB
from tests import factories

NOW = datetime(2026, 5, 4, 13, 27, 11, tzinfo=UTC)
QUERY_LIMIT = 30


def content_of(page: str, key: str) -> dict[str, Any]:
    found = re.search(rf'<script id="{key}" type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    parsed: dict[str, Any] = json.loads(found[1])
    return parsed


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=30))
def test_gaps_are_where_an_hour_or_day_is_missing(spans: list[tuple[int, bool]]) -> None:
    times = sorted({NOW + start * HOUR: DAY if is_day else HOUR for start, is_day in spans}.items())
    slow = {
        number
        for number, (at, length) in enumerate(times)
        if number + 1 < len(times) and not any(at < other <= at + length for other, _ in times)
    }
    assert gaps(times) == slow


@pytest.mark.django_db
def test_days_are_read_and_hours_of_the_last_three_days() -> None:
    start = NOW.replace(hour=0, minute=0, second=0)
    for days in (91, 90, 4, 3, 1):
        factories.make_capacity_history(at=start - days * DAY, span=HistorySpan.DAY)
    for hours in (-73, -72, 2):
        factories.make_capacity_history(at=start + hours * HOUR)
    factories.make_capacity_history(at=start, zone="az-b")
    found = recent_history(zones=["az-a"], groups=[""], now=NOW)
    assert [(row.span, row.at - start) for row in found["az-a", ""]] == [
        ("day", -90 * DAY),
        ("day", -4 * DAY),
        ("hour", -72 * HOUR),
        ("hour", 2 * HOUR),
    ]


@pytest.mark.django_db
def test_a_picture_and_its_table_have_the_same_numbers_and_break_where_nobody_looked() -> None:
    rows = [
        factories.make_capacity_history(
            at=NOW + hours * HOUR,
            group_name="hana_1",
            payg_memory_bytes=(hours + 1) * GIB,
            exclusively_free_memory_bytes=None,
            total_memory_bytes=64 * GIB,
        )
        for hours in (0, 1, 4)
    ]
    chart = time_chart("x", "Memory", history_moments(rows), layers=GROUP_LAYERS, total="total")
    start = int(NOW.timestamp()) * 1000
    assert chart.content["times"] == [start + hours * 3_600_000 for hours in (0, 1, 2, 4)]
    payg = chart.content["layers"][1]
    assert (payg["kind"], payg["amounts"]) == ("vms", [GIB, 2 * GIB, None, 5 * GIB])
    assert chart.content["layers"][3]["amounts"] == [None] * 4
    newest = chart.lines[0]
    assert newest.cells[:2] == ["0 GiB", "5 GiB"]
    assert newest.cells[-1] == "64 GiB"
    assert [line.at for line in chart.lines] == [
        "2026-05-04 17:27 UTC",
        "2026-05-04 14:27 UTC",
        "2026-05-04 13:27 UTC",
    ]
    assert chart.summary == "now 64 GiB installed; other VMs 5 GiB (7 %)"


def test_a_picture_of_nothing_says_so() -> None:
    moments: list[Moment] = []
    chart = time_chart("x", "Memory", moments, layers=GROUP_LAYERS, total="total")
    assert (chart.lines, chart.summary, chart.is_made_up) == ([], "", False)
    assert not chart.begins


@pytest.mark.usefixtures("region")
class TestPages:
    def test_the_overview_draws_each_zone(self, admin_client: Client) -> None:
        now = database_now()
        for hours in (1, 2):
            factories.make_capacity_history(
                at=now - hours * HOUR, free_memory_bytes=7 * GIB, is_made_up=hours == 2
            )
        page = admin_client.get(reverse("admin:index")).content.decode()
        free = content_of(page, "chart-zone-0")["layers"][-1]
        assert free["amounts"] == [7 * GIB] * 2
        assert "partly made up" in page
        assert page.count('src="/static/vendor/echarts/echarts.js" defer') == 1

    @pytest.mark.parametrize(
        ("page", "permission"),
        [
            ("index", "view_capacityhistory"),
            ("group", "view_capacityhistory"),
            ("host", "view_hosthistory"),
        ],
    )
    def test_who_may_not_see_the_history_sees_no_picture(
        self, client: Client, page: str, permission: str
    ) -> None:
        host = factories.make_host("drawn")
        group = factories.make_group_capacity("drawn")
        factories.make_capacity_history(at=database_now(), group_name="drawn")
        factories.make_capacity_history(at=database_now())
        address = {
            "index": reverse("admin:index"),
            "group": reverse("admin:capacity_groupcapacity_change", args=[group.pk]),
            "host": reverse("admin:hosts_host_change", args=[host.pk]),
        }[page]
        person = User.objects.create_user("ann", password="x", is_staff=True)
        person.user_permissions.set(
            Permission.objects.filter(codename__in=["view_host", "view_groupcapacity"])
        )
        client.force_login(person)
        assert "data-chart=" not in client.get(address).content.decode()
        person.user_permissions.add(Permission.objects.get(codename=permission))
        assert "data-chart=" in client.get(address).content.decode()

    def test_a_host_shows_its_days_and_now(self, admin_client: Client) -> None:
        host = factories.make_host("drawn", memory_gib=64)
        today = database_now().date()
        factories.make_host_history(host.name, day=today - 2 * DAY, allocated_memory_bytes=GIB)
        url = reverse("admin:hosts_host_change", args=[host.pk])
        content = content_of(admin_client.get(url).content.decode(), "chart-host")
        assert content["total"]["amounts"] == [0, None, 64 * GIB]
        assert content["layers"][0]["amounts"] == [GIB, None, 0]

    def test_a_history_of_one_time_says_that_it_begins(self, admin_client: Client) -> None:
        words = "The history begins here"
        now = database_now()
        factories.make_capacity_history(at=now)
        assert words in admin_client.get(reverse("admin:index")).content.decode()
        factories.make_capacity_history(at=now - HOUR)
        assert words not in admin_client.get(reverse("admin:index")).content.decode()

    def test_pages_with_pictures_need_few_queries(self, admin_client: Client) -> None:
        group = factories.make_group_capacity("drawn")
        now = database_now()
        for hours in range(60):
            factories.make_capacity_history(at=now - hours * HOUR, group_name="drawn")
            factories.make_capacity_history(at=now - hours * HOUR)
        for url in (
            reverse("admin:index"),
            reverse("admin:capacity_groupcapacity_change", args=[group.pk]),
        ):
            admin_client.get(url)
            with CaptureQueriesContext(connection) as captured:
                assert admin_client.get(url).status_code == 200
            assert len(captured) <= QUERY_LIMIT


@pytest.mark.django_db
class TestRunway:
    def page(self, client: Client, group: str = "hana_1") -> str:
        row = GroupCapacity.objects.get(group_name=group)
        url = reverse("admin:capacity_groupcapacity_change", args=[row.pk])
        return client.get(url).content.decode()

    def grow(self, days: int, free_gib: int) -> None:
        now = database_now()
        factories.make_group_capacity("hana_1", exclusively_free_memory_bytes=free_gib * GIB)
        for day in range(days):
            factories.make_capacity_history(
                at=now - day * DAY,
                span=HistorySpan.DAY if day > 3 else HistorySpan.HOUR,
                group_name="hana_1",
                payg_memory_bytes=(100 - day) * GIB,
            )

    def test_the_end_is_told_with_its_pace(self, admin_client: Client) -> None:
        self.grow(days=20, free_gib=30)
        page = self.page(admin_client)
        wanted = database_now() + 30 * DAY
        assert f"is likely used up on {wanted:%Y-%m-%d}" in page
        assert "Use grows by 1 GiB a day, the median of 20 days." in page

    def test_what_ends_and_starts_is_counted(self, admin_client: Client) -> None:
        self.grow(days=20, free_gib=30)
        now = database_now()
        factories.make_group("hana_1", flavors=[("small", 4096, 1)])
        ending = factories.make_commitment(amount_gib=16, end_time=now + 10 * DAY)
        factories.make_slot(ending, factories.make_host(), memory_gib=16)
        factories.make_commitment(
            amount_gib=6, state=CommitmentStatus.PLANNED, confirm_by=now + 5 * DAY
        )
        factories.make_commitment(
            amount_gib=9, zone="az-b", state=CommitmentStatus.PLANNED, confirm_by=now + DAY
        )
        assert known_memory_changes("az-a", "hana_1", now=now) == [
            (now + 5 * DAY, -6 * GIB),
            (now + 10 * DAY, 16 * GIB),
        ]
        page = self.page(admin_client)
        assert f"is likely used up on {now + 40 * DAY:%Y-%m-%d}" in page
        assert "16 GiB come back when commitments end and 6 GiB are taken" in page

    def test_too_little_history_is_not_known(self, admin_client: Client) -> None:
        self.grow(days=3, free_gib=30)
        assert "is not known: 3 days of history, 14 are needed." in self.page(admin_client)

    def test_nothing_free_and_no_growth_are_said(self, admin_client: Client) -> None:
        self.grow(days=20, free_gib=0)
        assert "Nothing is free for this group now." in self.page(admin_client)
        GroupCapacity.objects.update(exclusively_free_memory_bytes=10_000 * GIB)
        assert "lasts longer than a year." in self.page(admin_client)

    def test_commitments_that_may_not_be_seen_are_left_out_and_it_is_said(
        self, client: Client
    ) -> None:
        self.grow(days=20, free_gib=30)
        person = User.objects.create_user("ann", password="x", is_staff=True)
        names = ["view_groupcapacity", "view_capacityhistory"]
        person.user_permissions.set(Permission.objects.filter(codename__in=names))
        client.force_login(person)
        assert "which you may not see." in self.page(client)
