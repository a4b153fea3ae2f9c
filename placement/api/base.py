"""What every endpoint of Placement shares (spec placement, 2.2-2.6).

The framework's request object, parsers, renderers and negotiation are left out: the contract
differs from each of them, and they would be a third of the cost of a small read.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

import structlog
from django.http import HttpRequest, HttpResponse
from rest_framework.views import APIView

from core.conf import headroom
from journal.access_log import EVENT, MOST_METHOD, MOST_PATH, facts_of, line_of, note_actor
from journal.bodies import LengthRequired, body_of
from placement import metrics
from placement.access import Caller, caller_of
from placement.api.errors import accepts_json, as_placement_error, error_answer
from placement.api.rendering import (
    JSON_TYPE,
    Prepared,
    absolute_url,
    empty_answer,
    host_of,
    is_served_host,
    json_answer,
    prefix_of,
    put_cache_headers,
    put_headers,
)
from placement.domain.errors import (
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    PayloadTooLarge,
    PlacementError,
    UnsupportedMediaType,
)
from placement.domain.microversion import MAJOR, negotiated_minor
from placement.domain.querystring import capped_number
from placement.domain.validation import Schema
from placement.policy import authorise

REQUEST_ID_KEY = "headroom.request_id"
LATER_KEY = "headroom.counted_later"
VERSION_HEADER = "OpenStack-API-Version"
GENERATION = "resource_provider_generation"
METHODS = ("get", "post", "put", "delete")
REQUEST_LOG = logging.getLogger(__name__)
log = structlog.get_logger(__name__)

View = TypeVar("View", bound="PlacementView")
Arguments = ParamSpec("Arguments")
Handler = Callable[Concatenate[View, Arguments], HttpResponse]


class PlacementView(APIView):
    """Authentication, version, route, method, errors and headers of one path.

    Attributes:
        pattern: The path as metrics name it.
        is_public: Whether the path needs no token.
        mode: Who answers, as metrics name it.
        is_part: Whether it answers another view, which counts the request.
        minor: Negotiated version.
        caller: Who asks.
        body: Of the request, once it was read.
    """

    pattern: ClassVar[str] = "unknown"
    is_public: ClassVar[bool] = False
    mode: ClassVar[str] = metrics.LOCAL
    is_part: ClassVar[bool] = False
    http_request: HttpRequest
    caller: Caller
    minor: int | None = None
    request_id: str = ""
    body: bytes = b""

    @classmethod
    def as_view(  # type: ignore[override]  # a plain function
        cls,
        **initkwargs: Any,  # Any: the framework's
    ) -> Callable[..., HttpResponse]:
        """Return a function that serves requests, each with a view of its own."""

        def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # Any: as above
            return cls(**initkwargs).dispatch(request, *args, **kwargs)

        marks = {"cls": cls, "view_class": cls, "initkwargs": initkwargs, "csrf_exempt": True}
        view.__dict__.update(marks)  # the framework's
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Serve a request and count it."""
        started = time.perf_counter()
        self.begin(request)
        try:
            self._admit()
            response: HttpResponse = self._handler()(**kwargs)
        except Exception as error:  # noqa: BLE001 - every error has an answer of its own
            response = self.failed(error)
        return self.counted(response, started)

    def begin(self, request: HttpRequest) -> None:
        """Take a request and its id."""
        self.http_request = request
        self.request_id = request.META.get(REQUEST_ID_KEY) or new_request_id()

    def failed(self, error: Exception) -> HttpResponse:
        """Return the answer to whatever was raised."""
        told = as_placement_error(error, request_id=self.request_id)
        facts_of(self.http_request).reason = told.code
        return self.refusal(told)

    def counted(self, response: HttpResponse, started: float) -> HttpResponse:
        """Return an answer as it goes out, counted unless this is a part of another view.

        Args:
            started: When the request came, as :func:`time.perf_counter` has it.
        """
        request = self.http_request
        if self.minor is not None:
            put_headers(response, _version_headers(self.minor))
        if request.method == "HEAD":
            response.content = b""
        if self.is_part:
            return response
        count = partial(self._count, response, time.perf_counter() - started)
        later: list[Callable[[], None]] | None = request.META.get(LATER_KEY)
        if later is None:
            count()
        else:
            later.append(count)
        return response

    def _count(self, response: HttpResponse, seconds: float) -> None:
        metrics.observe_request(
            method=str(self.http_request.method),
            pattern=self.pattern,
            status_code=response.status_code,
            seconds=seconds,
            mode=self.mode,
        )
        if headroom().placement.log_requests and REQUEST_LOG.isEnabledFor(logging.INFO):
            self._log(response, seconds)

    def refusal(self, error: PlacementError) -> HttpResponse:
        """Return the answer to an error."""
        return error_answer(error, self.http_request, minor=self.minor, request_id=self.request_id)

    @property
    def version(self) -> int:
        """The minor part of the negotiated version."""
        return self.minor or 0

    @property
    def prefix(self) -> str:
        """What stands before every path of the API."""
        return prefix_of(self.http_request)

    def authorise(self, rule: str, *, project_id: str | None = None) -> None:
        """Let the caller pass a rule, or refuse; see :func:`placement.policy.authorise`."""
        authorise(rule, self.caller, project_id=project_id)

    def load(self, schema: Schema) -> Any:  # Any: shaped as the schema says
        """Return the body of the request, checked."""
        self.body = body_of(self.http_request, limit_mib=headroom().placement.max_body_mib)
        return schema.load(self.body)

    def answer(
        self,
        payload: object,
        *,
        status: int = 200,
        modified_at: float | None = None,
        location: str = "",
    ) -> HttpResponse:
        """Return a JSON answer with the headers of its version.

        Args:
            payload: The body.
            status: HTTP status.
            modified_at: Newest change of what is in the body, seconds since 1970; else now.
            location: Path of what was created.
        """
        response = json_answer(payload, status=status)
        put_cache_headers(response, self.version, modified_at)
        if location:
            response["Location"] = absolute_url(self.http_request, location)
        return response

    def done(self, *, status: int = 204, location: str = "") -> HttpResponse:
        """Return an answer without a body."""
        response = empty_answer(status=status)
        if location:
            response["Location"] = absolute_url(self.http_request, location)
        return response

    def _log(self, response: HttpResponse, seconds: float) -> None:
        """Write the line of a request; what it says of itself is cut, headers are never shown.

        Source: spec placement, section 8.8.
        """
        request, caller = self.http_request, getattr(self, "caller", None)
        log.info(
            EVENT,
            api="placement",
            **line_of(request, status=int(response.status_code), seconds=seconds),
            pattern=self.pattern,
            query=request.META.get("QUERY_STRING", "")[:MOST_PATH],
            request_bytes=str(request.META.get("CONTENT_LENGTH") or "0")[:MOST_METHOD],
            response_bytes=getattr(response, "length_bytes", None) or sum(map(len, response)),
            mode=self.mode,
            user_id=caller.user_id if caller else "",
        )
        if REQUEST_LOG.isEnabledFor(logging.DEBUG):
            most_bytes = headroom().placement.max_body_log_kib << 10
            log.debug(
                "placement_request_bodies",
                request_body=shown_body([self.body], most_bytes=most_bytes),
                response_body=shown_body(response, most_bytes=most_bytes),
            )

    def _check_host(self) -> None:
        if not is_served_host(host_of(self.http_request)):
            raise BadRequest("The Host header names a host that is not served here.")

    def _admit(self) -> None:
        meta = self.http_request.META
        self._check_host()
        if not self.is_public:
            self.caller = caller_of(self.http_request)
            note_actor(self.http_request, self.caller.actor)
        self.minor = negotiated_minor(meta.get("HTTP_OPENSTACK_API_VERSION"))
        self._check_body_head()

    def _check_body_head(self) -> None:
        meta = self.http_request.META
        if "HTTP_TRANSFER_ENCODING" in meta:
            raise LengthRequired
        length = meta.get("CONTENT_LENGTH")
        if length:
            self._check_length(str(length))

    def _check_length(self, length: str) -> None:
        if not (length.isascii() and length.isdecimal()):
            raise BadRequest("content-length header must be an integer")
        limit = headroom().placement.max_body_mib
        length_bytes = capped_number(length, limit=(limit << 20) + 1)
        if length_bytes > limit << 20:
            raise PayloadTooLarge(f"The body may have {limit} MiB at most.")
        if length_bytes > 0:
            self._check_type()

    def _check_type(self) -> None:
        if not self.http_request.META.get("CONTENT_TYPE"):
            raise BadRequest("content-type header required when content-length > 0")

    def _handler(self) -> Callable[..., HttpResponse]:
        name = str(self.http_request.method).lower()
        if name in METHODS and hasattr(self, name):
            handler: Callable[..., HttpResponse] = getattr(self, name)
            return handler
        raise MethodNotAllowed(str(self.http_request.method), allowed_methods(self))


