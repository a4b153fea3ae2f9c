"""Commitments that are not over."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from commitments.models import Commitment, CommitmentState


def live_commitments(now: datetime) -> QuerySet[Commitment]:
    """Return commitments whose state is not final and whose end has not come."""
    ended = (CommitmentState.SUPERSEDED, CommitmentState.EXPIRED)
    return Commitment.objects.exclude(state__in=ended).exclude(end_time__lte=now)
