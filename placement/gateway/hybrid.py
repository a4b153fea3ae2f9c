"""Paths of which we answer for our providers, and the other Placement for all others (8.2, 8.5).

Each view decides who answers: the view of :mod:`placement.api`, as a part of this one, or the other
Placement; or it asks both and makes their answers one. Who is asked judges the caller.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final

import orjson
import structlog
from django.http import HttpResponse

from core.conf import headroom
from journal.access_log import note_actor
from journal.bodies import unparsed_body_of
from placement import metrics
from placement.access import caller_of
from placement.api.names import CUSTOM_NAME, MAX_NAME
from placement.api.rendering import JSON_TYPE
from placement.api.urls import UNKNOWN, View
from placement.domain.errors import (
    DUPLICATE_NAME,
    Conflict,
    NotFound,
    PlacementError,
    UpstreamFailed,
)
from placement.domain.merging import (
    OURS,
    Document,
    merged_candidates,
    merged_providers,
    merged_usages,
    version_range,
)
from placement.domain.microversion import MAJOR
from placement.domain.querystring import (
    AMOUNT_CAP,
    canonical_uuid,
    capped_number,
    grouped_values,
    parsed_pairs,
)
from placement.gateway.again import request_again
from placement.gateway.asking import RefusedError, body_headers, decoded
from placement.gateway.headers import Header, request_headers
from placement.gateway.modes import Mode
from placement.gateway.ownership import is_owned, owned_among, taken_by_ours
from placement.gateway.upstream import UpstreamAnswer
from placement.gateway.versions import minor_of_both
from placement.gateway.views import ForwardView, response_of, target_of
from placement.services.names import delete_class, delete_trait, ensure_class, ensure_trait

log = structlog.get_logger(__name__)

OK: Final = 200
BAD_REQUEST: Final = 400
SERVER_ERRORS: Final = 500
WRITTEN: Final = frozenset({201, 204})
VERSION_KEY: Final = "HTTP_OPENSTACK_API_VERSION"
CONTENT_HEADERS: Final = frozenset({"content-type", "content-length", "accept-encoding"})
LAST_MODIFIED: Final = "Last-Modified"
#: What decoding what the other side sent may raise.
UNREADABLE: Final = (KeyError, IndexError, TypeError, ValueError, AttributeError)


class HybridView(ForwardView):
    """A path of which both sides know a part.

    Attributes:
        ours: Answers for our part.
    """

    mode: ClassVar[str] = Mode.HYBRID
    ours: View = UNKNOWN
    _began: float = 0.0

    def _admit(self) -> None:
        self._check_host()
        self._began = time.monotonic()
        meta = self.http_request.META
        self.minor = minor_of_both(meta.get(VERSION_KEY))
        meta[VERSION_KEY] = f"placement {MAJOR}.{self.minor}"
        self._check_body_head()

    def _handler(self) -> Callable[..., HttpResponse]:
        return self.answer_of_both

    def answer_of_both(self, **items: str) -> HttpResponse:
        """Return the answer.

        Raises:
            PlacementError: there is none.
        """
        self.body = unparsed_body_of(self.http_request, limit_mib=headroom().placement.max_body_mib)

        def work() -> HttpResponse:
            try:
                return self._routed(items)
            except RefusedError as error:
                return response_of(error.answer, self.http_request)

        return self._never_broken(work)

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        """Return the answer of whoever has to answer."""
        raise NotImplementedError

    @property
    def method(self) -> str:
        """Of the request."""
        return str(self.http_request.method)

    @property
    def until(self) -> float:
        """Monotonic seconds when all of this request's questions end."""
        return self._began + float(headroom().gateway.timeout_seconds)

    def by_us(self, items: Mapping[str, str]) -> HttpResponse:
        """Return our own answer."""
        return self.ours(request_again(self.http_request, self.body), **items)

    def by_them(self) -> HttpResponse:
        """Return the other side's answer to the same request."""
        return self._answered(self.http_request, self.body)

    def ask(self, method: str, target: str, minor: int, body: bytes = b"") -> UpstreamAnswer:
        """Ask the other side something else by the client's token."""
        headers = [
            (name, f"placement {MAJOR}.{minor}" if name == "Openstack-Api-Version" else text)
            for name, text in self._headers()
        ]
        return self.asked(method, target, [*headers, *body_headers(body)], body, self.until)

    def read_there(self) -> UpstreamAnswer:
        """Return the other side's answer to the same read, to be looked into."""
        target = target_of(self.http_request)
        return self.asked("GET", target, self._headers(), until=self.until)

    def by_both(
        self, items: Mapping[str, str], merge: Callable[[Any, Any], Document], what: str
    ) -> HttpResponse:
        """Return one answer of both sides; the first that is no success alone.

        Args:
            merge: Makes one document of ours and theirs.
            what: What it is, for the error.
        """
        ours = self.by_us(items)
        if ours.status_code != OK:
            return ours
        theirs = self.read_there()
        if theirs.status != OK:
            return response_of(theirs, self.http_request)
        try:
            document = merge(orjson.loads(ours.content), decoded(theirs))
        except UNREADABLE as error:
            raise unreadable(what) from error
        return self.merged(ours, theirs, document)

    def authenticate(self) -> None:
        """Learn who asks, where we answer without a view of ours.

        Raises:
            Unauthorized: nobody knows.
        """
        self.caller = caller_of(self.http_request)
        note_actor(self.http_request, self.caller.actor)

    def merged(self, ours: HttpResponse, theirs: UpstreamAnswer, document: object) -> HttpResponse:
        """Return an answer with the headers of ours, as new as the newer of both."""
        response = HttpResponse(orjson.dumps(document), content_type=JSON_TYPE)
        for name, text in ours.headers.items():
            if name != "Content-Length":
                response.headers[name] = text
        given = next((text for name, text in theirs.headers if name.title() == LAST_MODIFIED), "")
        if LAST_MODIFIED in response.headers and given:
            newest = max(response.headers[LAST_MODIFIED], given, key=_moment)
            response.headers[LAST_MODIFIED] = newest
        return response

    def successful(self, ours: HttpResponse, theirs: UpstreamAnswer) -> HttpResponse:
        """Return the answer whose headers fit a success: ours, unless it alone is none."""
        return ours if ours.status_code == OK else response_of(theirs, self.http_request)

    def _headers(self) -> list[Header]:
        return [
            (name, text)
            for name, text in request_headers(self.http_request.META)
            if name.lower() not in CONTENT_HEADERS
        ]


