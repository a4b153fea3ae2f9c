"""What becomes of commitments whose slots lost their host (spec commitments, 11): repair, soon."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from capacity.hooks import ReleasedReservation
from commitments.services.nudges import nudge_owners


def repair_soon(released: Sequence[ReleasedReservation], now: datetime) -> None:
    """Make the commitments of released slots due for repair. Locks them by primary key."""
    slots = [one.reservation_id for one in released if one.commitment_id is not None]
    nudge_owners(slots, now)
