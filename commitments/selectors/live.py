"""Commitments that are not over."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment


def live_commitments(now: datetime) -> QuerySet[Commitment]:
    """Return commitments whose state is not final and whose end has not come."""
    ended = (CommitmentStatus.SUPERSEDED, CommitmentStatus.EXPIRED)
    return Commitment.objects.exclude(state__in=ended).exclude(end_time__lte=now)
