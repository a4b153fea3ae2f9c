"""Keeping change requests that were refused (spec liquid, 11.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction

from commitments.domain.changeset import ChangeEntry, ChangeRequest
from commitments.metrics import REFUSALS_NOT_KEPT
from commitments.models import RefusedChange
from journal.actors import Actor

if TYPE_CHECKING:
    from commitments.services.change import ChangeOutcome

log = structlog.get_logger(__name__)


def keep_refusal(
    request: ChangeRequest, outcome: ChangeOutcome, *, actor: Actor, request_id: str
) -> None:
    """Keep what was refused, in a transaction of its own.

    The answer does not depend on it: a database that does not take the row is logged and counted.

    Args:
        outcome: The answer, a no.
        actor: Who asked.
    """
    if not settings.HEADROOM.liquid.refusal_retention_days:
        return
    refusal = RefusedChange(
        request_id=request_id,
        actor=actor.name,
        zone=request.zone[:255],
        is_timeout=outcome.is_timeout,
        reason=outcome.rejection_reason,
        retry_at=outcome.retry_at,
        asked=[_asked(entry) for entry in request.entries()],
        refused=[
            {"commitment": item.commitment_uuid, "message": item.message, "advice": item.advice}
            for item in outcome.rejected
        ],
    )
    try:
        with transaction.atomic():
            refusal.save(force_insert=True)
    except DatabaseError:
        REFUSALS_NOT_KEPT.inc()
        log.exception("refusal_not_kept", zone=request.zone)


def _asked(entry: ChangeEntry) -> dict[str, object]:
    change = entry.change
    return {
        "commitment": change.uuid,
        "project": entry.project_id,
        "resource": entry.resource_name,
        "old_status": change.old_status.value if change.old_status else None,
        "new_status": change.new_status.value if change.new_status else None,
        "amount_units": change.amount_units,
    }
