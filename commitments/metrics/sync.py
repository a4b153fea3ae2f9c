"""Counters of the syncer (spec commitments, 20.1; spec liquid, 18), all present from the start.

What a run found is a fact of its row: see ``commitments.metrics.gauges``.
"""

from __future__ import annotations

from prometheus_client import Histogram

from commitments.domain.limes_intake import (
    SKIP_REASON_DECIDED_BY_LIMES,
    SKIP_REASON_EMPTY_UUID,
    SKIP_REASON_INVALID_COMMITMENT,
    SKIP_REASON_INVALID_RESOURCE,
    SKIP_REASON_NON_COMPUTE,
    SKIP_REASON_UNIT_MISMATCH,
    SKIP_REASON_UNKNOWN_FLAVOR_GROUP,
    SKIP_REASON_UNKNOWN_STATUS,
)
from commitments.models import SyncOutcome
from journal.metrics import metric_name
from journal.readings import counter

SKIP_REASONS = (
    SKIP_REASON_UNIT_MISMATCH,
    SKIP_REASON_UNKNOWN_FLAVOR_GROUP,
    SKIP_REASON_INVALID_RESOURCE,
    SKIP_REASON_EMPTY_UUID,
    SKIP_REASON_NON_COMPUTE,
    SKIP_REASON_UNKNOWN_STATUS,
    SKIP_REASON_INVALID_COMMITMENT,
    SKIP_REASON_DECIDED_BY_LIMES,
)

ERRORS = counter(
    "committed_resource_syncer_errors_total",
    "Runs of the syncer that failed, could not read everything, or refused what they read.",
)
RUNS = counter(
    "committed_resource_syncer_runs_total", "Runs of the syncer.", outcome=SyncOutcome.values
)
DURATION_SECONDS = Histogram(
    metric_name("committed_resource_syncer_duration_seconds"),
    "Duration of runs of the syncer, failed ones too.",
    buckets=(0.5, 1, 5, 10, 30, 60, 120),
)
SKIPPED = counter(
    "committed_resource_syncer_commitments_skipped_total",
    "Listed commitments that were not taken in.",
    reason=SKIP_REASONS,
)
CREATES = counter(
    "committed_resource_syncer_cr_creates_total",
    "Commitments created by the syncer.",
)
UPDATES = counter(
    "committed_resource_syncer_cr_updates_total",
    "Commitments changed by the syncer.",
)
DELETES = counter(
    "committed_resource_syncer_cr_deletes_total",
    "Rows of expired commitments removed by the syncer.",
)
