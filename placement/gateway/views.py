"""Handing a request on to the other Placement (spec placement, 8.2, 8.7)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, ClassVar, Final
from urllib.parse import quote

import structlog
from django.http import HttpRequest, HttpResponse

from core.conf import headroom
from journal.bodies import unparsed_body_of
from placement import metrics
from placement.api.base import PlacementView
from placement.api.errors import as_placement_error
from placement.api.rendering import FILE_BODY, INPUT_FILE, MOUNT, absolute_url
from placement.domain.errors import PlacementError, UpstreamFailed
from placement.gateway.current import current_upstream
from placement.gateway.headers import Header, answer_headers, request_headers
from placement.gateway.modes import Mode
from placement.gateway.upstream import Body, UpstreamAnswer

log = structlog.get_logger(__name__)

#: What stands in a path or a query as it is; the query is quoted by the client already.
PATH_CHARACTERS: Final = "/:@!$&'()*+,;=~"
QUERY_CHARACTERS: Final = PATH_CHARACTERS + '%?[]{}|\\^`"<>#'
LOCATION: Final = "Location"
SERVER_ERROR: Final = 500


class ForwardView(PlacementView):
    """A path that the other Placement answers: as it is asked, and as it answers.

    Who may call is its business, and so are versions; nothing of a request is read here. Only
    ``Location`` is said anew, so that clients stay with this address.

    Attributes:
        hands_on: Whether nobody here looks into what is answered, so that it may be a file.
    """

    mode: ClassVar[str] = Mode.PASSTHROUGH
    hands_on: ClassVar[bool] = True
    is_public: ClassVar[bool] = True

    def _admit(self) -> None:
        self._check_host()
        self._check_body_head()

    def _check_type(self) -> None:
        """Leave that to the other side."""

    def _handler(self) -> Callable[..., HttpResponse]:
        return self.forward

    def forward(self, **items: Any) -> HttpResponse:  # Any: parts of the path
        """Return the other side's answer.

        Raises:
            PlacementError: there is none.
        """
        del items
        request = self.http_request
        body = self._body_of(request)
        return self._never_broken(lambda: self._answered(request, body))

    def _body_of(self, request: HttpRequest) -> Body:
        """Return the body as it goes on; of one in a file the log may show the beginning."""
        file: IO[bytes] | None = request.META.get(INPUT_FILE)
        if file is None:
            self.body = unparsed_body_of(request, limit_mib=headroom().placement.max_body_mib)
            return self.body
        self.body = file.read(headroom().placement.max_body_log_kib << 10)
        return file

    def _never_broken(self, work: Callable[[], HttpResponse]) -> HttpResponse:
        """Return what work returns; what nobody expected is told as a failure of the other side."""
        try:
            return work()
        except PlacementError:
            raise
        except Exception as error:
            told = as_placement_error(error, request_id=self.request_id)
            if told.status != SERVER_ERROR:
                raise told from error
            raise UpstreamFailed(told.message) from error

    def _answered(self, request: HttpRequest, body: Body) -> HttpResponse:
        answer = self.asked(
            str(request.method),
            target_of(request),
            request_headers(request.META),
            body,
            spools=self.hands_on and FILE_BODY in request.META,
        )
        return response_of(answer, request)

    def asked(
        self,
        method: str,
        target: str,
        headers: Sequence[Header],
        body: Body = b"",
        until: float = math.inf,
        *,
        spools: bool = False,
    ) -> UpstreamAnswer:
        """Return what the other side answers to some request; counted.

        Raises:
            PlacementError: there is no answer.
        """
        started, status = time.perf_counter(), SERVER_ERROR
        try:
            answer = current_upstream().send(
                method, target, headers=headers, body=body, until=until, spools=spools
            )
            status = answer.status
        except PlacementError as error:
            status = int(error.status)
            log.warning("gateway_upstream_failed", code=error.code, error=error.message)
            raise
        finally:
            metrics.observe_upstream(
                method=method,
                pattern=self.pattern,
                status_code=status,
                seconds=time.perf_counter() - started,
            )
        return answer


class FileAnswer(HttpResponse):
    """An answer whose body is in a file, which the server sends without a thread of ours.

    Attributes:
        file_to_stream: Has the body.
        length_bytes: How much.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self.file_to_stream = file
        self.length_bytes = file.seek(0, os.SEEK_END)
        self.headers["Content-Length"] = str(self.length_bytes)


def target_of(request: HttpRequest) -> str:
    """Return what a request asks for below the mount point, quoted, with its query."""
    meta = request.META
    target = quote(request.path_info[len(MOUNT) :] or "/", safe=PATH_CHARACTERS)
    query = meta.get("QUERY_STRING")
    return f"{target}?{quote(str(query), safe=QUERY_CHARACTERS)}" if query else target


def response_of(answer: UpstreamAnswer, request: HttpRequest) -> HttpResponse:
    """Return an answer as it goes to the client."""
    response = HttpResponse(answer.body) if answer.file is None else FileAnswer(answer.file)
    response.status_code = answer.status
    response.reason_phrase = answer.reason
    del response["Content-Type"]  # which Django makes up
    for name, text in answer_headers(answer.headers).items():
        response.headers[name] = _here(text, request) if name.title() == LOCATION else text
    return response


def _here(location: str, request: HttpRequest) -> str:
    """Return an address of the other side as one of ours, any other as it is."""
    root = headroom().gateway.upstream_url.rstrip("/")
    if not location.startswith(f"{root}/"):
        return location
    return absolute_url(request, location[len(root) :])
