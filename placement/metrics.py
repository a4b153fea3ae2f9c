"""Metrics of the Placement API (spec placement, 10.2)."""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Mapping
from functools import cache
from typing import Final

import orjson
from django.db.backends.utils import CursorWrapper
from prometheus_client import Counter, Gauge, Histogram

from capacity.figures.group_capacity import largest_group
from core.conf import headroom
from journal.kept_sums import Rows, kept_sums, read_sums
from journal.metrics import metric_name
from journal.readings import Figure, Reading, Scraped
from placement.domain.snapshot_differences import PARTS
from placement.gateway.modes import STATEFUL, Mode

LOCAL: Final = "local"
LABELS = ("method", "pattern", "responsecode")

REQUEST_SECONDS = Histogram(
    metric_name("placement_shim_downstream_request_duration_seconds"),
    "Time to answer a request of the Placement API.",
    LABELS,
)
REQUESTS = Counter(
    "placement_requests_total",
    "Requests of the Placement API.",
    ("method", "pattern", "code", "mode"),
)
WRITE_SECONDS = Histogram(
    "placement_allocation_write_seconds",
    "Time to write allocations.",
    ("kind", "result"),
)
CONFLICTS = Counter(
    "placement_allocation_conflicts_total",
    "Allocation writes that were refused, by reason.",
    ("reason",),
)
CONFLICT_REASONS: Final = (
    "capacity",
    "constraint",
    "consumer_generation",
    "held",
    "no_inventory",
    "retry_exhausted",
)
SETTLED_CLAIMS = Counter(
    "placement_claims_settled_total",
    "Writes of allocations that were settled in slots, rows in flight and rooms.",
)
USAGE_DRIFT = Counter(
    "placement_usage_drift_total",
    "Inventories found whose used amount was not the sum of their allocations; must stay 0.",
)
for _reason in CONFLICT_REASONS:
    CONFLICTS.labels(reason=_reason)


UPSTREAM_SECONDS = Histogram(
    metric_name("placement_shim_upstream_request_duration_seconds"),
    "Time that the other Placement took to answer; what it did not answer counts as 502 to 504.",
    LABELS,
)


SPLIT_WRITES = Counter(
    "placement_split_writes_total",
    "Writes of allocations that concerned another Placement as well as our tables.",
)
PARTED_WRITES = Counter(
    "placement_parted_writes_total",
    "Writes while a cloud moves in parts, by who did them: here, there, or there for both sides.",
    ("side",),
)
SYNC_RUNS = Counter(
    "placement_sync_runs_total",
    "Copies of the traits and resource classes of another Placement, by how they ended.",
    ("kind", "result"),
)
SHADOW_COMPARISONS = Counter(
    "placement_shadow_comparisons_total",
    "Answers of another Placement compared with what we would have answered.",
    ("pattern", "result"),
)
DEGRADED_CANDIDATES = Counter(
    "placement_degraded_candidates_total",
    "Searches for candidates that were answered without another Placement, which did not answer.",
)


@cache
def _request_metrics(
    method: str, pattern: str, status_code: int, mode: str
) -> tuple[Histogram, Counter]:
    code = str(status_code)
    return (
        REQUEST_SECONDS.labels(method=method, pattern=pattern, responsecode=code),
        REQUESTS.labels(method=method, pattern=pattern, code=code, mode=mode),
    )


@cache
def _write_duration(kind: str, result: str) -> Histogram:
    return WRITE_SECONDS.labels(kind=kind, result=result)


def observe_write(kind: str, result: str, *, seconds: float) -> None:
    """Count a write of allocations."""
    _write_duration(kind, result).observe(seconds)


KNOWN_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


def observe_request(
    *, method: str, pattern: str, status_code: int, seconds: float, mode: str = LOCAL
) -> None:
    """Count an answered request."""
    known = method if method in KNOWN_METHODS else "other"
    duration, count = _request_metrics(known, pattern, status_code, mode)
    duration.observe(seconds)
    count.inc()


def observe_upstream(*, method: str, pattern: str, status_code: int, seconds: float) -> None:
    """Count a request that was handed on."""
    known = method if method in KNOWN_METHODS else "other"
    UPSTREAM_SECONDS.labels(method=known, pattern=pattern, responsecode=str(status_code)).observe(
        seconds
    )