class RootView(HybridView):
    """The version document: what both speak."""

    def _admit(self) -> None:
        self._check_host()
        self._began = time.monotonic()

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        ours = self.by_us(items)
        if ours.status_code != OK or self.method != "GET":
            return ours
        theirs = self.read_there()
        if theirs.status != OK:
            return response_of(theirs, self.http_request)
        document = orjson.loads(ours.content)
        try:
            spoken = version_range(orjson.loads(theirs.body))
        except orjson.JSONDecodeError:
            spoken = None
        both = OURS.joined(spoken) if spoken else OURS
        document["versions"][0] |= {
            "min_version": f"{MAJOR}.{both.low}",
            "max_version": f"{MAJOR}.{both.high}",
        }
        ours.content = orjson.dumps(document)
        return ours


class UnknownPathView(HybridView):
    """Paths that do not exist."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        return self.by_us(items)


class ProviderPartView(HybridView):
    """A provider, and what is below it: ours or theirs."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        return self.by_us(items) if is_owned_as_written(items["uuid"]) else self.by_them()


class ProviderView(ProviderPartView):
    """A provider; one of theirs does not get a name of ours."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        if self.method == "PUT" and not is_owned_as_written(items["uuid"]):
            refuse_shadow(self, uuid="")
        return super()._routed(items)


class ProvidersView(HybridView):
    """The list of providers, and new ones."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        if self.method == "GET":
            return self._listed(items)
        if self.method == "POST":
            return self._created(items)
        return self.by_us(items)

    def _listed(self, items: Mapping[str, str]) -> HttpResponse:
        ours = self.by_us(items)
        # A trait or a class that only the other side knows is no mistake.
        if ours.status_code not in {OK, BAD_REQUEST}:
            return ours
        theirs = self.read_there()
        if theirs.status != OK:
            return response_of(theirs, self.http_request)
        found = orjson.loads(ours.content)["resource_providers"] if ours.status_code == OK else []
        try:
            listed = decoded(theirs)["resource_providers"]
            taken = taken_by_ours(
                uuids=[one["uuid"] for one in listed], names=[one["name"] for one in listed]
            )
            document = {"resource_providers": merged_providers(found, listed, taken)}
        except UNREADABLE as error:
            raise unreadable("a list of providers") from error
        return self.merged(self.successful(ours, theirs), theirs, document)

    def _created(self, items: Mapping[str, str]) -> HttpResponse:
        body = object_of(self.body)
        parent = body.get("parent_provider_uuid")
        if isinstance(parent, str) and is_owned(parent):
            return self.by_us(items)
        refuse_shadow(self, uuid=str(body.get("uuid") or ""))
        return self.by_them()


