"""Reading who held what when, and providers page by page (spec placement, 12)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from core.prepared import fetch

EVENTS = """
SELECT e.id, e.created_at, e.consumer_uuid::text, e.provider_uuid::text, e.resource_class,
       e.previous, e.amount, e.actor, e.request_id
  FROM placement_allocation_event e
 WHERE (%(consumer)s::uuid IS NULL OR e.consumer_uuid = %(consumer)s::uuid)
   AND (%(provider)s::uuid IS NULL OR e.provider_uuid = %(provider)s::uuid)
   AND (%(marker)s::bigint IS NULL OR e.id < %(marker)s::bigint)
 ORDER BY e.id DESC
 LIMIT %(limit)s
"""
PROVIDERS = """
SELECT p.id, p.uuid::text, p.name, p.generation, parent.uuid::text, root.uuid::text, p.origin,
       p.zone, p.is_retiring, c.newest
  FROM placement_provider p
  JOIN placement_provider root ON root.id = p.root_id
  LEFT JOIN placement_provider parent ON parent.id = p.parent_id
  LEFT JOIN (SELECT root_id, max(seq) AS newest FROM placement_change GROUP BY root_id) c
    ON c.root_id = p.root_id
 WHERE p.id > coalesce((SELECT m.id FROM placement_provider m WHERE m.uuid = %(marker)s::uuid), 0)
   AND p.origin <> 'upstream'
 ORDER BY p.id
 LIMIT %(limit)s
"""
MARKER_EXISTS = "SELECT 1 FROM placement_provider WHERE uuid = %s::uuid"


class EventRow(NamedTuple):
    """One change of one allocation."""

    id: int
    created_at: datetime
    consumer_uuid: str
    provider_uuid: str
    resource_class: str
    previous: int
    amount: int
    actor: str
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Which events are asked for; what is ``None`` does not restrict them.

    Attributes:
        consumer: Canonical UUID.
        provider: Canonical UUID.
        marker: Events older than this one.
        limit: At most so many.
    """

    consumer: str | None = None
    provider: str | None = None
    marker: int | None = None
    limit: int = 100


def list_events(query: EventQuery) -> list[EventRow]:
    """Return events, newest first."""
    parameters = {
        "consumer": query.consumer,
        "provider": query.provider,
        "marker": query.marker,
        "limit": query.limit,
    }
    return [EventRow(*row) for row in fetch(EVENTS, parameters)]


def list_provider_page(*, marker: str | None, limit: int) -> list[dict[str, Any]]:  # Any: JSON
    """Return providers in order of creation, after the one whose UUID is ``marker``.

    ``last_change`` is the newest change of the provider's tree in the last hour, if there was one.
    """
    keys = (
        "uuid",
        "name",
        "generation",
        "parent_provider_uuid",
        "root_provider_uuid",
        "origin",
        "zone",
        "is_retiring",
        "last_change",
    )
    rows = fetch(PROVIDERS, {"marker": marker, "limit": limit})
    return [dict(zip(keys, row[1:], strict=True)) for row in rows]


def provider_exists(uuid: str) -> bool:
    """Return whether a provider has this canonical UUID."""
    return bool(fetch(MARKER_EXISTS, [uuid]))
