"""Success bodies of the LIQUID API: exactly the declared fields, as JSON (spec liquid, 2.1, 4)."""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import HttpResponse

from commitments.api.errors import text_response
from commitments.services.change import ChangeOutcome
from core.api import json_answer


def change_response(outcome: ChangeOutcome) -> HttpResponse:
    """Return a CommitmentChangeResponse; ``{}`` is acceptance (spec liquid, 4.5, 11.5)."""
    if outcome.status != 200:  # noqa: PLR2004 - HTTP OK
        return text_response(outcome.rejection_reason, status=outcome.status)
    payload: dict[str, object] = {}
    if outcome.rejection_reason:
        payload["rejectionReason"] = outcome.rejection_reason
        if outcome.retry_at is not None:
            payload["retryAt"] = rfc3339(outcome.retry_at)
    return json_answer(payload)


def rfc3339(moment: datetime) -> str:
    """Return a time in UTC, cut to whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
