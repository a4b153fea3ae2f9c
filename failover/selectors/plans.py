"""The newest drills and shadow plans of zones (spec failover, 17.2, 17.4)."""

from __future__ import annotations

from failover.drill_models import FailureDrill, ShadowPlan


def latest_drills(zone: str | None = None) -> list[FailureDrill]:
    """Return the newest drill of each zone and scope, in this order; of one zone if given."""
    rows = FailureDrill.objects.defer("hosts").order_by("zone", "scope", "-id")
    if zone is not None:
        rows = rows.filter(zone=zone)
    return list(rows.distinct("zone", "scope"))


def latest_shadow_plans(zone: str | None = None) -> list[ShadowPlan]:
    """Return the newest shadow plan of each zone, by zone; of one zone if given."""
    rows = ShadowPlan.objects.defer("slots").order_by("zone", "-id")
    if zone is not None:
        rows = rows.filter(zone=zone)
    return list(rows.distinct("zone"))
