"""Tables of the Placement API (spec placement, 9.1).

Names follow Placement's words; each table has the name that the specification gives it. Writers are
the services of this app alone, most of them through the functions in ``sql/``.
"""

from __future__ import annotations

from placement.models.allocations import Allocation, Consumer, ProjectUsage
from placement.models.changes import Change
from placement.models.checks import CheckOutcome
from placement.models.copies import CopiedAllocation
from placement.models.cutover import (
    CopyDue,
    Cutover,
    ForwardedWrite,
    MirroredWrite,
    Phase,
    WriteFence,
)
from placement.models.history import AllocationEvent
from placement.models.hybrid import HybridReport
from placement.models.names import (
    Aggregate,
    ConsumerProject,
    ConsumerType,
    ConsumerUser,
    ResourceClass,
    Trait,
)
from placement.models.providers import (
    Inventory,
    InventorySource,
    Origin,
    ProviderAggregate,
    ProviderTrait,
    ResourceProvider,
)
from placement.models.shadow import ShadowDifference
from placement.models.split import SplitConsumer, SplitWrite

__all__ = [
    "Aggregate",
    "Allocation",
    "AllocationEvent",
    "Change",
    "CheckOutcome",
    "Consumer",
    "ConsumerProject",
    "ConsumerType",
    "ConsumerUser",
    "CopiedAllocation",
    "CopyDue",
    "Cutover",
    "ForwardedWrite",
    "HybridReport",
    "Inventory",
    "InventorySource",
    "MirroredWrite",
    "Origin",
    "Phase",
    "ProjectUsage",
    "ProviderAggregate",
    "ProviderTrait",
    "ResourceClass",
    "ResourceProvider",
    "ShadowDifference",
    "SplitConsumer",
    "SplitWrite",
    "Trait",
    "WriteFence",
]
