"""LIQUID's shape of errors: one line of plain text with a status (spec liquid, 2.1, 2.4)."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from django.http import HttpResponse
from rest_framework.exceptions import APIException

from core.api import ApiView, Failure
from journal.errors import HeadroomError, NotReady, Unavailable, one_line

log = structlog.get_logger(__name__)

PLAIN_TEXT = "text/plain; charset=utf-8"
UNAVAILABLE = "service temporarily unavailable"
#: What is said of errors that carry no words of their own.
TEXTS: Mapping[int, str] = {
    400: "Request body could not be read",
    405: "Method not allowed",
    413: "Request body is too large",
    500: "Internal server error",
}


class EndpointDisabled(NotReady):
    """The endpoint is switched off in the settings."""

    code = "endpoint_disabled"


class TextErrorView(ApiView):
    """A view whose errors are plain text."""

    def log_failure(self, failure: Failure) -> None:
        """Log what nobody expected."""
        log.error(
            "liquid_request_failed",
            error=failure.error,
            message=failure.message,
            exc_info=failure.raised,
        )

    def refusal(self, error: Exception, status: int) -> HttpResponse:
        """Return the text of an error."""
        if not isinstance(error, HeadroomError):
            detail = error.detail if isinstance(error, APIException) else TEXTS[500]
            return text_response(TEXTS.get(status, one_line(str(detail))), status=status)
        is_passing = isinstance(error, NotReady | Unavailable)
        text = f"{UNAVAILABLE}: {error.message}" if is_passing else error.message
        return text_response(text, status=status)


def text_response(text: str, *, status: int) -> HttpResponse:
    """Return a plain-text answer; line breaks of a rejection reason are kept."""
    return HttpResponse(text, content_type=PLAIN_TEXT, status=status)
