"""Errors of our own API: problem details (RFC 9457; style, 10)."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from django.http import HttpRequest, HttpResponse

from capacity.api.errors import SERVER_ERROR, answered_error
from journal.errors import HeadroomError
from journal.middleware import request_id_of
from journal.outages import as_unavailable

PROBLEM_JSON = "application/problem+json"


def problem_response(request: HttpRequest, error: Exception) -> tuple[HttpResponse, str]:
    """Return the answer to an exception, and its public text for the metrics."""
    error = as_unavailable(error) or error
    plain, text = answered_error(request, error)
    status = plain.status_code
    is_ours = isinstance(error, HeadroomError) and status != SERVER_ERROR
    body: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message if is_ours and isinstance(error, HeadroomError) else text,
        "code": error.code if isinstance(error, HeadroomError) else "request_refused",
        "request_id": request_id_of(request),
    }
    if isinstance(error, HeadroomError) and error.facts.get("field"):
        body["field"] = str(error.facts["field"])
    response = HttpResponse(orjson.dumps(body), content_type=PROBLEM_JSON, status=status)
    for name in ("Retry-After", "WWW-Authenticate"):
        if name in plain.headers:
            response[name] = plain[name]
    return response, text
