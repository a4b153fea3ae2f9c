"""The scheduler's shape of errors: JSON with ``error`` and ``request_id`` (scheduling, 2.4)."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import structlog
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from rest_framework.exceptions import APIException, MethodNotAllowed

from capacity.services.scheduling import UnknownPipeline
from journal.access_log import note_error
from journal.auth import Forbidden, Unauthenticated
from journal.bodies import LengthRequired
from journal.errors import HeadroomError, InvalidInput, NotReady, Unavailable
from journal.middleware import request_id_of
from journal.outages import as_unavailable

log = structlog.get_logger(__name__)

DECODE = "failed to decode request body"
READ = "failed to read request body"
MISSING_WEIGHT = "missing weight for host"
UNKNOWN_WEIGHT = "weight assigned to unknown host"
OPTIONS = "invalid options"
METHOD = "invalid request method"
TOO_LARGE = "request body is too large"
DECISION = "failed to process scheduling decision"
SERVER_ERROR = 500


class BodyTooLarge(HeadroomError):  # noqa: N818 - names the caller's mistake
    """The body is larger than the settings allow."""

    code = "body_too_large"

    def __init__(self, detail: str) -> None:
        super().__init__(f"{TOO_LARGE}: {detail}")


class InvalidCall(InvalidInput):
    """A request that cannot be understood.

    Attributes:
        text: What is wrong in general, one of few; the label of the metric.
    """

    code = "invalid_call"

    def __init__(self, text: str, detail: str) -> None:
        super().__init__(f"{text}: {detail}")
        self.text = text


_ERRORS: tuple[tuple[type[HeadroomError], int, str], ...] = (
    (Unauthenticated, 401, "unauthorized"),
    (Forbidden, 403, "forbidden"),
    (UnknownPipeline, 404, "unknown pipeline"),
    (BodyTooLarge, 413, TOO_LARGE),
    (LengthRequired, 411, "length required"),
    (InvalidInput, 400, DECISION),
    (NotReady, 503, "service temporarily unavailable"),
    (Unavailable, 503, "service temporarily unavailable"),
)


def error_response(
    request: HttpRequest, text: str, *, status: int, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """Return an error as JSON."""
    body = orjson.dumps({"error": text, "request_id": request_id_of(request)})
    return HttpResponse(body, content_type="application/json", status=status, headers=headers)


def answered_error(request: HttpRequest, error: Exception) -> tuple[HttpResponse, str]:
    """Return the answer to an exception, and its public text for the metrics.

    Args:
        request: The request that failed.
        error: Why.

    Returns:
        The answer, and one of a few texts without anything of the request in it.
    """
    error = as_unavailable(error) or error
    note_error(request, error)
    if isinstance(error, HeadroomError):
        return _headroom_error(request, error)
    status, text = _framework_error(error)
    if status == SERVER_ERROR:
        log.error("scheduler_request_failed", error=type(error).__name__, exc_info=error)
    return error_response(request, text, status=status), text


def _framework_error(error: Exception) -> tuple[int, str]:
    if isinstance(error, MethodNotAllowed):
        return 405, METHOD
    if isinstance(error, RequestDataTooBig):
        return 413, TOO_LARGE
    if isinstance(error, UnreadablePostError):
        return 400, READ
    if isinstance(error, APIException):
        return error.status_code, "request refused"
    return SERVER_ERROR, DECISION


def _headroom_error(request: HttpRequest, error: HeadroomError) -> tuple[HttpResponse, str]:
    status, text = next(
        ((code, words) for kind, code, words in _ERRORS if isinstance(error, kind)),
        (SERVER_ERROR, DECISION),
    )
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated | Unavailable):
        headers |= error.headers
    if isinstance(error, InvalidCall):
        text = error.text
        return error_response(request, error.message, status=status), text
    if status == SERVER_ERROR:
        log.error("scheduler_request_failed", code=error.code, message=error.message)
        return error_response(request, text, status=status), text
    shown = text if status in {401, 403, 413} else f"{text}: {error.message}"
    return error_response(request, shown, status=status, headers=headers), text
