"""What the quota filter judges by (spec scheduling, 7.16; spec liquid, 14.6)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import orjson
from django.db import DatabaseError, connection, transaction

from capacity.hooks import commitment_tracker
from journal.statements import fetch_value
from scheduling.evaluation import Pipeline
from scheduling.filters import filter_quota_enforcement
from scheduling.quota import QuotaFacts
from scheduling.request import PlacementRequest

# As text: every call asks, and the ORM takes longer to write this than PostgreSQL to answer.
SELECT_QUOTA = """
SELECT quota_by_resource::text FROM capacity_projectquota WHERE project_id = %s AND zone = %s
"""

QUOTA_FILTER = filter_quota_enforcement().name


def with_quota_facts(request: PlacementRequest, pipeline: Pipeline) -> PlacementRequest:
    """Return the request with quota facts, if its pipeline has the filter and could use them.

    A failed look-up becomes a fact: the filter is then passed over, the request goes on.
    """
    asks = any(step.name == QUOTA_FILTER for step in pipeline.filters)
    group = request.commitment_group
    if not (asks and request.project_id and request.zone and group):
        return request
    try:
        # Alone, a statement that fails leaves nothing to undo.
        with transaction.atomic() if connection.in_atomic_block else nullcontext():
            facts = _facts(request.project_id, request.zone, group)
    except DatabaseError as error:
        facts = QuotaFacts(lookup_error=str(error))
    return replace(request, quota=facts)


def _facts(project_id: str, zone: str, group: str) -> QuotaFacts:
    tracker = commitment_tracker()
    if tracker is None:
        return QuotaFacts(quota=_limits(_quota(project_id, zone)))
    facts = tracker.quota_facts(project_id, zone, group)
    if facts.quota is None:
        return facts
    usage = tracker.payg_usage(project_id, zone)
    return replace(facts, quota=_limits(facts.quota), payg_usage=usage)


def _quota(project_id: str, zone: str) -> dict[str, int] | None:
    quota = fetch_value(SELECT_QUOTA, [project_id, zone])
    return None if quota is None else orjson.loads(quota)


def _limits(quota: Mapping[str, int] | None) -> dict[str, int] | None:
    """Return the limits that are set; a negative one means that there is none."""
    if quota is None:
        return None
    return {name: limit for name, limit in quota.items() if limit >= 0}
