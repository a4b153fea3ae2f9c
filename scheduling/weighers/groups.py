"""The weigher by server group (spec scheduling, 8.4)."""

from __future__ import annotations

import numpy as np

from scheduling.columns import FloatColumn
from scheduling.filters.groups import member_counts
from scheduling.free import FreeColumns
from scheduling.request import InstanceGroup, PlacementRequest
from scheduling.table import HostTable
from scheduling.weighers.base import Weigher

_SIGNS = {"soft-affinity": 1.0, "soft-anti-affinity": -1.0}
_NO_GROUP = InstanceGroup(policy="")


def _is_active(request: PlacementRequest) -> bool:
    group = request.instance_group or _NO_GROUP
    return group.policy in _SIGNS and bool(group.members)


def _activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
    group = request.instance_group or _NO_GROUP
    counts = member_counts(table, group, free).astype(np.float64)
    return counts * _SIGNS.get(group.policy, 0.0)


def kvm_instance_group_soft_affinity(*, multiplier: float = 1.0) -> Weigher:
    """Return the weigher that counts members of the VM's soft server group on each host.

    Activation: the number of members, negative for soft anti-affinity.

    Args:
        multiplier: Factor of the squashed activation.

    Source: spec scheduling, 8.4.
    """
    return Weigher(
        name="kvm_instance_group_soft_affinity",
        activation=_activation,
        multiplier=multiplier,
        is_active=_is_active,
    )
