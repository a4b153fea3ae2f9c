"""``/allocation_candidates`` (spec placement, 6)."""

from __future__ import annotations

from typing import Final

from django.http import HttpResponse

from placement.api.base import PlacementView, allowed_by, answers_json, since
from placement.api.rendering import JSON_TYPE, put_cache_headers
from placement.selectors.candidates import candidates_body

CANDIDATES_SINCE: Final = 10


class CandidatesView(PlacementView):
    """``/allocation_candidates``."""

    pattern = "/allocation_candidates"

    @since(CANDIDATES_SINCE)
    @answers_json
    @allowed_by("placement:allocation_candidates:list")
    def get(self) -> HttpResponse:
        """List the ways in which providers can serve a request."""
        text = self.http_request.META.get("QUERY_STRING", "")
        response = HttpResponse(candidates_body(text, self.version), content_type=JSON_TYPE)
        put_cache_headers(response, self.version, None)
        return response