@contextmanager
def counted_at_the_end(request: HttpRequest) -> Iterator[None]:
    """Have views count a request once the block ends; where it raises, what they answered is none.

    Copies of the request that are made within count as it does.
    """
    later: list[Callable[[], None]] = []
    request.META[LATER_KEY] = later
    try:
        yield
    finally:
        del request.META[LATER_KEY]
    for count in later:
        count()


@cache
def _version_headers(minor: int) -> Prepared:
    name = VERSION_HEADER.lower()
    return {name: (VERSION_HEADER, f"placement {MAJOR}.{minor}"), "vary": ("Vary", name)}


def allowed_methods(view: PlacementView) -> str:
    """Return the methods of a path as the ``Allow`` header lists them."""
    return ", ".join(name.upper() for name in METHODS if hasattr(view, name))


def new_request_id() -> str:
    """Return an id for a request, ``req-`` and a UUID of version 4; clients do not choose it."""
    text = os.urandom(16).hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"req-{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


def since(minor: int) -> Callable[[Handler[View, Arguments]], Handler[View, Arguments]]:
    """Hide a handler from versions before ``minor`` (check V of spec placement, 4)."""

    def decorate(handler: Handler[View, Arguments]) -> Handler[View, Arguments]:
        @wraps(handler)
        def wrapper(
            view: View, /, *args: Arguments.args, **kwargs: Arguments.kwargs
        ) -> HttpResponse:
            if view.version < minor:
                raise NotFound
            return handler(view, *args, **kwargs)

        return wrapper

    return decorate