MOST_GROUPS: Final = 4
_SIZES: Final = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000)

CANDIDATES_SECONDS = Histogram(
    "placement_candidates_seconds",
    "Time to find and encode allocation candidates, by number of request groups.",
    ("groups", "limited"),
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)
CANDIDATES_RETURNED = Histogram(
    "placement_candidates_returned", "Allocation candidates of an answer.", buckets=_SIZES
)
RELOAD_SECONDS = Histogram(
    "placement_snapshot_reload_seconds",
    "Time to read all providers into the snapshot of a process.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
)
SNAPSHOT_PROVIDERS = Gauge(
    "placement_snapshot_providers",
    "Providers in the snapshot of a process.",
    multiprocess_mode="max",
)
SNAPSHOT_AGE = Gauge(
    "placement_snapshot_age_changes",
    "Trees that had changed when a process last brought its snapshot forward.",
    multiprocess_mode="max",
)
REFRESHED_TREES = Histogram(
    "placement_snapshot_refreshed_trees",
    "Trees that changed between two looks of a process at the change log.",
    buckets=_SIZES,
)

CHECKS = Counter(
    "placement_snapshot_checks_total",
    "Comparisons of the provider snapshot of a process with one built anew.",
    ("outcome",),
)
DIFFERENCES = Counter(
    "placement_snapshot_differences_total",
    "Providers, inventories and names that the provider snapshot of a process had wrong.",
    ("part",),
)
for _outcome in ("equal", "different"):
    CHECKS.labels(outcome=_outcome)
for _part in PARTS:
    DIFFERENCES.labels(part=_part)


@cache
def _duration(groups: int, *, is_limited: bool) -> Histogram:
    words = str(groups) if groups < MOST_GROUPS else f"{MOST_GROUPS}+"
    return CANDIDATES_SECONDS.labels(groups=words, limited=str(is_limited).lower())


def observe_candidates(*, groups: int, is_limited: bool, found: int, seconds: float) -> None:
    """Count an answered search."""
    _duration(min(groups, MOST_GROUPS), is_limited=is_limited).observe(seconds)
    CANDIDATES_RETURNED.observe(found)


def observe_check(differences: Mapping[str, int]) -> None:
    """Count a comparison."""
    CHECKS.labels(outcome="different" if differences else "equal").inc()
    for part, count in differences.items():
        DIFFERENCES.labels(part=part).inc(count)


_shown: Final[dict[Gauge, int]] = {}


def observe_refresh(*, providers: int, trees: int) -> None:
    """Count a look at the change log."""
    _show(SNAPSHOT_PROVIDERS, providers)
    _show(SNAPSHOT_AGE, trees)
    REFRESHED_TREES.observe(trees)


def _show(gauge: Gauge, number: int) -> None:
    """Set a gauge, which takes longer than to find that it shows the number already."""
    if _shown.get(gauge) != number:
        _shown[gauge] = number
        gauge.set(number)


SUMS = kept_sums(
    "placement_inventories",
    """
SELECT c.name, root.zone,
       sum(trunc((i.total - i.reserved) * i.allocation_ratio)),
       sum(i.used),
       count(*) FILTER (WHERE i.used > (i.total - i.reserved) * i.allocation_ratio)
  FROM placement_inventory i
  JOIN placement_resource_class c ON c.id = i.resource_class_id
  JOIN placement_provider p ON p.id = i.provider_id
  JOIN placement_provider root ON root.id = p.root_id
 WHERE p.origin <> 'upstream'
 GROUP BY c.name, root.zone
 ORDER BY c.name, root.zone
""",
)


def _overcommitted(cursor: CursorWrapper) -> Rows:
    excess: Multiset[str] = Multiset()
    for name, _, _, _, over in read_sums(cursor, SUMS)[0]:
        excess[name] += over
    return list(excess.items())


def _open_split_writes(cursor: CursorWrapper) -> Rows:
    cursor.execute("SELECT count(*) FROM placement_split_write WHERE error <> ''")
    return list(cursor.fetchall())


NEWEST_REPORT: Final = """
SELECT split_consumers, counts::text FROM placement_hybrid_report
 WHERE created_at > clock_timestamp() - interval '45 minutes' ORDER BY id DESC LIMIT 1
"""


