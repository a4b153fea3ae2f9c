"""Renewals: what takes over from commitments that end (spec liquid, 11.3; decisions, renewal).

Limes renews by a planned commitment that begins when the old one ends, says nothing at that moment,
and asks for its confirmation at a later scrape. What the old one held passes on when it ends, so
that nobody takes it in between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from django.db import transaction
from django.db.models import Q

from commitments.domain.admission import CommitmentTarget
from commitments.domain.statuses import FINAL_STATUSES, CommitmentStatus
from commitments.models import Commitment, Condition


def has_expired(row: Commitment, now: datetime) -> bool:
    """Return whether a commitment holds nothing any more from now on."""
    return row.state in FINAL_STATUSES or (row.end_time is not None and row.end_time <= now)


def family_of(rows: Sequence[Commitment], now: datetime) -> list[Commitment]:
    """Return who has to be decided together with the commitments that end, and make them due.

    Those are the others of the same project, group, zone and resource that end as well, and those
    that wait for room: pending ones, and planned ones whose time has come.

    Locks them by primary key, in a transaction of its own.

    Args:
        rows: Commitments that are due, those that end among them.

    Returns:
        Rows that are not among ``rows``.
    """
    places = {_place(row) for row in rows if has_expired(row, now)}
    if not places:
        return []
    ends = Q(state__in=FINAL_STATUSES) | Q(end_time__lte=now)
    waits = Q(state=CommitmentStatus.PENDING) | Q(
        state=CommitmentStatus.PLANNED, confirm_by__lte=now
    )
    family = (
        Commitment.objects.filter(
            (ends & Q(next_reconcile_at__lte=now))
            | (waits & ~ends & ~Q(ready_reason=Condition.ACCEPTED)),
            resource_type__in={place.resource_type for place in places},
            zone__in={place.zone for place in places},
            flavor_group_name__in={place.flavor_group_name for place in places},
            project_id__in={place.project_id for place in places},
        )
        .exclude(pk__in=[row.pk for row in rows])
        .order_by("pk")
    )
    with transaction.atomic():
        locked = family.select_for_update(of=("self",), no_key=True)
        members = [row for row in locked if _place(row) in places]
        keys = [row.pk for row in members]
        Commitment.objects.filter(pk__in=keys).update(next_reconcile_at=now)
    return members


def with_inheritance(
    target: CommitmentTarget, row: Commitment, ended: Collection[Commitment], now: datetime
) -> CommitmentTarget:
    """Return the target of a planned commitment as a pending one, if it takes over.

    It does when its time has come and it holds slots or cores already, or one of its place ends in
    the same transaction. Others stay planned until Limes asks.
    """
    desired = target.desired
    if desired is None or not target.is_planned:
        return target
    has_begun = row.confirm_by is not None and row.confirm_by <= now
    holds = bool(target.slots or target.accepted_cores)
    if not has_begun or not (holds or _place(row) in {_place(old) for old in ended}):
        return target
    return replace(
        target,
        desired=replace(desired, status=CommitmentStatus.PENDING),
        is_holding=True,
        is_planned=False,
        holds_all_or_nothing=row.accepted_amount is None,
    )


def others_than_heirs(rows: Sequence[Commitment], now: datetime) -> list[Commitment]:
    """Return those that wait for room and take nothing over: no promise is theirs to keep."""
    places = {_place(row) for row in rows if has_expired(row, now)}
    return [
        row
        for row in rows
        if row.state != CommitmentStatus.CONFIRMED
        and not has_expired(row, now)
        and _place(row) not in places
    ]


class _Place(NamedTuple):
    """Where commitments take over from each other."""

    project_id: str
    flavor_group_name: str
    zone: str
    resource_type: str


def _place(row: Commitment) -> _Place:
    return _Place(row.project_id, row.flavor_group_name, row.zone, row.resource_type)
