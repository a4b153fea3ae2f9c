"""From errors to answers: one shape, in the form the client accepts (spec placement, 2.5)."""

from __future__ import annotations

import html
from http import HTTPStatus

import structlog
from django.core.exceptions import RequestDataTooBig
from django.db import DataError, IntegrityError
from django.http import HttpRequest, HttpResponse
from django.http.request import UnreadablePostError

from journal.bodies import LengthRequired
from journal.errors import HeadroomError, NotReady
from journal.outages import as_unavailable
from placement.api.rendering import JSON_TYPE, json_answer
from placement.domain.errors import (
    CONCURRENT_UPDATE,
    BadRequest,
    BodyInChunks,
    Conflict,
    PayloadTooLarge,
    PlacementError,
    ServiceUnavailable,
    Unauthorized,
    error_body,
)

log = structlog.get_logger(__name__)

KEYSTONE = "Keystone"
JSON_RANGES = frozenset({JSON_TYPE, "application/*", "*/*"})


class InternalError(PlacementError):
    """Something that must not happen; the log knows more than the answer says."""

    code = "placement_internal"


def accepted_types(request: HttpRequest) -> list[str]:
    """Return the media ranges a client accepts, as it lists them; refused ones left out."""
    header = request.META.get("HTTP_ACCEPT") or "*/*"
    ranges = []
    for item in header.split(","):
        media, *parameters = (part.strip().lower() for part in item.split(";"))
        if media and not any(_is_zero_quality(parameter) for parameter in parameters):
            ranges.append(media)
    return ranges


def accepts_json(request: HttpRequest) -> bool:
    """Return whether a client takes JSON."""
    header = request.META.get("HTTP_ACCEPT")
    if header in {None, "", "*/*", JSON_TYPE}:
        return True
    return not JSON_RANGES.isdisjoint(accepted_types(request))


def _is_zero_quality(parameter: str) -> bool:
    name, _, quality = parameter.partition("=")
    try:
        return name.strip() == "q" and float(quality) == 0
    except ValueError:
        return False


def as_placement_error(error: Exception, *, request_id: str) -> PlacementError:
    """Return what a client is told about an error.

    Database errors and whatever nobody expected are told without their text.
    """
    if isinstance(error, PlacementError):
        return error
    away = as_unavailable(error)
    if away is not None:
        unavailable = ServiceUnavailable(away.message, headers=away.headers)
        unavailable.__cause__ = away  # whose code operators are told
        return unavailable
    told = _told_by_kind(error)
    if told is not None:
        return told
    log.error("placement_request_failed", exc_info=error)
    return InternalError(f"Please give this request id when you report it: {request_id}")


def _told_by_kind(error: Exception) -> PlacementError | None:
    told: PlacementError | None = None
    if isinstance(error, NotReady):
        told = ServiceUnavailable(error.message)
    elif isinstance(error, DataError | UnicodeError):
        told = BadRequest("A value cannot be stored: it has characters or a size not allowed.")
    elif isinstance(error, RequestDataTooBig):
        told = PayloadTooLarge(str(error))
    elif isinstance(error, LengthRequired):
        told = BodyInChunks(error.message)
    elif isinstance(error, UnreadablePostError):
        told = BadRequest("The body of the request ended early.")
    elif isinstance(error, IntegrityError):
        log.warning("placement_write_lost_a_race", error=str(error))
        told = Conflict(
            "Something it names changed meanwhile: try again", wire_code=CONCURRENT_UPDATE
        )
    elif isinstance(error, HeadroomError):
        told = Conflict(error.message)
    return told


def error_answer(
    error: PlacementError, request: HttpRequest, *, minor: int | None, request_id: str
) -> HttpResponse:
    """Return the answer to a request that failed, as JSON unless the client takes none."""
    accepted = accepted_types(request)
    if JSON_RANGES.isdisjoint(accepted) and "text/html" in accepted:
        response = _html_page(error)
    elif JSON_RANGES.isdisjoint(accepted) and "text/plain" in accepted:
        text = f"{int(error.status)} {error.title}\n\n{error.detail}\n"
        response = HttpResponse(text, content_type="text/plain; charset=UTF-8")
    elif isinstance(error, Unauthorized):
        response = json_answer(_unauthorized_body(error))
    else:
        response = json_answer(error_body(error, minor=minor, request_id=request_id))
    response.status_code = error.status
    for name, value in error.headers.items():
        response[name] = value
    return response


def _html_page(error: PlacementError) -> HttpResponse:
    heading = html.escape(f"{int(error.status)} {error.title}")
    detail = html.escape(error.detail).replace("\n\n", "<br /><br />\n")
    page = (
        f"<html>\n<head><title>{heading}</title></head>\n"
        f"<body>\n<h1>{heading}</h1>\n{detail}\n</body>\n</html>\n"
    )
    return HttpResponse(page, content_type="text/html; charset=UTF-8")


def _unauthorized_body(error: PlacementError) -> dict[str, object]:
    status = HTTPStatus(error.status)
    if error.headers.get("WWW-Authenticate", "").startswith(KEYSTONE):
        described = {"code": int(status), "title": status.phrase, "message": error.message}
        return {"error": described}
    return {
        "message": error.detail,
        "code": f"{int(status)} {status.phrase}",
        "title": status.phrase,
    }
