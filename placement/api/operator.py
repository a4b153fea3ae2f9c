"""``/api/v1/placement``: what operators ask of candidates (spec placement, 12).

Callers are admitted as those of the Placement API are; errors are problem details.
"""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpResponse

from core.api import problem_answer
from journal.errors import Unavailable
from journal.heavy import Length, heavy_question
from placement.access import caller_of
from placement.api.base import PlacementView, allowed_by, reads_json
from placement.api.rendering import JSON_TYPE, json_answer
from placement.domain.errors import PlacementError
from placement.domain.hypothesis import Supposed
from placement.domain.microversion import MAX_MINOR, negotiated_minor
from placement.domain.querystring import canonical_uuid
from placement.domain.validation import Schema
from placement.selectors.candidates import explanation_document, simulation_body

_UUID: Final = {"type": "string", "format": "uuid"}
SIMULATION: Final = Schema(
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1},
            "allocations": {
                "type": "array",
                "maxItems": 10_000,
                "items": {
                    "type": "object",
                    "properties": {
                        "resource_provider_uuid": _UUID,
                        "resources": {
                            "type": "object",
                            "minProperties": 1,
                            "additionalProperties": {
                                "type": "integer",
                                "minimum": -(2**31),
                                "maximum": 2**31,
                            },
                        },
                    },
                    "required": ["resource_provider_uuid", "resources"],
                    "additionalProperties": False,
                },
            },
            "removed_providers": {"type": "array", "maxItems": 10_000, "items": _UUID},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
)


class OperatorView(PlacementView):
    """A view of our own API; without a version header the newest microversion holds."""

    def refusal(self, error: PlacementError) -> HttpResponse:
        """Return the answer to an error as problem details (RFC 9457)."""
        cause = error.__cause__
        response = problem_answer(
            self.http_request,
            status=error.status,
            detail=error.message,
            code=cause.code if isinstance(cause, Unavailable) else error.wire_code,
            members=error.extra,
        )
        for name, value in error.headers.items():
            response[name] = value
        return response

    def _admit(self) -> None:
        self.caller = caller_of(self.http_request)
        header = self.http_request.META.get("HTTP_OPENSTACK_API_VERSION")
        self.minor = negotiated_minor(header) if header else MAX_MINOR
        self._check_body_head()


class ExplainCandidatesView(OperatorView):
    """``GET /api/v1/placement/explain``."""

    pattern = "/api/v1/placement/explain"

    @allowed_by("placement:allocation_candidates:list")
    def get(self) -> HttpResponse:
        """Say which constraint of a candidates query removes how many providers."""
        text = self.http_request.META.get("QUERY_STRING", "")
        with heavy_question(Length.SHORT):
            return json_answer(explanation_document(text, self.version))


class SimulateCandidatesView(OperatorView):
    """``POST /api/v1/placement/simulate``."""

    pattern = "/api/v1/placement/simulate"

    @reads_json
    @allowed_by("placement:allocation_candidates:list")
    def post(self) -> HttpResponse:
        """Answer a candidates query as if something were allocated or gone; writes nothing."""
        body = self.load(SIMULATION)
        with heavy_question(Length.SHORT):
            content = simulation_body(body["query"], self.version, _supposed(body))
        return HttpResponse(content, content_type=JSON_TYPE)


def _supposed(body: dict[str, Any]) -> Supposed:  # Any: JSON that passed its schema
    allocations: dict[str, dict[str, int]] = {}
    for entry in body.get("allocations", ()):
        amounts = allocations.setdefault(_canonical(entry["resource_provider_uuid"]), {})
        for name, amount in entry["resources"].items():
            amounts[name] = amounts.get(name, 0) + int(amount)
    removed = [_canonical(uuid) for uuid in body.get("removed_providers", ())]
    return Supposed(allocations=allocations, removed=removed)


def _canonical(uuid: str) -> str:
    return canonical_uuid(uuid) or uuid