def _is_hybrid() -> bool:
    return headroom().gateway.mode_of_group()[STATEFUL[0]] is Mode.HYBRID


#: Trees by side, and consumers that hold something of both, while a cloud moves in parts.
TREES_BY_SIDE: Final = """
SELECT CASE WHEN p.origin = 'upstream' THEN 'there' ELSE 'here' END, count(*)
  FROM placement_provider p
 WHERE p.parent_id IS NULL
   AND EXISTS (SELECT FROM placement_cutover WHERE phase IN ('parted', 'parting'))
 GROUP BY 1
"""
SPANNING: Final = """
SELECT count(*) FROM (
    SELECT FROM placement_allocation a JOIN placement_provider p ON p.id = a.provider_id
     GROUP BY a.consumer_id
    HAVING bool_or(p.origin = 'upstream') AND bool_or(p.origin <> 'upstream')) both_sides
"""
IS_PARTED: Final = "SELECT FROM placement_cutover WHERE phase IN ('parted', 'parting')"


def _trees_by_side(cursor: CursorWrapper) -> Rows:
    if not headroom().gateway.upstream_url:
        return []
    cursor.execute(TREES_BY_SIDE)
    return list(cursor.fetchall())


def _split_consumers(cursor: CursorWrapper) -> Rows:
    if not headroom().gateway.upstream_url:
        return []
    cursor.execute(IS_PARTED)
    if cursor.fetchall():
        cursor.execute(SPANNING)
        return list(cursor.fetchall())
    if not _is_hybrid():
        return []
    cursor.execute(NEWEST_REPORT)
    return [row[:1] for row in cursor.fetchall()]


def _hybrid_findings(cursor: CursorWrapper) -> Rows:
    if not _is_hybrid():
        return []
    cursor.execute(NEWEST_REPORT)
    return [pair for row in cursor.fetchall() for pair in sorted(orjson.loads(row[1]).items())]


def _check_outcomes(cursor: CursorWrapper) -> Rows:
    if not headroom().gateway.checks_url:
        return []
    cursor.execute(
        """
        SELECT test, coalesce(nullif(mode, ''), 'configured'), (outcome = 'passed')::int
          FROM placement_check_outcome
         WHERE outcome <> 'skipped' AND checked_at > clock_timestamp() - interval '15 minutes'
        """
    )
    return list(cursor.fetchall())


#: Capacity, usage and over-commitment, by resource class and the zone of the tree's root.
INVENTORIES: Final = Scraped(
    "inventories",
    Reading(
        lambda cursor: [row[:4] for row in read_sums(cursor, SUMS)[0]],
        ("resource_class", "az"),
        (
            Figure("placement_capacity", "What can be allocated of a resource class in a zone."),
            Figure("placement_used", "What is allocated of a resource class in a zone."),
        ),
    ),
    Reading(
        _overcommitted,
        ("resource_class",),
        (
            Figure(
                "placement_overcommitted_inventories",
                "Inventories of which more is allocated than there is.",
            ),
        ),
    ),
    Reading(
        _open_split_writes,
        (),
        (
            Figure(
                "placement_split_writes_open",
                "Writes of both sides of which nobody knows yet what the other Placement did.",
            ),
        ),
    ),
    Reading(
        _split_consumers,
        (),
        (
            Figure(
                "placement_split_consumers",
                "Consumers that hold something of ours and of another Placement.",
            ),
        ),
    ),
    Reading(
        _trees_by_side,
        ("side",),
        (
            Figure(
                "placement_cutover_trees",
                "Trees of providers by who answers for them, while a cloud moves in parts.",
            ),
        ),
    ),
    Reading(
        _hybrid_findings,
        ("kind",),
        (
            Figure(
                "placement_hybrid_findings",
                "What did not fit between our providers and another Placement, by kind.",
            ),
        ),
    ),
    Reading(
        _check_outcomes,
        ("test", "mode"),
        (
            Figure(
                "placement_e2e_success",
                "Whether a check of the served Placement API passed within the last 15 minutes.",
            ),
        ),
    ),
    Reading(
        lambda _: [found] if (found := largest_group()) else [],
        ("group",),
        (
            Figure(
                "placement_largest_group_hosts",
                "Hosts of the largest flavor group: the least for Nova's max_placement_results.",
            ),
        ),
    ),
)
