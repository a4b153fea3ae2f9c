"""What becomes of commitments whose slots lost their host (spec commitments, 11): repair, soon."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from capacity.hooks import ReleasedReservation
from commitments.models import Commitment


def repair_soon(released: Sequence[ReleasedReservation], now: datetime) -> None:
    """Make the commitments of released slots due for repair. Locks them by primary key."""
    owners = sorted({one.commitment_id for one in released if one.commitment_id is not None})
    due = Commitment.objects.filter(pk__in=owners).order_by("pk")
    locked = due.select_for_update(of=("self",), no_key=True).values_list("pk", flat=True)
    Commitment.objects.filter(pk__in=list(locked)).update(next_reconcile_at=now)
