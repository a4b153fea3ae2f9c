"""Zones as drills see them (spec failover, 17.2)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from failover.conf import current_config
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_state import DrillState
from failover.domain.zone_columns import ZoneSnapshot
from failover.selectors.zone import failover_requirements, load_zone


def zone_snapshot(zone: str, *, now: datetime) -> ZoneSnapshot:
    """Return a zone as columns, with what the policies require now."""
    return load_zone(zone, current_config(failover_requirements()), now=now)


def drill_state(zones: Iterable[str], *, now: datetime) -> DrillState:
    """Return the state for drills of some zones."""
    return drill_state_of([zone_snapshot(zone, now=now) for zone in zones])
