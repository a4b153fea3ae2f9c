"""Sums that a task keeps for scrapes (``journal.kept_sums``)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import DataError, connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from capacity.models import ReservationKind
from core.tasks import keep_sums_of_metrics
from journal import kept_sums
from journal.kept_sums import INTERVALS_TOLD, Sums, keep_sums, read_sums
from journal.metrics import facts_page, scrape_cursor
from journal.models import KeptSums
from tests.factories import make_commitment, make_group, make_host, make_reservation, make_slot

pytestmark = pytest.mark.django_db

NAME = "of_a_test"


@pytest.fixture
def hosts() -> Iterator[Sums]:
    """Sums of what the table of hosts has."""
    yield kept_sums.kept_sums(
        NAME, "SELECT zone, count(*), sum(total_vcpus) FROM hosts_host GROUP BY 1 ORDER BY 1"
    )
    del kept_sums._known[NAME]


def read(sums: Sums) -> list[list[object]]:
    with scrape_cursor() as cursor:
        (rows,) = read_sums(cursor, sums)
    return [list(row) for row in rows]


def test_what_nobody_kept_is_summed_up_when_asked(hosts: Sums) -> None:
    assert read(hosts) == []
    vcpus = make_host("h1").total_vcpus
    assert read(hosts) == [["az-a", 1, vcpus]]


def test_what_was_kept_is_told_until_it_is_kept_anew(hosts: Sums) -> None:
    vcpus = make_host("h1").total_vcpus
    keep_sums()
    make_host("h2")
    assert read(hosts) == [["az-a", 1, vcpus]]
    keep_sums()
    assert read(hosts) == [["az-a", 2, 2 * vcpus]]


def test_sums_that_nobody_renews_are_told_no_more_but_summed_up(hosts: Sums) -> None:
    vcpus = make_host("h1").total_vcpus
    keep_sums()
    make_host("h2")
    old = timedelta(seconds=INTERVALS_TOLD * settings.HEADROOM.metrics.sums_every_seconds)
    KeptSums.objects.update(computed_at=F("computed_at") - old)
    assert read(hosts) == [["az-a", 2, 2 * vcpus]]


def test_sums_of_another_statement_of_the_name_are_not_told(hosts: Sums) -> None:
    keep_sums()
    renamed = kept_sums.kept_sums(NAME, "SELECT 'as another release has it'")
    assert hosts.name == renamed.name
    assert read(renamed) == [["as another release has it"]]


def test_sums_of_other_parameters_are_not_told() -> None:
    def chosen(number: int) -> Sums:
        return kept_sums.kept_sums(NAME, "SELECT %(number)s::int", lambda _: {"number": number})

    try:
        chosen(1)
        keep_sums()
        assert read(chosen(2)) == [[2]]
    finally:
        del kept_sums._known[NAME]


def test_sums_that_cannot_be_had_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(kept_sums._known)
    monkeypatch.setattr(kept_sums, "_known", {"wrong": None, **kept_sums._known})
    kept_sums.kept_sums("wrong", "SELECT 1 / 0")

    with pytest.raises(DataError):
        keep_sums()

    assert set(KeptSums.objects.values_list("name", flat=True)) == others != set()


def test_a_scrape_tells_the_same_with_and_without_kept_sums() -> None:
    make_group()
    host = make_host("h1")
    make_slot(make_commitment(), host)
    make_reservation(host, kind=ReservationKind.FAILOVER)
    summed = facts()
    assert any(line.startswith("cortex_reservation_state{") for line in summed)
    assert keep_sums_of_metrics() > 0
    assert facts() == summed


def facts() -> list[str]:
    """Return what a scrape tells of the database, less the times."""
    lines = facts_page().decode().splitlines()
    return [line for line in lines if not line.startswith("cortex_metrics_sums_age_seconds ")]


def test_a_scrape_reads_no_table_of_reservations_or_inventories_once_sums_are_kept() -> None:
    keep_sums()
    with CaptureQueriesContext(connection) as statements:
        facts_page()
    read_by = [
        statement["sql"]
        for statement in statements
        if any(
            f"FROM {table}" in statement["sql"] or f"JOIN {table}" in statement["sql"]
            for table in (
                "capacity_reservationallocation",
                "placement_inventory",
                "failover_failoverreservation",
            )
        )
    ]
    assert read_by == []


def test_a_scrape_tells_how_old_the_oldest_sums_are(hosts: Sums) -> None:
    (before,) = age()
    assert before == 0
    keep_sums()
    KeptSums.objects.filter(name=hosts.name).update(
        computed_at=F("computed_at") - timedelta(hours=1)
    )
    KeptSums.objects.create(  # of a release that is gone
        name="unknown",
        digest="",
        figures="[]",
        computed_at=KeptSums.objects.earliest("computed_at").computed_at - timedelta(days=1),
    )
    (after,) = age()
    assert 3600 <= after < 7200


def age() -> tuple[float, ...]:
    lines = facts_page().decode().splitlines()
    name = "cortex_metrics_sums_age_seconds "
    return tuple(float(line.removeprefix(name)) for line in lines if line.startswith(name))
