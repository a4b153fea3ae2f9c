from __future__ import annotations

import pytest
from django.db.backends.utils import CursorWrapper
from prometheus_client.core import CounterMetricFamily

from journal.kept_sums import Rows
from journal.metrics import metric_name
from journal.readings import Figure, Reading, Scraped, counter

pytestmark = pytest.mark.django_db


def told(scraped: Scraped) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in scraped.collect()
        for sample in family.samples
    }


def test_columns_after_the_labels_are_the_figures_and_null_is_no_series() -> None:
    statement = "SELECT * FROM (VALUES ('a', 1.5, %(more)s), ('b', NULL, 2)) AS rows"
    figures = (Figure("one", "First."), Figure("two", "Second.", CounterMetricFamily))
    reading = Reading(statement, ("zone",), figures, lambda _: {"more": 7})
    assert told(Scraped("test", reading)) == {
        ("one", "a"): 1.5,
        ("two_total", "a"): 7,
        ("two_total", "b"): 2,
    }


def test_a_function_tells_rows_with_the_cursor_of_the_scrape() -> None:
    def rows(cursor: CursorWrapper) -> Rows:
        cursor.execute("SELECT current_setting('statement_timeout')")
        ((limit,),) = cursor.fetchall()
        return [(limit, True)]

    assert told(Scraped("test", Reading(rows, ("limit",), (Figure("one", "Words."),)))) == {
        ("one", "10s"): 1
    }


def test_every_series_of_a_counter_is_there_from_the_start() -> None:
    made = counter("core_test_total", "Words.", outcome=("good", "bad"), kind=("x",))
    names = {sample.name for family in made.collect() for sample in family.samples}
    assert metric_name("core_test_total") in names
    values = {
        (sample.labels["outcome"], sample.labels["kind"])
        for family in made.collect()
        for sample in family.samples
    }
    assert values == {("good", "x"), ("bad", "x")}
