"""The metrics page: one registry in a single process, the shared files in several.

A worker process writes its counters to ``PROMETHEUS_MULTIPROC_DIR`` when that is set, and any of
them answers for all. Values that are read from the database when a scrape comes are collectors
registered with :func:`at_scrape`; they are the same in both modes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.backends.utils import CursorWrapper
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess
from prometheus_client.core import Metric

log = structlog.get_logger(__name__)

SCRAPE_LIMIT_MILLISECONDS = 10_000


class ScrapeCollector(Protocol):
    """Reads metrics when a scrape comes."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now; may raise ``DatabaseError``."""
        ...


class _Guarded:
    """Leaves a collector's metrics out of a scrape when the database does not answer."""

    def __init__(self, collector: ScrapeCollector) -> None:
        self._collector = collector

    def describe(self) -> Iterator[Metric]:
        """Name nothing, so that registering never asks the database."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics, or none."""
        try:
            return iter(list(self._collector.collect()))
        except DatabaseError as error:
            log.warning("scrape_failed", collector=type(self._collector).__name__, error=str(error))
            return iter(())


_scrape_registry = CollectorRegistry()


def metric_name(suffix: str) -> str:
    """Return a metric's full name: ``HEADROOM_METRIC_PREFIX`` and the specification's suffix."""
    return f"{settings.HEADROOM.metric_prefix}_{suffix}"


def at_scrape(collector: ScrapeCollector) -> None:
    """Collect from ``collector`` at every scrape."""
    _scrape_registry.register(_Guarded(collector))


@contextmanager
def scrape_cursor() -> Iterator[CursorWrapper]:
    """Open a transaction for reading at a scrape; no statement of it takes longer than 10 s.

    Raises:
        DatabaseError: The database does not answer, or not in time.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('statement_timeout', %s, true)", [str(SCRAPE_LIMIT_MILLISECONDS)]
        )
        yield cursor


def is_multiprocess() -> bool:
    """Whether several processes share their counters through files."""
    return bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))


def metrics_page() -> bytes:
    """Return all metrics in the text format of Prometheus."""
    registry = REGISTRY
    if is_multiprocess():
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry) + generate_latest(_scrape_registry)
