"""The metrics pages: events of the processes of a role, and facts of the database.

What happened in a process is counted there. With ``PROMETHEUS_MULTIPROC_DIR`` the processes of a
role keep their counters in files, and any of them answers for all. What the database knows is read
when a scrape comes, by collectors registered with :func:`at_scrape`, and told by web processes
alone: ``journal.exporter`` tells the counters of workers and of beat.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import structlog
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.backends.utils import CursorWrapper
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric

from journal.collector import paused_collector
from journal.errors import HeadroomError
from journal.exposition import text_page
from journal.shared_files import SharedFilesCollector

log = structlog.get_logger(__name__)

SCRAPE_LIMIT_MILLISECONDS = 10_000
PATIENCE_SECONDS: Final = 10.0
WEB: Final = "web"
Value = TypeVar("Value")


class ScrapeCollector(Protocol):
    """Reads metrics when a scrape comes.

    One with a true attribute ``is_of_primary`` is not asked of a standby.
    """

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now; may raise ``DatabaseError``."""


class _Scrape:
    """A scrape under way.

    Attributes:
        cursor: That of its transaction.
        known: What its collectors have read for each other, by the function that read it.
    """

    def __init__(self) -> None:
        self.cursor: CursorWrapper | None = None
        self.known: dict[Callable[..., object], object] = {}


_collectors: list[ScrapeCollector] = []
_under_way: ContextVar[_Scrape | None] = ContextVar("scrape_under_way", default=None)


def metric_name(suffix: str) -> str:
    """Return a metric's full name: ``HEADROOM_METRIC_PREFIX`` and the specification's suffix."""
    return f"{settings.HEADROOM.metric_prefix}_{suffix}"


def at_scrape(collector: ScrapeCollector) -> None:
    """Collect from ``collector`` at every scrape."""
    _collectors.append(collector)


@contextmanager
def scrape_cursor() -> Iterator[CursorWrapper]:
    """Open a transaction for reading at a scrape; no statement of it takes longer than 10 s.

    The collectors of a scrape share one.

    Raises:
        DatabaseError: The database does not answer, or not in time.
    """
    scrape = _under_way.get()
    if scrape is not None and scrape.cursor is not None:
        yield scrape.cursor
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('statement_timeout', %s, true)", [str(SCRAPE_LIMIT_MILLISECONDS)]
        )
        yield cursor


def once_per_scrape(read: Callable[[CursorWrapper], Value], cursor: CursorWrapper) -> Value:
    """Return what ``read`` does, which is called once for all collectors of a scrape."""
    scrape = _under_way.get()
    if scrape is None:
        return read(cursor)
    if read not in scrape.known:
        scrape.known[read] = read(cursor)
    found: Any = scrape.known[read]  # Any: functions of many types have their values there
    return found  # type: ignore[no-any-return]


def is_multiprocess() -> bool:
    """Whether several processes share their counters through files."""
    return bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))


def metrics_page() -> bytes:
    """Return the page of the web processes: their own counters, and what the database knows."""
    return role_page(WEB) + facts_page()


@paused_collector()
def facts_page() -> bytes:
    """Return what the database knows; one role tells it, so that nothing is told twice."""
    return text_page(collect_facts())


def collect_facts() -> list[Metric]:
    """Return what the collectors have read, in one transaction.

    One that fails is left out, and the others go on in a new transaction. Without a database there
    is nothing to tell. A fresh standby is asked first, in a transaction of its own; what it did not
    tell, and what is the primary's, the primary is asked for.
    """
    from journal.standby.asking import from_standby  # noqa: PLC0415 - its counters have names of ours

    told: dict[int, list[Metric]] = {}
    scrape = _Scrape()
    token = _under_way.set(scrape)
    try:
        from_standby(lambda: _collect_there(told, scrape), reader="metrics")
        waiting = deque(number for number in range(len(_collectors)) if number not in told)
        while waiting:
            before = len(waiting)
            try:
                with scrape_cursor() as scrape.cursor:
                    _collect(waiting, told)
            except DatabaseError as error:
                if len(waiting) == before:  # no transaction to be had
                    log.warning("scrape_failed", collector="all", error=str(error))
                    break
            finally:
                scrape.cursor = None
    finally:
        _under_way.reset(token)
    return [metric for number in sorted(told) for metric in told[number]]


def _collect_there(told: dict[int, list[Metric]], scrape: _Scrape) -> bool:
    """Let collectors read from a standby.

    Raises:
        DatabaseError: One failed, which the primary is asked for with all that follow.
    """
    try:
        with scrape_cursor() as scrape.cursor:
            for number, collector in enumerate(_collectors):
                if not getattr(collector, "is_of_primary", False):
                    told[number] = list(collector.collect())
    finally:
        scrape.cursor = None
    return True


def _collect(waiting: deque[int], told: dict[int, list[Metric]]) -> None:
    """Let collectors read until one fails.

    Raises:
        DatabaseError: One did.
    """
    while waiting:
        number = waiting.popleft()
        collector = _collectors[number]
        try:
            told[number] = list(collector.collect())
        except DatabaseError as error:
            name = getattr(collector, "name", type(collector).__name__)
            log.warning("scrape_failed", collector=name, error=str(error))
            raise


@paused_collector()
def role_page(role: str) -> bytes:
    """Return what happened in the processes of a role."""
    return text_page([_role(role), *_processes()])


def _role(role: str) -> Metric:
    """Return one series, by which alerts see that a role is scraped."""
    family = GaugeMetricFamily(
        metric_name("role"), "1 for the role of the processes that tell this.", labels=["role"]
    )
    family.add_metric([role], 1)
    return family


def _processes() -> Iterable[Metric]:
    if not is_multiprocess():
        return REGISTRY.collect()
    return SharedFilesCollector(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])).collect()


class PageBusy(HeadroomError):  # noqa: N818 - a state of the process
    """The page has been computed for longer than a scrape waits."""

    code = "metrics_busy"


class SharedPage:
    """A page that is computed once for all who ask meanwhile, and for a moment after.

    Args:
        compute: Returns the page.
        clock: Seconds that only grow.
    """

    def __init__(
        self, compute: Callable[[], bytes], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._compute = compute
        self._clock = clock
        self._computing = threading.Lock()
        self._page = b""
        self._done_at = -math.inf

    def get(self, *, keep_seconds: float, patience_seconds: float = PATIENCE_SECONDS) -> bytes:
        """Return a page that was not finished before the call, or not long before.

        Args:
            keep_seconds: How old a finished page may be.
            patience_seconds: How long to wait for the one who computes it.

        Raises:
            PageBusy: that took too long.
        """
        asked_at = self._clock()
        if not self._computing.acquire(timeout=patience_seconds):
            raise PageBusy("the metrics of this process are being computed; ask again later")
        try:
            if self._done_at < asked_at - keep_seconds:
                self._page = self._compute()
                self._done_at = self._clock()
            return self._page
        finally:
            self._computing.release()


_web_page = SharedPage(metrics_page)


def shared_metrics_page() -> bytes:
    """Return the page of the web processes, computed once for all who ask at the same time.

    Raises:
        PageBusy: it has been under way for too long.
    """
    return _web_page.get(keep_seconds=settings.HEADROOM.metrics.keep_seconds)
