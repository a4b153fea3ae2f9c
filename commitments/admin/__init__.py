"""Admin of commitments, their events, VMs with the commitment that covers them, and runs."""

from __future__ import annotations

from commitments.admin import commitments, vms

__all__ = ["commitments", "vms"]
