"""``GET /api/v1/explanations/commitments/{uuid}``: what a commitment holds, where, and why."""

from __future__ import annotations

import orjson
from django.http import HttpResponse
from rest_framework.request import Request

from console.commitments.record import known_commitment
from core.api import JSON, ProblemView


class CommitmentExplanationView(ProblemView):
    """Explains one commitment to readers."""

    http_method_names = ["get"]
    path_label = "/api/v1/explanations/commitments"

    def get(self, request: Request, commitment_uuid: str) -> HttpResponse:
        """Return the commitment with its slots and events."""
        _, shown = known_commitment(commitment_uuid)
        return HttpResponse(orjson.dumps(shown), content_type=JSON)
