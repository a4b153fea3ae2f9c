"""Answering requests that only read from a standby, and from the primary when that fails (ADR 36).

While a view runs, this thread's default connection is the standby's, so that nothing in it has to
know. Who is signed in, and their session, are read from the primary before. A standby takes no
writes, so a view that writes after all fails there and is asked again on the primary, as is every
view that did not answer well: a row that the standby lacks yet is no 404.

What follows changes within a process (:mod:`journal.history`) refuses a standby, and its views are
answered by the primary. They are remembered, so that few requests are answered twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import structlog
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, connections
from django.http import HttpRequest, UnreadablePostError
from django.http.response import HttpResponseBase

from journal.counters import READS
from journal.history import NotFollowed, read_moment, wal_bytes
from journal.standby.asking import reading_from, still_answers
from journal.standby.watch import StandbyWatch, current_watch

log = structlog.get_logger(__name__)

View = Callable[..., HttpResponseBase]
#: Pages, lists and reports. Reports of LIQUID are asked by POST.
READING: Final = re.compile(r"^/(admin|api/v1)/")
REPORTS: Final = re.compile(r"^/commitments/v1/(projects/[^/]+/)?report-(capacity|usage)$")
#: Names the WAL that has what this browser wrote.
COOKIE: Final = "headroom_written"
_POSITION: Final = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}")
REMEMBERED_SECONDS: Final = 300.0
BAD: Final = 400


class StandbyReadsMiddleware:
    """Have views that only read answered by a standby, where there is a fresh one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self.watch: StandbyWatch | None = current_watch()
        self._primary_until: dict[str, float] = {}

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Serve the request; a browser that wrote is told to see that from now on."""
        response = self.get_response(request)
        if (
            self.watch is not None
            and request.path.startswith("/admin/")
            and request.method not in {"GET", "HEAD", "OPTIONS"}
        ):
            self._let_see_writes(self.watch, response)
        return response

    def process_view(
        self, request: HttpRequest, view: View, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> HttpResponseBase | None:  # Any: what a path names
        """Answer from a standby; None leaves the request to the primary."""
        if self.watch is None or not _only_reads(request):
            return None
        name = self._name_of(request)
        if self._primary_until.get(name, 0.0) > time.monotonic():
            READS.labels(reader="pages", answered_by="primary").inc()
            return None
        alias = self.watch.choose(written_bytes=_wanted(request))
        if alias is None:
            READS.labels(reader="pages", answered_by="primary").inc()
            return None
        if not _read_identity(request):
            return None
        answer = self._ask(self.watch, alias, name, lambda: view(request, *args, **kwargs))
        _rewind(request)
        answered_by = "standby" if answer is not None else "primary_again"
        READS.labels(reader="pages", answered_by=answered_by).inc()
        return answer

    def _ask(
        self, watch: StandbyWatch, alias: str, name: str, ask: Callable[[], HttpResponseBase]
    ) -> HttpResponseBase | None:
        """Return a standby's answer; None if it is not good."""
        try:
            with reading_from(connections[alias]):
                response = ask()
                render = getattr(response, "render", None)
                if callable(render):
                    response = render()
        except NotFollowed as error:
            self._remember(name, str(error))
            return None
        except DatabaseError as error:
            self._blame(watch, alias, name, str(error))
            return None
        except Exception as error:  # noqa: BLE001 - the primary decides what it comes to
            log.debug("standby_answer_dropped", view=name, error=repr(error))
            return None
        if response.streaming or response.status_code >= BAD:
            if response.status_code >= 500:  # noqa: PLR2004 - a refused write, in most cases
                self._blame(watch, alias, name, str(response.status_code))
            _drop(response)
            return None
        return response

    def _blame(self, watch: StandbyWatch, alias: str, name: str, reason: str) -> None:
        """Leave out a standby that is gone; one that answers was asked by a view that it cannot."""
        if still_answers(alias):
            self._remember(name, reason)
        else:
            log.info("standby_read_repeated", view=name, reason=reason.strip())
            watch.leave_out(alias)

    def _remember(self, name: str, reason: str) -> None:
        """Leave a view to the primary for a while."""
        log.info("standby_read_repeated", view=name, reason=reason.strip())
        self._primary_until[name] = time.monotonic() + REMEMBERED_SECONDS

    def _name_of(self, request: HttpRequest) -> str:
        match = request.resolver_match
        return f"{request.method} {match.route if match else request.path}"

    def _let_see_writes(self, watch: StandbyWatch, response: HttpResponseBase) -> None:
        try:
            position = read_moment().wal
        except DatabaseError:
            return  # nothing was written, or the next page cannot be read either
        response.set_cookie(
            COOKIE,
            position,
            max_age=int(watch.most_lag_seconds) + 1,
            path="/admin/",
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",
        )


def _only_reads(request: HttpRequest) -> bool:
    if request.headers.get("Cache-Control", "") == "no-cache" and not _is_page(request):
        return False
    if request.method == "POST":
        return REPORTS.match(request.path) is not None
    return request.method in {"GET", "HEAD"} and READING.match(request.path) is not None


def _is_page(request: HttpRequest) -> bool:
    """Browsers send ``no-cache`` when a page is loaded anew; that asks nothing of us."""
    return request.path.startswith("/admin/")


def _wanted(request: HttpRequest) -> int:
    position = request.COOKIES.get(COOKIE, "")
    return wal_bytes(position) if _POSITION.fullmatch(position) else 0


def _read_identity(request: HttpRequest) -> bool:
    """Read the body, session and user now: they belong to the primary and to both answers.

    Returns:
        Whether the body could be read; what is wrong with it is the view's to say, once.
    """
    try:
        _ = request.body
    except (RequestDataTooBig, UnreadablePostError):
        return False
    user = getattr(request, "user", None)
    if user is not None:
        _ = user.is_authenticated
    return True


def _drop(response: HttpResponseBase) -> None:
    """Let go of what an answer holds. To close it would tell that the request has ended."""
    for close in response._resource_closers:  # type: ignore[attr-defined]  # noqa: SLF001 - Django's
        close()


def _rewind(request: HttpRequest) -> None:
    """Have the body be there to be read once more, as a view reads it but once."""
    request._stream = BytesIO(request.body)  # noqa: SLF001 - Django's
