"""Metrics of slots over time (spec commitments, 8.6, 9), every label set present from the start."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter

from journal.metrics import metric_name

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
)

SLOT_LIMIT_REJECTIONS = Counter(
    metric_name("committed_resource_slot_limit_rejections_total"),
    "Commitments that would have needed more new slots than allowed.",
    ["flavor_group", "availability_zone"],
)
SLOT_VMS = Counter(
    metric_name("committed_resource_slot_vms_total"),
    "VMs that entered, followed or left slots of commitments, by what happened.",
    ["event"],
)
for _event in VM_EVENTS:
    SLOT_VMS.labels(event=_event)
SLOTS_MOVED = Counter(
    metric_name("committed_resource_slots_moved_total"),
    "Slots that left a lost or misplaced host, by what became of them.",
    ["result"],
)
for _result in ("moved", "revoked"):
    SLOTS_MOVED.labels(result=_result)
SLOT_RENEWALS = Counter(
    metric_name("committed_resource_slot_renewals_total"),
    "Tries to replace the empty slots of a commitment whose flavors changed size.",
    ["result"],
)
for _result in ("renewed", "waiting"):
    SLOT_RENEWALS.labels(result=_result)
REPAIR_SET_ASIDE = Counter(
    metric_name("committed_resource_repair_failures_total"),
    "Commitments that background repair failed on and set aside until the longest retry delay.",
)


def count_vm_events(counts: Mapping[str, int]) -> None:
    """Count what happened to VMs of slots."""
    for event, count in counts.items():
        if count:
            SLOT_VMS.labels(event=event).inc(count)
