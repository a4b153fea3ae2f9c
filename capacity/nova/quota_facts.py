"""What the quota filter judges by (spec scheduling, 7.16; spec liquid, 14.6)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from django.db import DatabaseError, connection, transaction

from capacity.hooks import hooks
from scheduling.evaluation import CompiledPipeline
from scheduling.filters import filter_quota_enforcement
from scheduling.quota import QuotaFacts
from scheduling.request import PlacementRequest

QUOTA_FILTER = filter_quota_enforcement().name


def with_quota_facts(request: PlacementRequest, pipeline: CompiledPipeline) -> PlacementRequest:
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
    tracker = hooks.commitment_tracker
    facts = tracker.quota_facts(project_id, zone, group)
    if facts.quota is None:
        return facts
    # A negative limit means that there is none.
    limits = {name: limit for name, limit in facts.quota.items() if limit >= 0}
    return replace(facts, quota=limits, payg_usage=tracker.payg_usage(project_id, zone))
