"""Metrics of the failover loop and of validation (spec failover, 14.2).

The names are those of the reference. Every series exists from the start of the process under the
empty zone; runs are recorded under their zone. What the last run found is a fact of its row, which
``failover.scrape`` reads: the gauge of a worker that ran last an hour ago would still tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import Counter, Histogram

from failover.domain.figures import RunFigures
from journal.metrics import metric_name

ZONE_LABEL: Final = "availability_zone"
RUN_BUCKETS_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
VALIDATION_BUCKETS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 2.5, 10)


def _name(suffix: str) -> str:
    return metric_name(f"failover_reconciliation_{suffix}")


RUNS = Counter(_name("runs_total"), "Runs of the loop that were completed.", [ZONE_LABEL])
RUN_SECONDS = Histogram(
    _name("duration_seconds"),
    "Duration of a run of the loop.",
    [ZONE_LABEL],
    buckets=RUN_BUCKETS_SECONDS,
)
COUNTERS: Final[Mapping[str, Counter]] = {
    field: Counter(_name(f"{suffix}_total"), words, [ZONE_LABEL])
    for field, suffix, words in (
        ("vms_processed", "vms_processed", "VMs that runs handled."),
        ("reservations_needed", "reservations_needed", "Reservations that handled VMs lacked."),
        ("reused", "reservations_reused", "Existing reservations that VMs joined."),
        ("created", "reservations_created", "Reservations that were created."),
        ("failed", "reservations_failed", "Needs that could not be met."),
        ("reservations_updated", "reservations_updated", "Reservations that lost users."),
        ("reservations_deleted", "reservations_deleted", "Empty reservations that were deleted."),
    )
}
VALIDATION_SECONDS = Histogram(
    metric_name("failover_validation_seconds"),
    "Time to ask the scheduler about all users of a reservation.",
    buckets=VALIDATION_BUCKETS_SECONDS,
)
VALIDATION_FAILURES = Counter(
    metric_name("failover_validation_failures_total"),
    "Users that could not be evacuated to their reservation, by the filter that removed the host.",
    ["az", "filter"],
)


def show_zones(zones: Iterable[str]) -> None:
    """Make every series of the loop exist for some zones, at zero."""
    for zone in zones:
        for metric in (RUNS, RUN_SECONDS, *COUNTERS.values()):
            metric.labels(**{ZONE_LABEL: zone})


def observe_run(figures: RunFigures, *, seconds: float, zone: str = "") -> None:
    """Record one completed run; one that was aborted, skipped or dry is not recorded.

    Args:
        figures: What it counted.
        seconds: How long it took.
        zone: Its zone.
    """
    RUNS.labels(**{ZONE_LABEL: zone}).inc()
    RUN_SECONDS.labels(**{ZONE_LABEL: zone}).observe(seconds)
    for field, counter in COUNTERS.items():
        counter.labels(**{ZONE_LABEL: zone}).inc(getattr(figures, field))
