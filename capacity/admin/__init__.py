"""Admin of hosts with their room, flavors and groups, reservations, capacity and quota."""

from __future__ import annotations

from capacity.admin import groups, hosts, reservations

__all__ = ["groups", "hosts", "reservations"]
