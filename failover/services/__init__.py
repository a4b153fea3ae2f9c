"""What writes failover reservations."""

from __future__ import annotations

from failover.services.service import FailoverService

__all__ = ["FailoverService"]
