"""Writing audit entries and outbox rows, always inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from journal.actors import Actor
from journal.clock import database_now
from journal.models import AuditEntry, Heartbeat, Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one object, as it is audited and announced.

    Attributes:
        action: Verb and object in one word, such as ``commitment_accepted``.
        object_type: Model name.
        object_id: Public id of the object (uuid or name).
        before: Fields before the change; ``None`` when the object is new.
        after: Fields after the change; ``None`` when the object is gone.
        reason: Why, for a person.
        topic: Outbox topic; empty when nobody outside needs to hear of it.
    """

    action: str
    object_type: str
    object_id: str
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    reason: str = ""
    topic: str = ""


class JournalOutsideTransactionError(RuntimeError):
    """A change was recorded outside the transaction that makes it."""


def record_changes(changes: Iterable[Change], *, actor: Actor, request_id: str) -> None:
    """Write audit entries, and outbox rows where a topic is given, in bulk.

    Args:
        changes: What changed.
        actor: Who changed it.
        request_id: Correlation id of the operation.

    Raises:
        JournalOutsideTransactionError: no transaction is open.
    """
    listed = list(changes)
    if not listed:
        return
    if not connection.in_atomic_block:
        raise JournalOutsideTransactionError
    AuditEntry.objects.bulk_create(
        AuditEntry(
            actor=actor.name,
            request_id=request_id,
            action=change.action,
            object_type=change.object_type,
            object_id=change.object_id,
            before=change.before,
            after=change.after,
            reason=change.reason,
        )
        for change in listed
    )
    Outbox.objects.bulk_create(
        Outbox(
            topic=change.topic,
            object_type=change.object_type,
            object_id=change.object_id,
            payload=dict(change.after or {}),
        )
        for change in listed
        if change.topic
    )


def queue_heartbeat(queue: str) -> str:
    """Return the name of the heartbeat that waits in a queue like its tasks."""
    return f"queue:{queue}"


def record_heartbeat(name: str) -> None:
    """Note that the periodic job ``name`` is alive now."""
    with transaction.atomic(durable=True):
        Heartbeat.objects.update_or_create(name=name, defaults={"beaten_at": database_now()})
