"""Pages of failover."""

from __future__ import annotations

from failover.admin import coverage, drain, drills, evacuations, policies, reservations, runs

__all__ = ["coverage", "drain", "drills", "evacuations", "policies", "reservations", "runs"]
