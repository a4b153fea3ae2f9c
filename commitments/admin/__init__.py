"""Admin of commitments, their events, VMs with the commitment that covers them, runs, usage."""

from __future__ import annotations

from commitments.admin import (
    commitments,
    compaction,
    refusals,
    slot_checks,
    sync_runs,
    usage,
    vms,
)

__all__ = ["commitments", "compaction", "refusals", "slot_checks", "sync_runs", "usage", "vms"]
