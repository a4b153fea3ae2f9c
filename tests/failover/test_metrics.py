from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client import REGISTRY

from failover.domain.plan import RunFigures
from failover.metrics import observe_run
from journal.metrics import metric_name

FIRST = RunFigures(
    total_vms=100,
    total_reservations=50,
    vms_missing_failover=5,
    vms_processed=10,
    reservations_needed=8,
    reused=3,
    created=4,
    failed=1,
    reservations_updated=2,
    reservations_deleted=1,
)
SECOND = RunFigures(
    total_vms=95,
    total_reservations=52,
    vms_missing_failover=3,
    vms_processed=5,
    reservations_needed=3,
    reused=1,
    created=2,
    failed=0,
    reservations_updated=1,
    reservations_deleted=0,
)
AFTER_FIRST = {
    "vms_processed_total": 10,
    "reservations_needed_total": 8,
    "reservations_reused_total": 3,
    "reservations_created_total": 4,
    "reservations_failed_total": 1,
    "reservations_updated_total": 2,
    "reservations_deleted_total": 1,
    "runs_total": 1,
    "duration_seconds_count": 1,
}
AFTER_BOTH = {
    "vms_processed_total": 15,
    "reservations_needed_total": 11,
    "reservations_reused_total": 4,
    "reservations_created_total": 6,
    "reservations_failed_total": 1,
    "reservations_updated_total": 3,
    "reservations_deleted_total": 1,
    "runs_total": 2,
    "duration_seconds_count": 2,
}


def shown(suffix: str, zone: str) -> float | None:
    return REGISTRY.get_sample_value(
        metric_name(f"failover_reconciliation_{suffix}"), {"availability_zone": zone}
    )


@pytest.mark.parametrize(
    ("zone", "runs", "expected"),
    [
        pytest.param("one-run", [FIRST], AFTER_FIRST, id="one run"),
        pytest.param("two-runs", [FIRST, SECOND], AFTER_BOTH, id="the above, then another"),
    ],
)
def test_runs_are_recorded(
    zone: str, runs: list[RunFigures], expected: Mapping[str, float]
) -> None:
    for figures in runs:
        observe_run(figures, seconds=0.5, zone=zone)

    assert {suffix: shown(suffix, zone) for suffix in expected} == expected


def test_zones_have_separate_series() -> None:
    observe_run(FIRST, seconds=1.0, zone="eu-de-1a")
    observe_run(SECOND, seconds=1.0, zone="eu-de-1b")

    assert (shown("vms_processed_total", "eu-de-1a"), shown("vms_processed_total", "eu-de-1b")) == (
        10,
        5,
    )


@pytest.mark.parametrize("suffix", sorted(AFTER_FIRST))
def test_series_exist_before_the_first_run(suffix: str) -> None:
    assert shown(suffix, "") is not None


@pytest.mark.parametrize(
    ("bound", "count"),
    [("0.1", 0), ("0.25", 0), ("0.5", 1), ("1.0", 1), ("60.0", 1), ("+Inf", 1)],
)
def test_duration_buckets_are_those_of_the_reference(bound: str, count: int) -> None:
    zone = f"buckets-{bound}"
    observe_run(FIRST, seconds=0.5, zone=zone)

    assert (
        REGISTRY.get_sample_value(
            metric_name("failover_reconciliation_duration_seconds_bucket"),
            {"availability_zone": zone, "le": bound},
        )
        == count
    )
