"""Facts that some weighers need beside the host table, as rows (spec scheduling, 17.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from capacity.models import SchedulingKnowledge
from capacity.nova.knowledge_document import (
    facts_from_document,
    knowledge_from_documents,
    knowledge_from_facts,
)
from journal.actors import Actor
from journal.errors import InvalidInput
from journal.services import Change, record_changes
from scheduling.knowledge import Knowledge

log = structlog.get_logger(__name__)

OBJECT_TYPE = "scheduling_knowledge"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeReplacement:
    """What replacing knowledge did, or would do.

    Attributes:
        name: Name of the knowledge.
        before: Hosts or projects it was about.
        after: Hosts or projects it is about; with 0 it counts as missing.
    """

    name: str
    before: int
    after: int


def current_knowledge() -> Knowledge:
    """Return the facts that have not expired.

    A row that something else than this module wrote counts as missing, so that it takes no
    pipeline with it.
    """
    rows = SchedulingKnowledge.objects.filter(Q(expires_at=None) | Q(expires_at__gt=Now()))
    sound: dict[str, dict[str, Any]] = {}  # Any: each name has facts of a type of its own
    for name, content in rows.values_list("name", "facts"):
        try:
            sound[name] = facts_from_document(name, content)
        except InvalidInput as error:
            log.warning("scheduling_knowledge_damaged", name=name, error=error.message)
    return knowledge_from_facts(sound)


def replace_knowledge(
    documents: Mapping[str, object],
    *,
    actor: Actor,
    request_id: str,
    expires_at: datetime | None = None,
    is_dry_run: bool = False,
) -> tuple[KnowledgeReplacement, ...]:
    """Replace the named knowledge as a whole, all or nothing; other knowledge stays.

    Pipelines take it into account from the next request on. The audit trail gets the counts, not
    the facts, which change every few minutes.

    Args:
        documents: Name -> content, see :mod:`capacity.nova.knowledge_document`.
        actor: Who brings the facts.
        expires_at: When the facts stop to count; None keeps them until they are replaced.
        is_dry_run: Report what would be done, do nothing.

    Returns:
        One entry for each name, in order of name.

    Raises:
        InvalidInput: a name is not known, or a content is of another shape.
    """
    knowledge_from_documents(documents)
    with transaction.atomic(durable=True):
        known = dict(
            SchedulingKnowledge.objects.filter(name__in=documents)
            .order_by("pk")
            .select_for_update(no_key=True)
            .values_list("name", "facts")
        )
        done = tuple(
            KnowledgeReplacement(
                name=name, before=len(known.get(name) or ()), after=_entries(content)
            )
            for name, content in sorted(documents.items())
        )
        if not is_dry_run:
            _write(documents, expires_at)
            record_changes(
                [_change(one, expires_at) for one in done], actor=actor, request_id=request_id
            )
    return done


def _entries(content: object) -> int:
    return len(content) if isinstance(content, dict) else 0


def _write(documents: Mapping[str, object], expires_at: datetime | None) -> None:
    SchedulingKnowledge.objects.bulk_create(
        [
            SchedulingKnowledge(name=name, facts=content or {}, expires_at=expires_at)
            for name, content in sorted(documents.items())
        ],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["facts", "expires_at", "updated_at"],
    )


def _change(done: KnowledgeReplacement, expires_at: datetime | None) -> Change:
    until = None if expires_at is None else expires_at.isoformat()
    return Change(
        action="knowledge_replaced",
        object_type=OBJECT_TYPE,
        object_id=done.name,
        before={"entries": done.before},
        after={"entries": done.after, "expires_at": until},
    )
