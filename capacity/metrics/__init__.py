"""What capacity counts; the other modules are scheduling runs, and what is read at a scrape."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from capacity.ledger.in_flight_end import INTENTS
from hosts.agents.resource_models import OtherResource
from journal.metrics import metric_name
from journal.readings import counter

HOST_TABLE_CHECKS = counter(
    "scheduling_host_table_checks_total",
    "Comparisons of the host table of a process with one built anew.",
    outcome=("equal", "different"),
)
HOST_TABLE_DIFFERENCES = Counter(
    metric_name("scheduling_host_table_differences_total"),
    "Hosts and keys that the host table of a process had wrong.",
    ["column"],
)
HOST_TABLE_REFRESH_SECONDS = Histogram(
    metric_name("scheduling_host_table_refresh_seconds"),
    "Time to bring the host table of a process up to date.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
RESERVED_DRIFT = counter(
    "host_reserved_drift_total",
    "Sums of what slots hold of network, disk I/O and GPUs that the nightly look found wrong.",
    resource=OtherResource.values,
)
PROBE_FAILURES = counter(
    "committed_resource_capacity_probe_failures_total",
    "Flavor groups whose capacity in a zone could not be computed: the old numbers stay.",
)
DECISIONS_LOST = counter(
    "scheduling_decisions_lost_total",
    "Scheduling decisions that were made and carried out but could not be recorded.",
)
EXPIRED_IN_FLIGHT = counter(
    "inflight_reservations_expired_total",
    "In-flight reservations that ended because their VM did not appear in time.",
    intent=INTENTS,
)
EVICTED = Counter(
    metric_name("committed_resource_host_oversubscribed_evicted_reservations_total"),
    "Slots that lost their host because it was over-subscribed.",
    ["az"],
)
MOVED = Counter(
    metric_name("committed_resource_host_oversubscribed_moved_reservations_total"),
    "Slots that were moved to another host because theirs was over-subscribed.",
    ["az"],
)
