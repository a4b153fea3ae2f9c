"""Choices of the capacity rows."""

from __future__ import annotations

from django.db import models


class ReservationKind(models.TextChoices):
    """What capacity is held for."""

    COMMITTED = "committed", "committed"
    FAILOVER = "failover", "failover"
    IN_FLIGHT = "in_flight", "in flight"


class AllocationState(models.TextChoices):
    """How sure we are that a VM sits in a reservation."""

    EXPECTED = "expected", "expected"
    CONFIRMED = "confirmed", "confirmed"


class ReadyReason(models.TextChoices):
    """Reasons of a reservation's Ready condition (spec commitments, 2.7; failover, 3.1)."""

    ACTIVE = "ReservationActive", "active"
    PRE_ALLOCATED = "PreAllocated", "pre-allocated"
    NO_HOSTS_FOUND = "NoHostsFound", "no hosts found"
    NO_HOSTS_AVAILABLE = "NoHostsAvailable", "no hosts known"
    REVOKED = "PlacementRevoked", "placement revoked"
    MISSING_FLAVOR = "MissingResourceName", "missing flavor name"
    FLAVOR_NOT_FOUND = "FlavorNotFound", "flavor in no group"
    INVALID_RESOURCES = "InvalidResources", "invalid resources"
    AWAITS_AGENT = "AwaitsAgent", "waits for the host's agent"
    AGENT_FAILED = "AgentFailed", "the host's agent failed"
