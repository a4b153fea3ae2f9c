"""The base of our HTTP APIs: who asks, how much, what an error looks like, what is counted.

An error says itself which status it is answered with (:attr:`journal.errors.HeadroomError.status`);
a family of endpoints has only its shape: :class:`JsonErrorView` is the scheduler's,
:class:`ProblemView` that of our own API (RFC 9457), LIQUID's is one line of text. Placement's views
have a leaner dispatch and their contract's list of errors (:mod:`placement.api.base`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

import orjson
import structlog
from django.conf import settings
from django.core.exceptions import DisallowedHost, RequestDataTooBig
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.http.response import HttpResponseBase
from prometheus_client import Histogram
from rest_framework.exceptions import APIException, MethodNotAllowed
from rest_framework.request import Request
from rest_framework.views import APIView

from journal.access_log import note_error
from journal.actors import Actor
from journal.auth import RULE_READ_ONLY, Unauthenticated, authenticate, authorise
from journal.bodies import body_of
from journal.errors import HeadroomError, InvalidInput, Unavailable
from journal.metrics import metric_name
from journal.middleware import request_id_of
from journal.outages import as_unavailable
from journal.views import PLAIN_TEXT

log = structlog.get_logger(__name__)

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
#: Where errors are problem details.
PROBLEM_PATHS = ("/api/", "/failover/v1/")
SERVER_ERROR = 500
DECISION = "failed to process scheduling decision"
REQUEST = "failed to process request"
READ = "failed to read request body"
TOO_LARGE = "request body is too large"
#: What metrics and callers are told of a status, one of few texts.
WORDS: Mapping[int, str] = {
    401: "unauthorized",
    403: "forbidden",
    404: "unknown pipeline",
    405: "invalid request method",
    411: "length required",
    413: TOO_LARGE,
    503: "service temporarily unavailable",
}
KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

API_DURATION_SECONDS = Histogram(
    metric_name("scheduler_api_request_duration_seconds"),
    "Duration of requests to the scheduler; error is the public text, empty for none.",
    ["method", "path", "status", "error"],
)


class BodyTooLarge(HeadroomError):  # noqa: N818 - names the caller's mistake
    """The body is larger than the settings allow."""

    code = "body_too_large"
    status = 413


class InvalidCall(InvalidInput):
    """A request that cannot be understood.

    Attributes:
        text: What is wrong in general, one of few; the label of the metric.
    """

    code = "invalid_call"

    def __init__(self, text: str, detail: str) -> None:
        super().__init__(f"{text}: {detail}")
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is logged of an error that nobody expected; ``raised`` is one without words of ours."""

    error: str
    message: str
    raised: Exception | None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return what is logged of an error."""
        name = type(error).__name__
        if isinstance(error, HeadroomError):
            return cls(error=name, message=error.message, raised=None)
        return cls(error=name, message="", raised=error)


class ApiView(APIView):
    """Authentication, rule, method, body, errors and metrics of one path.

    Attributes:
        rule: Policy rule that lets callers pass; the parts of the path are its target.
        limited_by: Section of the settings with the longest body.
        path_label: The path as metrics name it.
        checks_method_first: Whether an unknown method is refused before anything else is looked at.
        failed_text: Public text of errors that have none of their own.
        error_text: Public text of the error that was answered, one of few; empty for none.
    """

    rule: ClassVar[str] = RULE_READ_ONLY
    limited_by: ClassVar[str] = "liquid"
    path_label: ClassVar[str] = ""
    checks_method_first: ClassVar[bool] = True
    failed_text: ClassVar[str] = REQUEST
    http_request: HttpRequest
    actor: Actor
    error_text: str = ""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Run the checks that come before the handler; DRF itself checks the method last."""
        self.actor = authenticate(self.http_request)
        authorise(self.actor, self.rule, kwargs)
        if self.checks_method_first and str(request.method).lower() not in self.http_method_names:
            raise MethodNotAllowed(str(request.method))

    def body(self) -> bytes:
        """Return the body; see :func:`journal.bodies.body_of`."""
        limits = getattr(settings.HEADROOM, self.limited_by)
        return body_of(self.http_request, limit_mib=limits.max_body_mib)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Serve a request and count it."""
        started = time.perf_counter()
        self.http_request = request
        response = super().dispatch(request, *args, **kwargs)
        self.observe(response, time.perf_counter() - started)
        return response

    def observe(self, response: HttpResponseBase, seconds: float) -> None:
        """Count an answer."""
        method = str(self.http_request.method)
        API_DURATION_SECONDS.labels(
            method=method if method in KNOWN_METHODS else "other",
            path=self.path_label,
            status=str(response.status_code),
            error=self.error_text,
        ).observe(seconds)

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]  # not DRF's
        """Answer an exception in the family's shape."""
        error = as_unavailable(exc) or exc
        note_error(self.http_request, error)
        status = status_of(error)
        if status == SERVER_ERROR:
            self.log_failure(Failure.of(error))
        self.error_text = public_text(error, status, self.failed_text)
        response = self.refusal(error, status)
        if isinstance(error, Unauthenticated | Unavailable):
            for name, header in error.headers.items():
                response[name] = header
        return response

    def log_failure(self, failure: Failure) -> None:
        """Log what nobody expected."""
        log.error(
            "scheduler_request_failed",
            error=failure.error,
            message=failure.message,
            exc_info=failure.raised,
        )

    @abstractmethod
    def refusal(self, error: Exception, status: int) -> HttpResponse:
        """Return the answer to an error, without the headers it asks for."""


