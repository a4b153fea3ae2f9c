"""Metrics of slots over time (spec commitments, 8.6, 9), every label set present from the start."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter

from commitments.models import CompactionOutcome
from journal.metrics import metric_name
from journal.readings import counter

VM_EVENTS = (
    "confirmed",
    "adopted",
    "followed",
    "missing",
    "never_arrived",
    "moved_away",
    "gone",
    "other_group",
    "held_back",
    "misgrouped",
)

SLOT_LIMIT_REJECTIONS = Counter(
    metric_name("committed_resource_slot_limit_rejections_total"),
    "Commitments that would have needed more new slots than allowed.",
    ["flavor_group", "availability_zone"],
)
SLOT_VMS = counter(
    "committed_resource_slot_vms_total",
    "VMs that entered, followed or left slots of commitments, by what happened.",
    event=VM_EVENTS,
)
SLOTS_MOVED = counter(
    "committed_resource_slots_moved_total",
    "Slots that left a host that is lost, misplaced or whose agent will not make them.",
    result=("moved", "revoked"),
)
SLOT_RENEWALS = counter(
    "committed_resource_slot_renewals_total",
    "Tries to replace the empty slots of a commitment whose flavors changed size.",
    result=("renewed", "waiting"),
)
REPAIR_SET_ASIDE = counter(
    "committed_resource_repair_failures_total",
    "Commitments that background repair failed on and set aside until the longest retry delay.",
)
HOSTS_FREED = counter(
    "committed_resource_compaction_hosts_freed_total",
    "Hosts that became free because empty slots moved.",
)
SLOTS_COMPACTED = counter(
    "committed_resource_compaction_slots_moved_total",
    "Empty slots that moved so that a host became free.",
)
COMPACTION_RUNS = counter(
    "committed_resource_compaction_runs_total",
    "Runs that free hosts, by how they ended.",
    outcome=CompactionOutcome.values,
)


def count_vm_events(counts: Mapping[str, int]) -> None:
    """Count what happened to VMs of slots."""
    for event, count in counts.items():
        if count:
            SLOT_VMS.labels(event=event).inc(count)
