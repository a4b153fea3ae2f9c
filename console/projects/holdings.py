"""What projects hold by commitments and what of it their VMs use, from the rows of commitments."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Least

from commitments.domain.statuses import LIVE_STATUSES, ResourceType
from commitments.models import Commitment
from hosts.models import Project

HELD: Final = F("accepted_amount")
USED: Final = Least(F("used_memory_bytes"), F("accepted_amount"))
SUMS: Final = {
    "commitments": Count("pk"),
    "held": Sum(HELD),
    "used": Sum(USED),
    "idle": Sum(HELD - USED),
}


def held_commitments(now: datetime) -> QuerySet[Commitment]:
    """Return the commitments of memory that hold room now: accepted, live, not ended."""
    return Commitment.objects.filter(
        Q(end_time__isnull=True) | Q(end_time__gt=now),
        state__in=LIVE_STATUSES,
        resource_type=ResourceType.MEMORY,
        accepted_amount__gt=0,
    )


def holdings(now: datetime) -> QuerySet[Commitment, dict[str, Any]]:
    """Return what each project holds, in one statement.

    Rows have ``project_id``, ``project_name`` and ``project_pk`` (None for projects that are not
    known here), ``commitments``, and bytes: ``held``, ``used`` (at most what is held, commitment by
    commitment) and ``idle``, which is the rest.
    """
    named = Project.objects.filter(openstack_id=OuterRef("project_id"))
    return (
        held_commitments(now)
        .order_by()
        .values("project_id")
        .annotate(
            **SUMS,
            project_name=Subquery(named.values("name")[:1]),
            project_pk=Subquery(named.values("pk")[:1]),
        )
    )


def holdings_by_group(project_id: str, now: datetime) -> QuerySet[Commitment, dict[str, Any]]:
    """Return what one project holds by ``flavor_group_name`` and ``zone``, most idle first."""
    return (
        held_commitments(now)
        .filter(project_id=project_id)
        .order_by()
        .values("flavor_group_name", "zone")
        .annotate(**SUMS)
        .order_by("-idle", "flavor_group_name", "zone")
    )
