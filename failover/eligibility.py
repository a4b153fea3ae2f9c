"""The published names of the safety rules (spec failover, 2 and 7)."""

from __future__ import annotations

from failover.domain.engine import EligibilityEngine
from failover.domain.graph import DependencyGraph
from failover.domain.rules import (
    check_vms_still_eligible,
    find_eligible_reservations,
    fits,
    is_vm_eligible_for_reservation,
)
from failover.domain.slots import FailoverSlot, SlotUser
from hosts.domain.vm import VM

__all__ = [
    "VM",
    "DependencyGraph",
    "EligibilityEngine",
    "FailoverSlot",
    "SlotUser",
    "check_vms_still_eligible",
    "find_eligible_reservations",
    "fits",
    "is_vm_eligible_for_reservation",
]