class NamesView(HybridView):
    """Traits and resource classes: theirs, and copied here once they are written (8.6)."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        response = self.by_them()
        if self.method in {"PUT", "POST", "DELETE"} and response.status_code in WRITTEN:
            self._copy(items.get("name", ""))
        return response

    def _copy(self, name: str) -> None:
        is_class = self.pattern.startswith("/resource_classes")
        name = str(object_of(self.body).get("name") or name)
        if len(name) > MAX_NAME or CUSTOM_NAME.fullmatch(name) is None:
            return
        try:
            if self.method == "DELETE":
                (delete_class if is_class else delete_trait)(name)
            else:
                (ensure_class if is_class else ensure_trait)(name)
        except Exception as error:  # noqa: BLE001 - it is written where it counts; a task copies later
            if not isinstance(error, NotFound):
                log.warning("gateway_name_not_copied", name=name, error=str(error))


class UsagesView(HybridView):
    """What a project holds on both sides; a part of it would be a lie."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        return self.by_both(items, merged_usages, "usages")


class CandidatesView(HybridView):
    """Candidates of both sides, asked at the same time."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        if self.method != "GET":
            return self.by_us(items)
        question = _Question(self.read_there)
        ours = self.by_us(items)
        if ours.status_code not in {OK, BAD_REQUEST}:
            return ours
        try:
            theirs = question.answer()
        except PlacementError:
            return self._degraded(ours)
        if theirs.status >= SERVER_ERRORS and headroom().gateway.candidates_degrade:
            return self._degraded(ours)
        if theirs.status != OK:
            return response_of(theirs, self.http_request)
        found: Document = {"allocation_requests": [], "provider_summaries": {}}
        if ours.status_code == OK:
            found = orjson.loads(b"".join(ours))
        try:
            listed = decoded(theirs)
            document = merged_candidates(
                found,
                listed,
                owned=owned_among(listed["provider_summaries"]),
                limit=self._limit(),
            )
        except UNREADABLE as error:
            raise unreadable("candidates") from error
        return self.merged(self.successful(ours, theirs), theirs, document)

    def _degraded(self, ours: HttpResponse) -> HttpResponse:
        """Return ours alone where that is asked for; to be called while an error is handled.

        Raises:
            UpstreamFailed: it is not.
        """
        if not headroom().gateway.candidates_degrade:
            raise  # noqa: PLE0704 - of whoever calls
        metrics.DEGRADED_CANDIDATES.inc()
        return ours

    def _limit(self) -> int | None:
        values = grouped_values(parsed_pairs(self.http_request.META.get("QUERY_STRING", "")))
        return capped_number(values["limit"][0], limit=AMOUNT_CAP) if "limit" in values else None


def is_owned_as_written(uuid: str) -> bool:
    """Return whether a path names a provider of ours; other spellings name nobody."""
    return canonical_uuid(uuid) == uuid and is_owned(uuid)


def refuse_shadow(view: HybridView, *, uuid: str) -> None:
    """Refuse a provider there that would have the UUID or the name of one of ours.

    Raises:
        Conflict: it would.
    """
    name = object_of(view.body).get("name")
    names = [name] if isinstance(name, str) else []
    if taken_by_ours(uuids=[uuid], names=names):
        view.authenticate()
        what = f"name: {names[0]}" if names else f"uuid: {uuid}"
        raise Conflict(
            f"Conflicting resource provider {what} already exists.", wire_code=DUPLICATE_NAME
        )


def object_of(body: bytes) -> Mapping[str, Any]:  # Any: JSON that nobody has checked
    """Return the JSON object of a body; an empty one if it is none."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def unreadable(what: str) -> UpstreamFailed:
    """Return the error for something that the other side did not send."""
    return UpstreamFailed(f"the other Placement answered something that is not {what}")


def _moment(text: str) -> float:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return -math.inf


class _Question:
    """A question that is asked in a thread of its own."""

    def __init__(self, ask: Callable[[], UpstreamAnswer]) -> None:
        self._ask = ask
        self._found: UpstreamAnswer | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self) -> UpstreamAnswer:
        """Return the answer, which has a deadline of its own."""
        self._thread.join()
        if self._found is None:
            raise self._error or UpstreamFailed("no answer")
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._ask()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            self._error = error
