"""What becomes of slots whose flavors changed size (spec commitments, 6.7): renewed, soon."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from commitments.services.nudges import nudge_outdated_of_groups


def renew_soon(groups: Collection[str], now: datetime) -> None:
    """Make the commitments of groups due that hold empty slots of old sizes."""
    nudge_outdated_of_groups(groups, now)
