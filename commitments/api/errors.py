"""LIQUID's shape of errors: one line of plain text with a status (spec liquid, 2.1, 2.4)."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from django.core.exceptions import RequestDataTooBig
from django.http import HttpResponse, UnreadablePostError
from rest_framework.exceptions import APIException, MethodNotAllowed
from rest_framework.request import Request

from commitments.services.info import StaleVersion
from journal.access_log import note_error
from journal.auth import Forbidden, Unauthenticated
from journal.bodies import LengthRequired
from journal.errors import HeadroomError, InvalidInput, NotReady, Unavailable, one_line
from journal.outages import as_unavailable

log = structlog.get_logger(__name__)

PLAIN_TEXT = "text/plain; charset=utf-8"
UNAVAILABLE = "service temporarily unavailable"
STATUS_OF: tuple[tuple[type[HeadroomError], int], ...] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (InvalidInput, 400),
    (LengthRequired, 411),
    (StaleVersion, 409),
    (NotReady, 503),
    (Unavailable, 503),
)


class EndpointDisabled(NotReady):
    """The endpoint is switched off in the settings."""

    code = "endpoint_disabled"


def text_response(
    text: str, *, status: int, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """Return a plain-text answer; line breaks of a rejection reason are kept."""
    return HttpResponse(text, content_type=PLAIN_TEXT, status=status, headers=headers)


def liquid_exception_handler(error: Exception, context: Mapping[str, object]) -> HttpResponse:
    """Answer an exception of a LIQUID view; DRF calls this in place of its own handler."""
    error = as_unavailable(error) or error
    if isinstance(request := context.get("request"), Request):
        note_error(request._request, error)  # noqa: SLF001 - DRF's way to Django's own
    if isinstance(error, HeadroomError):
        return _headroom_error(error)
    status, text = _framework_error(error)
    if status == 500:  # noqa: PLR2004 - HTTP internal server error
        log.error("liquid_request_failed", error=type(error).__name__, exc_info=error)
    return text_response(text, status=status)


def _framework_error(error: Exception) -> tuple[int, str]:
    if isinstance(error, MethodNotAllowed):
        return 405, "Method not allowed"
    if isinstance(error, RequestDataTooBig):
        return 413, "Request body is too large"
    if isinstance(error, UnreadablePostError):
        return 400, "Request body could not be read"
    if isinstance(error, APIException):
        return error.status_code, one_line(str(error.detail))
    return 500, "Internal server error"


def _headroom_error(error: HeadroomError) -> HttpResponse:
    status = next((code for kind, code in STATUS_OF if isinstance(error, kind)), 500)
    text = error.message
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated | Unavailable):
        headers |= error.headers
    if isinstance(error, NotReady | Unavailable):
        text = f"{UNAVAILABLE}: {text}"
    if status == 500:  # noqa: PLR2004 - HTTP internal server error
        log.error("liquid_request_failed", code=error.code, message=error.message)
    return text_response(text, status=status, headers=headers)
