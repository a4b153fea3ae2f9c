"""Zones as drills see them, and the newest drills and shadow plans (spec failover, 17.2, 17.4)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from failover.conf import current_config
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_state import DrillState
from failover.domain.zone_columns import ZoneSnapshot
from failover.drill_models import FailureDrill, ShadowPlan
from failover.selectors.zone import failover_requirements, load_zone
from journal.collector import paused_collector


def zone_snapshot(zone: str, *, now: datetime) -> ZoneSnapshot:
    """Return a zone as columns, with what the policies require now."""
    config = current_config(failover_requirements())
    with paused_collector():
        return load_zone(zone, config, now=now)


def drill_state(zones: Iterable[str], *, now: datetime) -> DrillState:
    """Return the state for drills of some zones."""
    with paused_collector():  # between zones as well
        return state_of([zone_snapshot(zone, now=now) for zone in zones])


def state_of(snapshots: Iterable[ZoneSnapshot]) -> DrillState:
    """Return the state for drills of zones that were read.

    It is made without the garbage collector, which would look through all VMs of all zones once
    more for each quarter of them that is new.
    """
    with paused_collector():
        return drill_state_of(snapshots)


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
