"""Celery entry points of the capacity app (spec commitments, 1.4, 4.1)."""

from __future__ import annotations

from celery import shared_task

from capacity.services.flavor_groups import refresh_flavor_groups as refresh
from journal.actors import task_actor
from journal.tracing import with_new_global_request_id

REFRESH_FLAVOR_GROUPS = "capacity.refresh_flavor_groups"


@shared_task(name=REFRESH_FLAVOR_GROUPS, time_limit=120, soft_time_limit=100)
def refresh_flavor_groups() -> dict[str, int | bool]:
    """Make flavor groups agree with flavors and rules."""
    with with_new_global_request_id() as request_id:
        result = refresh(actor=task_actor(REFRESH_FLAVOR_GROUPS), request_id=request_id)
    return {
        "created": len(result.created),
        "updated": len(result.updated),
        "retired": len(result.retired),
        "removed": len(result.removed),
        "has_changed": result.has_changed,
    }
