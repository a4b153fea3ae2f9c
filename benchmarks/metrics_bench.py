"""``bench metrics``: what a scrape of a web process costs, its database's work included."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from django.db import connection
from prometheus_client import disable_created_metrics
from rich.console import Console

from benchmarks.measures import Measure, fitted_exponent, measure, percentile
from benchmarks.metrics_region import VMS_PER_HOST, fill_metrics_region
from journal.kept_sums import keep_sums
from journal.metrics import metrics_page

RESERVATIONS_PER_HOST = 6
TARGET_HOSTS = 10_000
SCRAPE_TARGET_MS = 50.0
SCRAPES = 20
KIB = 1024


def run(*, is_quick: bool) -> list[Measure]:
    """Measure three sizes; the largest full one has the target."""
    sizes = (100, 300, 1000) if is_quick else (1000, 3000, TARGET_HOSTS)
    rows: list[Measure] = []
    # Web processes share files, which have none of these.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped library
    for size in sizes:
        Console().print(f"filling {size} hosts")
        fill_metrics_region(size, reservations=size * RESERVATIONS_PER_HOST)
        reservations = size * RESERVATIONS_PER_HOST
        label = f"{size} hosts, {size * VMS_PER_HOST} VMs, {reservations} reservations"
        rows += _scrapes(label, is_target=size == TARGET_HOSTS)
    for metric in ("CPU of both per scrape", "CPU of both to keep the sums"):
        costs = [row.value for row in rows if row.metric == metric]
        exponent = fitted_exponent(sizes, costs)
        rows.append(measure(f"fitted exponent: {metric}", "all sizes", exponent, ""))
    return rows


def _scrapes(label: str, *, is_target: bool) -> list[Measure]:
    """Time scrapes between which the sums are kept, as the task does."""
    keeping = [_costs_ms(keep_sums) for _ in range(3)]
    metrics_page()
    costs = [_costs_ms(metrics_page) for _ in range(SCRAPES)]
    both = percentile([web + database for web, database in costs], 0.5)
    return [
        measure("CPU of the web process per scrape", label, _usual(costs, 0), "ms"),
        measure("CPU of PostgreSQL per scrape", label, _usual(costs, 1), "ms"),
        measure(
            "CPU of both per scrape",
            label,
            both,
            "ms",
            at_most=SCRAPE_TARGET_MS if is_target else None,
        ),
        measure(
            "CPU of both to keep the sums",
            label,
            percentile([sum(cost) for cost in keeping], 0.5),
            "ms",
        ),
        measure("size of the page", label, len(metrics_page()) / KIB, "KiB"),
    ]


def _usual(costs: list[tuple[float, float]], part: int) -> float:
    return percentile([cost[part] for cost in costs], 0.5)


def _costs_ms(work: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU time of this process and of PostgreSQL's for its session."""
    database, own = _database_cpu_ms(), time.process_time()
    work()
    return (time.process_time() - own) * 1000, _database_cpu_ms() - database


def _database_cpu_ms() -> float:
    """Return the CPU time of the session's PostgreSQL process, which runs on this machine."""
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    nanoseconds, *_ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(nanoseconds) / 1_000_000
