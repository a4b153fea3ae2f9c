"""Writes of operators: endpoints and replays, audited."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models.functions import Now

from journal.actors import Actor
from journal.services import Change, record_changes
from webhooks.addresses import check_url
from webhooks.following import replay
from webhooks.models import Delivery, Endpoint

FIELDS: Final = ("url", "secret_name", "kinds", "is_paused")


def save_endpoint(
    *, name: str, fields: Mapping[str, Any], actor: Actor, request_id: str
) -> Endpoint:
    """Make or change an endpoint; one that was disabled is told again.

    It is told what happens from then on; what happened before, by a replay.

    Raises:
        AddressForbidden: deliveries do not go to such an address.
    """
    check_url(fields["url"])
    with transaction.atomic():
        row = Endpoint.objects.select_for_update().filter(name=name).first()
        before = None if row is None else _facts(row)
        row = row or Endpoint(name=name)
        for key in FIELDS:
            setattr(row, key, fields[key])
        row.disabled_at = None
        row.save()
        row.refresh_from_db()
        _record("saved", row, before, _facts(row), actor=actor, request_id=request_id)
    return row


def remove_endpoint(*, endpoint: Endpoint, actor: Actor, request_id: str) -> None:
    """Remove an endpoint with its deliveries."""
    with transaction.atomic():
        _record("removed", endpoint, _facts(endpoint), None, actor=actor, request_id=request_id)
        Endpoint.objects.filter(pk=endpoint.pk).delete()


def replay_endpoint(*, endpoint: Endpoint, since: datetime, actor: Actor, request_id: str) -> int:
    """Let an endpoint be told again what happened since a moment; return how many deliveries."""
    with transaction.atomic():
        count = replay(endpoint, since)
        told = {"since": since.isoformat(), "deliveries": count}
        _record("replayed", endpoint, None, told, actor=actor, request_id=request_id)
    return count


def deliver_again(*, keys: list[int], actor: Actor, request_id: str) -> int:
    """Let deliveries be made once more that are over; return how many."""
    with transaction.atomic():
        rows = Delivery.objects.select_for_update().filter(pk__in=keys).exclude(state="waiting")
        chosen = {row.pk: row for row in rows.select_related("endpoint").order_by("pk")}
        Delivery.objects.filter(pk__in=chosen).update(
            state="waiting",
            attempts=0,
            due_at=Now(),
            error="",
            answered_status=None,
            finished_at=None,
        )
        for row in chosen.values():
            told = {"delivery": row.pk, "event": row.event_id}
            _record("replayed", row.endpoint, None, told, actor=actor, request_id=request_id)
    return len(chosen)


def _facts(row: Endpoint) -> dict[str, Any]:
    return {key: getattr(row, key) for key in FIELDS}


def _record(
    what: str,
    row: Endpoint,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    *,
    actor: Actor,
    request_id: str,
) -> None:
    change = Change(
        action=f"webhook_{what}",
        object_type="Endpoint",
        object_id=row.name,
        before=before,
        after=after,
    )
    record_changes([change], actor=actor, request_id=request_id)
