"""``/allocation_candidates`` (spec placement, 6)."""

from __future__ import annotations

from typing import Final

from django.http import HttpResponse

from placement.api.base import PlacementView, allowed_by, answers_json, since
from placement.api.rendering import PiecesResponse, put_cache_headers
from placement.selectors.candidates import candidates_pieces

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
        response = PiecesResponse(candidates_pieces(text, self.version))
        put_cache_headers(response, self.version, None)
        return response
