"""Weighers: which of the possible hosts is best (spec scheduling, 8 and 17.1)."""

from __future__ import annotations

from scheduling.weighers.base import Weigher, tie_break_hashes
from scheduling.weighers.groups import kvm_instance_group_soft_affinity
from scheduling.weighers.reservations import (
    kvm_committed_resource_reservation,
    kvm_failover_evacuation,
    kvm_failover_reservation_consolidation,
)
from scheduling.weighers.utilisation import (
    MEMORY_ONLY,
    RESOURCE_CPU,
    RESOURCE_MEMORY,
    kvm_binpack,
    kvm_prefer_smaller_hosts,
)
from scheduling.weighers.vmware import (
    Bounds,
    vmware_anti_affinity_noisy_projects,
    vmware_avoid_contended_hosts,
    vmware_binpack,
)

__all__ = [
    "MEMORY_ONLY",
    "RESOURCE_CPU",
    "RESOURCE_MEMORY",
    "Bounds",
    "Weigher",
    "kvm_binpack",
    "kvm_committed_resource_reservation",
    "kvm_failover_evacuation",
    "kvm_failover_reservation_consolidation",
    "kvm_instance_group_soft_affinity",
    "kvm_prefer_smaller_hosts",
    "tie_break_hashes",
    "vmware_anti_affinity_noisy_projects",
    "vmware_avoid_contended_hosts",
    "vmware_binpack",
]