def answers_json(handler: Handler[View, Arguments]) -> Handler[View, Arguments]:
    """Refuse clients that do not take JSON (check A of spec placement, 4)."""

    @wraps(handler)
    def wrapper(view: View, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> HttpResponse:
        if not accepts_json(view.http_request):
            raise NotAcceptable("Only application/json is provided")
        return handler(view, *args, **kwargs)

    return wrapper


def reads_json(handler: Handler[View, Arguments]) -> Handler[View, Arguments]:
    """Refuse bodies that are not JSON by their header (check C of spec placement, 4)."""

    @wraps(handler)
    def wrapper(view: View, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> HttpResponse:
        header = view.http_request.META.get("CONTENT_TYPE") or ""
        media_type = header.partition(";")[0].strip().lower()
        if media_type != JSON_TYPE:
            shown = media_type or "None"
            raise UnsupportedMediaType(
                f"The media type {shown} is not supported, use application/json"
            )
        return handler(view, *args, **kwargs)

    return wrapper


def allowed_by(rule: str) -> Callable[[Handler[View, Arguments]], Handler[View, Arguments]]:
    """Let callers pass whom a rule allows (check P of spec placement, 4)."""

    def decorate(handler: Handler[View, Arguments]) -> Handler[View, Arguments]:
        @wraps(handler)
        def wrapper(
            view: View, /, *args: Arguments.args, **kwargs: Arguments.kwargs
        ) -> HttpResponse:
            view.authorise(rule)
            return handler(view, *args, **kwargs)

        return wrapper

    return decorate


#: Member of a JSON object whose name tells that its value is nobody's business. The value may be
#: cut off.
_SECRET: Final = re.compile(
    r'("[^"]*(?:password|passwd|secret|token|credential)[^"]*"\s*:\s*)'
    r'(?:"(?:[^"\\]|\\.)*"?|[^,{}\[\]\s"]+)',
    re.IGNORECASE,
)
MASKED: Final = r'\1"***"'


def shown_body(pieces: Iterable[bytes], *, most_bytes: int) -> str:
    """Return the beginning of a body as text, secrets masked.

    Args:
        pieces: Of the body, in their order.
        most_bytes: How much of it to show.
    """
    begin = bytearray()
    for piece in pieces:
        begin += piece[: most_bytes - len(begin)]
        if len(begin) >= most_bytes:
            break
    return _SECRET.sub(MASKED, begin.decode(errors="replace"))
