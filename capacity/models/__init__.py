"""Flavor groups, the reservation ledger, capacity figures, quota, pipelines, decisions."""

from __future__ import annotations

from capacity.models.choices import (
    AllocationState,
    ReadyReason,
    ReservationKind,
)
from capacity.models.figures import (
    CapacityComputation,
    FlavorCapacity,
    GroupCapacity,
    ProjectQuota,
)
from capacity.models.flavor_groups import (
    MAX_RAM_UNIT_GIB,
    FlavorGroup,
    FlavorGroupMember,
    FlavorGroupRule,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
)
from capacity.models.history import CapacityHistory, HistorySpan, HostHistory
from capacity.models.ledger import (
    HostCapacity,
    LeavingRoom,
    Reservation,
    ReservationAllocation,
)
from capacity.models.pipelines import (
    HostListing,
    KnowledgeName,
    Pipeline,
    PipelineKind,
    PipelineVersion,
    SchedulingDecision,
    SchedulingKnowledge,
)

__all__ = [
    "MAX_RAM_UNIT_GIB",
    "AllocationState",
    "CapacityComputation",
    "CapacityHistory",
    "FlavorCapacity",
    "FlavorGroup",
    "FlavorGroupMember",
    "FlavorGroupRule",
    "FlavorGroupSettings",
    "FlavorGroupSnapshot",
    "GroupCapacity",
    "HistorySpan",
    "HostCapacity",
    "HostHistory",
    "HostListing",
    "KnowledgeName",
    "LeavingRoom",
    "Pipeline",
    "PipelineKind",
    "PipelineVersion",
    "ProjectQuota",
    "ReadyReason",
    "Reservation",
    "ReservationAllocation",
    "ReservationKind",
    "SchedulingDecision",
    "SchedulingKnowledge",
]
