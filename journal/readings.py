"""Metrics by declaration: counters with their series, and what a scrape reads of the database.

A :class:`Reading` is a statement (or kept sums, or a function that returns rows) whose rows hold
labels first and one number for each :class:`Figure` after them; a :class:`Scraped` is a group of
readings that are told or left out together. A declared group is told at every scrape of a web
process once the app gave it to :func:`journal.metrics.at_scrape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

from django.db.backends.utils import CursorWrapper
from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from journal.kept_sums import Rows, Sums, read_sums
from journal.metrics import metric_name, scrape_cursor

Source: TypeAlias = str | Sums | Callable[[CursorWrapper], Rows]
Family: TypeAlias = type[GaugeMetricFamily | CounterMetricFamily]


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of a reading.

    Attributes:
        name: Full name.
        words: Its help.
        family: Gauge, or counter whose total the rows hold.
    """

    name: str
    words: str
    family: Family = GaugeMetricFamily


def gauge(suffix: str, words: str) -> Figure:
    """Return a gauge under our prefix."""
    return Figure(metric_name(suffix), words)


def total(suffix: str, words: str) -> Figure:
    """Return a counter under our prefix."""
    return Figure(metric_name(suffix), words, CounterMetricFamily)


@dataclass(frozen=True, slots=True)
class Reading:
    """Rows and the metrics that they tell.

    Attributes:
        source: Statement, kept sums, or a function of the scrape's cursor; each row has the labels,
            then a number or null (no series) for each figure.
        labels: Names of the labels.
        figures: The metrics, in the order of the columns.
        parameters: Of a statement, asked for at each scrape.
    """

    source: Source
    labels: tuple[str, ...]
    figures: tuple[Figure, ...]
    parameters: Callable[[CursorWrapper], Mapping[str, Any]] = field(default=lambda _: {})

    def __call__(self, cursor: CursorWrapper) -> list[Metric]:
        """Return the metrics as of now."""
        families = [one.family(one.name, one.words, labels=self.labels) for one in self.figures]
        for row in self._rows(cursor):
            labels = [str(label) for label in row[: len(self.labels)]]
            for family, number in zip(families, row[len(labels) :], strict=True):
                if number is not None:
                    family.add_metric(labels, float(number))
        return list(families)

    def _rows(self, cursor: CursorWrapper) -> Rows:
        if isinstance(self.source, Sums):
            return read_sums(cursor, self.source)[0]
        if callable(self.source):
            return self.source(cursor)
        cursor.execute(self.source, self.parameters(cursor))
        rows: Rows = cursor.fetchall()
        return rows


class Scraped:
    """What is told together, or left out together if a statement fails.

    Args:
        name: In the log, when it is left out.
        parts: Readings, or functions that make metrics of something else.
        is_of_primary: Whether the primary is asked even where there is a standby: for ages, which
            only the clock that wrote the times tells.
    """

    def __init__(
        self,
        name: str,
        *parts: Callable[[CursorWrapper], Iterable[Metric]],
        is_of_primary: bool = False,
    ) -> None:
        self.name = name
        self.is_of_primary = is_of_primary
        self._parts = parts

    def collect(self) -> list[Metric]:
        """Return the metrics as of now; rows that are gone leave no series behind.

        Raises:
            DatabaseError: The database does not answer, or not in time.
        """
        with scrape_cursor() as cursor:
            return [metric for part in self._parts for metric in part(cursor)]


def counter(suffix: str, words: str, **series: Iterable[str]) -> Counter:
    """Return a counter of this process all of whose series are there from the start, at 0.

    Args:
        suffix: Of its name.
        words: Its help.
        series: Label -> the values it may have.
    """
    made = Counter(metric_name(suffix), words, tuple(series))
    for labels in product(*series.values()) if series else ():
        made.labels(*labels)
    return made
