"""What one run of the loop counts (spec failover, 9.4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of one run in one zone.

    Attributes:
        total_vms: VMs on hosts of the zone.
        total_reservations: Failover reservations at the end.
        vms_missing_failover: VMs with fewer reservations than they need, before the run's work.
        vms_processed: VMs that the run handled.
        reservations_needed: Reservations that these lacked.
        reused: Existing reservations that were joined.
        created: New reservations.
        failed: Needs that could not be met.
        reservations_updated: Reservations that lost users; one that did so twice counts twice.
        reservations_deleted: Empty reservations that were deleted.
    """

    total_vms: int = 0
    total_reservations: int = 0
    vms_missing_failover: int = 0
    vms_processed: int = 0
    reservations_needed: int = 0
    reused: int = 0
    created: int = 0
    failed: int = 0
    reservations_updated: int = 0
    reservations_deleted: int = 0
