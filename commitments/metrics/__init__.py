"""Metrics of the LIQUID endpoints (spec liquid, 18), every label set present from the start."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from prometheus_client import Counter, Gauge, Histogram

from journal.metrics import is_multiprocess, metric_name
from journal.readings import counter

READ_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10)
CHANGE_BUCKETS_SECONDS = (0.5, 1, 2.5, 5, 7.5, 10, 12.5, 15, 20, 30)
CHANGE_RESULTS = ("accepted", "rejected", "error")
DRY_RUN_LABELS = ("false", "true")
CHANGE_CODES = ("200", "400", "401", "403", "405", "409", "413", "422", "500", "503")
MAX_ZONE_LABELS = 64
OTHER_ZONES = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointMetrics:
    """Requests of one endpoint by status code, and how long they took."""

    requests: Counter
    duration_seconds: Histogram

    def observe(self, *, status_code: int, seconds: float) -> None:
        """Count one answered request.

        Args:
            status_code: HTTP status of the answer.
            seconds: Time from the first look at the request to the answer.
        """
        code = str(status_code)
        self.requests.labels(status_code=code).inc()
        self.duration_seconds.labels(status_code=code).observe(seconds)


def _endpoint(
    name: str, *, codes: Iterable[int], buckets_seconds: tuple[float, ...]
) -> EndpointMetrics:
    stem = f"committed_resource_{name}_api_request"
    metrics = EndpointMetrics(
        requests=counter(
            f"{stem}s_total", f"Requests to {name} by status code.", status_code=map(str, codes)
        ),
        duration_seconds=Histogram(
            metric_name(f"{stem}_duration_seconds"),
            f"Duration of requests to {name}.",
            ["status_code"],
            buckets=buckets_seconds,
        ),
    )
    for code in codes:
        metrics.duration_seconds.labels(status_code=str(code))
    return metrics


INFO = _endpoint("info", codes=(200, 401, 403, 405, 500, 503), buckets_seconds=READ_BUCKETS_SECONDS)
CAPACITY = _endpoint(
    "capacity", codes=(200, 401, 403, 405, 413, 500, 503), buckets_seconds=READ_BUCKETS_SECONDS
)
USAGE = _endpoint(
    "usage", codes=(200, 400, 401, 403, 405, 413, 500, 503), buckets_seconds=READ_BUCKETS_SECONDS
)
QUOTA = _endpoint(
    "quota",
    codes=(204, 400, 401, 403, 405, 413, 500, 503),
    buckets_seconds=tuple(Histogram.DEFAULT_BUCKETS),
)

CHANGE_REQUESTS = counter(
    "committed_resource_change_api_requests_total",
    "Requests to change-commitments.",
    status_code=CHANGE_CODES,
    dry_run=DRY_RUN_LABELS,
    result=CHANGE_RESULTS,
)
CHANGE_DURATION_SECONDS = Histogram(
    metric_name("committed_resource_change_api_request_duration_seconds"),
    "Duration of requests to change-commitments.",
    ["status_code", "dry_run"],
    buckets=CHANGE_BUCKETS_SECONDS,
)
COMMITMENT_CHANGES = counter(
    "committed_resource_change_api_commitment_changes_total",
    "Commitments in requests to change-commitments.",
    result=CHANGE_RESULTS,
    az=("",),
    dry_run=DRY_RUN_LABELS,
)
CHANGE_TIMEOUTS = counter(
    "committed_resource_change_api_timeouts_total",
    "Change requests that were not decided in time.",
    dry_run=DRY_RUN_LABELS,
)
REFUSALS_NOT_KEPT = counter(
    "committed_resource_refusals_not_kept_total",
    "Refused change requests of which the database took no record.",
)
for _code, _dry_run in product(CHANGE_CODES, DRY_RUN_LABELS):
    CHANGE_DURATION_SECONDS.labels(status_code=_code, dry_run=_dry_run)

REPORTED_CAPACITY = Gauge(
    metric_name("committed_resource_reported_capacity"),
    "Capacity in the last report; unit_size is GiB per declared RAM unit.",
    ["resource", "az", "unit_size"],
    multiprocess_mode="mostrecent",
)
UNKNOWN_ZONE_VMS = counter(
    "committed_resource_usage_unknown_az_vms_total",
    "VMs met by usage reports whose availability zone the caller does not know.",
)
USAGE_RECONCILE_SECONDS = Histogram(
    metric_name("committed_resource_usage_reconcile_duration_seconds"),
    "Duration of usage reconciliation of one project.",
    ["result"],
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
for _result in ("success", "error"):
    USAGE_RECONCILE_SECONDS.labels(result=_result)
USAGE_STATUS_AGE_SECONDS = Histogram(
    metric_name("committed_resource_usage_status_age_seconds"),
    "Age of a project's usage assignment when it was renewed.",
    buckets=(30, 60, 120, 300, 600, 900, 1800),
)


class _BoundedLabels:
    """Lets through the first labels seen, so that callers cannot create series without end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def label(self, text: str) -> str:
        """Return the text itself, or a word for all that came too late."""
        with self._lock:
            if text not in self._seen and len(self._seen) >= self._limit:
                return OTHER_ZONES
            self._seen.add(text)
            return text


_zone_labels = _BoundedLabels(MAX_ZONE_LABELS)


def observe_change(
    *,
    status_code: int,
    seconds: float,
    is_dry_run: bool,
    is_rejected: bool,
    is_timeout: bool,
    zone: str,
    commitments: int,
) -> None:
    """Count one answered change request.

    Args:
        status_code: HTTP status of the answer.
        seconds: Time it took.
        is_dry_run: Whether it was a dry run; false when the body could not be read.
        is_rejected: Whether the answer carries a rejection reason.
        is_timeout: Whether the time for the decision ran out.
        zone: Zone of the request; empty when the body could not be read.
        commitments: Number of commitments in the request; 0 when the body could not be read.
    """
    code, dry_run = str(status_code), DRY_RUN_LABELS[is_dry_run]
    result = "rejected" if is_rejected else "accepted"
    if status_code != 200:  # noqa: PLR2004 - HTTP OK
        result = "error"
    CHANGE_REQUESTS.labels(status_code=code, dry_run=dry_run, result=result).inc()
    CHANGE_DURATION_SECONDS.labels(status_code=code, dry_run=dry_run).observe(seconds)
    if is_timeout:
        CHANGE_TIMEOUTS.labels(dry_run=dry_run).inc()
    az = _zone_labels.label(zone) if zone else ""
    COMMITMENT_CHANGES.labels(result=result, az=az, dry_run=dry_run).inc(commitments)


_reported: set[tuple[str, str, str]] = set()
_reported_lock = threading.Lock()


def set_reported_capacity(
    capacity_by_resource: Mapping[str, Mapping[str, int]], unit_sizes: Mapping[str, str]
) -> None:
    """Show the capacity of a report, and drop what the report no longer names.

    Args:
        capacity_by_resource: Mapping resource name -> zone -> capacity in declared units.
        unit_sizes: Mapping resource name -> GiB per declared unit as text; ``1`` when left out.
    """
    with _reported_lock:
        current = {
            (resource, zone, unit_sizes.get(resource, "1"))
            for resource, zones in capacity_by_resource.items()
            for zone in zones
        }
        for labels in sorted(current):
            REPORTED_CAPACITY.labels(*labels).set(capacity_by_resource[labels[0]][labels[1]])
        if not is_multiprocess():  # shared files cannot forget a label set
            for labels in _reported - current:
                REPORTED_CAPACITY.remove(*labels)
        _reported.clear()
        _reported.update(current)
