"""The history of capacity: written once, never invented, days before hours go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from capacity.figures.history import FIGURES, forget_history, keep_history
from capacity.figures.made_up import make_up_history
from capacity.figures.zone_rooms import zone_sums
from capacity.models import CapacityComputation, CapacityHistory, HistorySpan, HostHistory
from capacity.tasks import keep_history as keep_history_task
from scheduling.resources import GIB
from tests import factories

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = datetime(2026, 5, 4, 13, 27, 11, tzinfo=UTC)


def computed(zone: str = "az-a", at: datetime = NOW) -> None:
    CapacityComputation.objects.update_or_create(
        zone=zone, defaults={"snapshot": "1:1:", "snapshot_xmin": 1, "computed_at": at}
    )


def hour_row(at: datetime, **columns: Any) -> CapacityHistory:
    return factories.make_capacity_history(at=at, **columns)


def moments(span: HistorySpan = HistorySpan.HOUR) -> list[datetime]:
    rows = CapacityHistory.objects.filter(span=span, group_name="").order_by("at")
    return list(rows.values_list("at", flat=True))


@pytest.mark.django_db
def test_a_row_says_what_the_dashboard_and_the_reports_say() -> None:
    host = factories.make_host(memory_gib=64, vcpus=32)
    factories.make_host("h2", memory_gib=32, vcpus=8)
    factories.make_group("hana_1", flavors=[("small", 4096, 1)])
    commitment = factories.make_commitment(amount_gib=16, used_memory_bytes=4 * GIB, used_vcpus=1)
    slot = factories.make_slot(commitment, host, memory_gib=16)
    factories.make_vm(host=host, slot=slot, memory_gib=4, vcpus=1)
    factories.make_vm(host=host, memory_gib=8, vcpus=2)
    factories.recount_room(host)
    row = factories.make_group_capacity(
        "hana_1",
        running_memory_bytes=12 * GIB,
        running_vcpus=3,
        reserved_unused_memory_bytes=12 * GIB,
    )
    computed()

    keep_history(now=NOW)

    (sums,) = zone_sums()
    zone = CapacityHistory.objects.get(group_name="")
    assert (zone.span, zone.at) == ("hour", NOW.replace(minute=0, second=0))
    assert zone.total_memory_bytes == sums["installed"] == 96 * GIB
    assert (zone.free_memory_bytes, zone.free_vcpus) == (sums["free"], sums["free_vcpus"])
    assert zone.covered_memory_bytes == 4 * GIB
    assert zone.covered_memory_bytes + zone.payg_memory_bytes == sums["vms"]
    assert zone.reserved_unused_memory_bytes == sums["committed"]
    assert (zone.failover_memory_bytes, zone.in_flight_memory_bytes) == (0, 0)
    assert zone.exclusively_free_memory_bytes is None
    group = CapacityHistory.objects.get(group_name="hana_1")
    assert (group.covered_memory_bytes, group.payg_memory_bytes) == (4 * GIB, 8 * GIB)
    assert (group.covered_vcpus, group.payg_vcpus) == (1, 2)
    for name in ("total", "free", "exclusively_free", "reserved_unused"):
        column = f"{name}_memory_bytes"
        assert getattr(group, column) == getattr(row, column)
    assert (group.failover_memory_bytes, group.in_flight_vcpus) == (None, None)
    of_host = HostHistory.objects.get(host_name=host.name)
    assert of_host.allocated_memory_bytes == 12 * GIB
    assert of_host.day == NOW.date()


@pytest.mark.django_db
def test_zone_parts_add_up_to_its_hosts_when_none_is_over_subscribed() -> None:
    host = factories.make_host(memory_gib=64, vcpus=32)
    factories.make_vm(host=host, memory_gib=20, vcpus=5)
    factories.make_reservation(kind="failover", host=host, memory_gib=10, vcpus=2)
    factories.recount_room(host)
    keep_history(now=NOW)
    row = CapacityHistory.objects.get()
    for unit in ("memory_bytes", "vcpus"):
        parts = [getattr(row, f"{name}_{unit}") or 0 for name in FIGURES if name != "total"]
        assert sum(parts) == getattr(row, f"total_{unit}")
    assert row.failover_memory_bytes == 10 * GIB


@pytest.mark.django_db
def test_an_hour_is_written_once_and_an_outage_stays_a_gap() -> None:
    factories.make_host()
    first = keep_history(now=NOW)
    assert (first.hours, first.hosts) == (1, 1)
    factories.make_host("h2", memory_gib=64)
    again = keep_history(now=NOW + timedelta(minutes=30))
    assert (again.hours, again.hosts) == (0, 0)
    assert CapacityHistory.objects.get().total_memory_bytes == 64 * GIB
    keep_history(now=NOW + 5 * HOUR)
    start = NOW.replace(minute=0, second=0)
    assert moments() == [start, start + 5 * HOUR]


@pytest.mark.django_db
def test_a_group_whose_numbers_are_old_or_broken_has_no_row() -> None:
    factories.make_host()
    factories.make_group_capacity("hana_1")
    factories.make_group_capacity("broken", is_ready=False)
    keep_history(now=NOW)  # nothing was computed
    computed(at=NOW)
    keep_history(now=NOW + HOUR)
    keep_history(now=NOW + 2 * HOUR)  # an hour and more later
    groups = CapacityHistory.objects.exclude(group_name="").values_list("group_name", "at")
    assert list(groups) == [("hana_1", (NOW + HOUR).replace(minute=0, second=0))]
    assert len(moments()) == 3


@pytest.mark.django_db
def test_a_zone_that_came_within_the_hour_is_written_and_hosts_without_zone_are_not() -> None:
    factories.make_host("lost", zone="")
    keep_history(now=NOW)
    factories.make_host(zone="az-b")
    assert keep_history(now=NOW).hours == 1
    assert CapacityHistory.objects.get().zone == "az-b"


@pytest.mark.django_db
def test_days_are_means_of_the_hours_that_were_looked_at() -> None:
    start = NOW.replace(hour=0, minute=0, second=0)
    for hours, free in ((-48, 9), (-24, 10), (-20, 11), (-3, 13)):
        hour_row(start + hours * HOUR, free_memory_bytes=free, failover_memory_bytes=None)
    hour_row(start, free_memory_bytes=99)
    assert keep_history(now=NOW).days == 2
    days = CapacityHistory.objects.filter(span=HistorySpan.DAY).order_by("at")
    assert [(row.at, row.hours, row.free_memory_bytes, row.failover_memory_bytes) for row in days] \
        == [(start - 2 * DAY, 1, 9, None), (start - DAY, 3, 11, None)]  # fmt: skip
    assert keep_history(now=NOW).days == 0
    assert keep_history(now=NOW + DAY).days == 1


class TestMeans(TestCase):
    @given(st.lists(st.tuples(st.integers(0, 23), st.integers(0, 2**60)), max_size=12))
    def test_a_day_is_the_mean_rounded_down(self, hours: list[tuple[int, int]]) -> None:
        CapacityHistory.objects.all().delete()
        start = NOW.replace(hour=0, minute=0, second=0)
        amounts = dict(hours)
        for hour, amount in amounts.items():
            hour_row(start + hour * HOUR, payg_vcpus=amount)
        keep_history(now=start + DAY)
        days = CapacityHistory.objects.filter(span=HistorySpan.DAY)
        wanted = [(len(amounts), sum(amounts.values()) // len(amounts))] if amounts else []
        assert list(days.values_list("hours", "payg_vcpus")) == wanted


@pytest.mark.django_db
def test_hours_are_forgotten_after_their_days_were_made(settings: Any) -> None:
    start = NOW.replace(hour=0, minute=0, second=0)
    hour_row(start - 100 * DAY)
    hour_row(start - 89 * DAY)
    forget_history(now=NOW)
    assert len(moments()) == 2  # no day is there yet
    keep_history(now=NOW)
    assert moments() == [start - 89 * DAY]
    assert moments(HistorySpan.DAY) == [start - 100 * DAY, start - 89 * DAY]
    capacity = settings.HEADROOM.capacity.model_copy(update={"daily_history_days": 95})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"capacity": capacity})
    assert forget_history(now=NOW) == 1
    assert moments(HistorySpan.DAY) == [start - 89 * DAY]


@pytest.mark.django_db
def test_days_of_hosts_are_forgotten_whether_or_not_the_host_is_there() -> None:
    factories.make_host()
    keep_history(now=NOW)
    keep_history(now=NOW + 91 * DAY)
    assert list(HostHistory.objects.values_list("day", flat=True)) == [(NOW + 91 * DAY).date()]


@pytest.mark.django_db(transaction=True)
def test_runs_beside_each_other_write_what_one_would() -> None:
    for number in range(6):
        factories.make_host(f"h{number}", zone=f"az-{number % 3}")
    for days in (1, 2):
        hour_row(NOW - days * DAY, zone="az-0")
    together = Barrier(4)

    def run(_: int) -> None:
        together.wait(timeout=30)
        try:
            keep_history(now=NOW)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(4)))
    assert CapacityHistory.objects.filter(at=NOW.replace(minute=0, second=0)).count() == 3
    assert len(moments(HistorySpan.DAY)) == 2
    assert HostHistory.objects.count() == 6


@pytest.mark.django_db
def test_the_task_tells_what_it_wrote() -> None:
    factories.make_host()
    assert keep_history_task() == {"hours": 1, "days": 0, "hosts": 1, "forgotten": 0}


@pytest.mark.django_db
def test_a_made_up_past_says_so_and_ends_where_the_present_begins() -> None:
    host = factories.make_host(memory_gib=64, vcpus=32)
    factories.make_vm(host=host, memory_gib=20, vcpus=5)
    factories.recount_room(host)
    factories.make_group_capacity("hana_1", running_memory_bytes=20 * GIB, running_vcpus=5)
    computed()
    assert make_up_history(now=NOW) > 0
    real = CapacityHistory.objects.filter(is_made_up=False)
    assert set(real.values_list("at", flat=True)) == {NOW.replace(minute=0, second=0)}
    made_up = CapacityHistory.objects.filter(is_made_up=True)
    assert made_up.filter(at__gte=NOW.replace(minute=0, second=0)).count() == 0
    for row in made_up.filter(group_name=""):
        parts = sum(getattr(row, f"{name}_memory_bytes") or 0 for name in FIGURES[1:])
        assert parts == row.total_memory_bytes == 64 * GIB
        assert row.payg_memory_bytes <= 20 * GIB
    assert HostHistory.objects.filter(is_made_up=False).count() == 1
    count = CapacityHistory.objects.count()
    assert make_up_history(now=NOW) == 0
    assert CapacityHistory.objects.count() == count
    assert keep_history(now=NOW + DAY).days == 2  # of the present day: zone and group
