"""Admin of hosts with their room, flavors and groups, reservations, decisions, quota."""

from __future__ import annotations

from capacity.admin import decisions, groups, hosts, pipelines, reservations

__all__ = ["decisions", "groups", "hosts", "pipelines", "reservations"]