class JsonErrorView(ApiView):
    """Errors as JSON with ``error`` and ``request_id`` (scheduling, 2.4)."""

    failed_text = DECISION

    def body(self) -> bytes:
        """Return the body.

        Raises:
            BodyTooLarge: it is larger than the settings allow.
            LengthRequired: it comes in chunks.
        """
        try:
            return super().body()
        except RequestDataTooBig as error:
            raise BodyTooLarge(f"{TOO_LARGE}: {error}") from None

    def refusal(self, error: Exception, status: int) -> HttpResponse:
        """Return the error and the id of its request."""
        text = self.error_text
        if isinstance(error, InvalidCall):
            text = error.message
        elif isinstance(error, HeadroomError) and status not in {401, 403, 413, SERVER_ERROR}:
            text = f"{text}: {error.message}"
        return error_answer(self.http_request, text, status=status)


class ProblemView(JsonErrorView):
    """Errors as problem details (RFC 9457; style, 10)."""

    failed_text = REQUEST

    def refusal(self, error: Exception, status: int) -> HttpResponse:
        """Return the problem; a field that is wrong is named."""
        if not isinstance(error, HeadroomError):
            return problem_answer(
                self.http_request, status=status, detail=self.error_text, code="request_refused"
            )
        field = error.facts.get("field")
        return problem_answer(
            self.http_request,
            status=status,
            detail=self.error_text if status == SERVER_ERROR else error.message,
            code=error.code,
            members={"field": str(field)} if field else {},
        )


def status_of(error: Exception) -> int:
    """Return the HTTP status that answers an error."""
    if isinstance(error, HeadroomError):
        return error.status
    if isinstance(error, RequestDataTooBig):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if isinstance(error, UnreadablePostError):
        return HTTPStatus.BAD_REQUEST
    return error.status_code if isinstance(error, APIException) else SERVER_ERROR


def public_text(error: Exception, status: int, otherwise: str) -> str:
    """Return one of a few texts without anything of the request in it."""
    if isinstance(error, InvalidCall):
        return error.text
    return READ if isinstance(error, UnreadablePostError) else WORDS.get(status, otherwise)


def error_answer(request: HttpRequest, text: str, *, status: int) -> HttpResponse:
    """Return an error as the scheduler answers it."""
    content = orjson.dumps({"error": text, "request_id": request_id_of(request)})
    return HttpResponse(content, content_type=JSON, status=status)


def problem_answer(
    request: HttpRequest,
    *,
    status: int,
    detail: str,
    code: str,
    members: Mapping[str, object] | None = None,
) -> HttpResponse:
    """Return an error as problem details (RFC 9457), with what else belongs to it."""
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
        "request_id": request_id_of(request),
        **(members or {}),
    }
    return HttpResponse(orjson.dumps(problem), content_type=PROBLEM_JSON, status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request that Django refused before any view saw it, in the format of its API."""
    is_host = isinstance(exception, DisallowedHost)
    text = "the Host header names a host that is not served here" if is_host else "bad request"
    if request.path.startswith(PROBLEM_PATHS):
        code = "invalid_host" if is_host else "request_refused"
        return problem_answer(request, status=400, detail=text, code=code)
    if request.path.startswith("/scheduler/"):
        return error_answer(request, text, status=400)
    return HttpResponse(text[0].upper() + text[1:], content_type=PLAIN_TEXT, status=400)


def json_answer(document: object, *, status: int = 200) -> HttpResponse:
    """Return a document as JSON."""
    return HttpResponse(orjson.dumps(document), content_type=JSON, status=status)
