"""``/api/v1/placement/history`` and ``/api/v1/placement/providers`` (spec placement, 12)."""

from __future__ import annotations

from typing import Final

from django.http import HttpResponse

from placement.api.base import allowed_by
from placement.api.operator import OperatorView
from placement.api.rendering import json_answer
from placement.domain.errors import BadRequest
from placement.domain.querystring import (
    canonical_uuid,
    grouped_values,
    last_values,
    parsed_pairs,
)
from placement.domain.validation import Schema
from placement.selectors.history import (
    EventQuery,
    list_events,
    list_provider_page,
    provider_exists,
)

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
_NUMBER: Final = {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"}
_UUID: Final = {"type": "string", "format": "uuid"}
HISTORY_QUERY: Final = Schema(
    {
        "type": "object",
        "properties": {
            "consumer": _UUID,
            "provider": _UUID,
            "marker": _NUMBER,
            "limit": _NUMBER,
        },
        "additionalProperties": False,
    }
)
PROVIDERS_QUERY: Final = Schema(
    {
        "type": "object",
        "properties": {"marker": _UUID, "limit": _NUMBER},
        "additionalProperties": False,
    }
)


class PagedView(OperatorView):
    """A list that is read page by page."""

    def _query(self, schema: Schema) -> dict[str, str]:
        pairs = parsed_pairs(self.http_request.META.get("QUERY_STRING", ""))
        values = last_values(grouped_values(pairs))
        schema.check_query(values)
        return values


class HistoryView(PagedView):
    """``GET /api/v1/placement/history``: who held what when, newest first."""

    pattern = "/api/v1/placement/history"

    @allowed_by("placement:resource_providers:allocations:list")
    def get(self) -> HttpResponse:
        """List changes of allocations, of one consumer or one provider if asked."""
        values = self._query(HISTORY_QUERY)
        query = EventQuery(
            consumer=canonical_uuid(values["consumer"]) if "consumer" in values else None,
            provider=canonical_uuid(values["provider"]) if "provider" in values else None,
            marker=int(values["marker"]) if "marker" in values else None,
            limit=_limit(values),
        )
        events = list_events(query)
        marker = events[-1].id if len(events) == query.limit else None
        payload = {"events": [event._asdict() for event in events], "next_marker": marker}
        return json_answer(payload)


class ProviderPagesView(PagedView):
    """``GET /api/v1/placement/providers``: providers page by page."""

    pattern = "/api/v1/placement/providers"

    @allowed_by("placement:resource_providers:list")
    def get(self) -> HttpResponse:
        """List providers in order of creation."""
        values = self._query(PROVIDERS_QUERY)
        marker = canonical_uuid(values["marker"]) if "marker" in values else None
        if marker is not None and not provider_exists(marker):
            raise BadRequest(f"marker names no resource provider: {marker}")
        limit = _limit(values)
        found = list_provider_page(marker=marker, limit=limit)
        next_marker = found[-1]["uuid"] if len(found) == limit else None
        return json_answer({"resource_providers": found, "next_marker": next_marker})


def _limit(values: dict[str, str]) -> int:
    return min(int(values.get("limit", DEFAULT_LIMIT)), MAX_LIMIT)
