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
from journal.bodies import check_values, unparsed_body_of
from placement import metrics
from placement.access import caller_of
from placement.api.allocations import allocation_request, consumer_write
from placement.api.names import CUSTOM_NAME, MAX_NAME
from placement.api.rendering import JSON_TYPE, empty_answer
from placement.api.urls import PROVIDER, UNKNOWN, View
from placement.domain import schemas
from placement.domain.errors import (
    DUPLICATE_NAME,
    BadRequest,
    Conflict,
    NotFound,
    PlacementError,
    UpstreamFailed,
)
from placement.domain.merging import (
    OURS,
    Document,
    merged_allocations,
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
from placement.domain.schemas import CONSUMER_GENERATIONS_SINCE
from placement.gateway.again import request_again
from placement.gateway.asking import Asks, RefusedError, body_headers, decoded
from placement.gateway.headers import Header, request_headers
from placement.gateway.modes import Mode
from placement.gateway.ownership import is_owned, owned_among, taken_by_ours
from placement.gateway.split import KnownHere, known_here, parts_of, settle_all, write_both
from placement.gateway.upstream import UpstreamAnswer
from placement.gateway.versions import minor_of_both
from placement.gateway.views import ForwardView, response_of, target_of
from placement.policy import authorise
from placement.services.allocations import AllocationRequest, ConsumerWrite
from placement.services.names import delete_class, delete_trait, ensure_class, ensure_trait

log = structlog.get_logger(__name__)

OK: Final = 200
BAD_REQUEST: Final = 400
SERVER_ERRORS: Final = 500
WRITTEN: Final = frozenset({201, 204})
DELETED: Final = frozenset({204})
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
        return self._answered(self.http_request)

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
        return self.merged(successful(ours), theirs, document)

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
        ours = self.by_us(items)
        if ours.status_code != OK:
            return ours
        theirs = self.read_there()
        if theirs.status != OK:
            return response_of(theirs, self.http_request)
        try:
            document = merged_usages(orjson.loads(ours.content), decoded(theirs))
        except UNREADABLE as error:
            raise unreadable("usages") from error
        return self.merged(ours, theirs, document)


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
        return self.merged(successful(ours), theirs, document)

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


class WriteView(HybridView):
    """Allocations that may be on both sides.

    Attributes:
        rule: Which rule lets a caller write both.
    """

    rule: str = ""

    def known(self, consumers: list[str]) -> KnownHere:
        """Return what is known here of some consumers, once no write of them is under way.

        Raises:
            Conflict: one is.
        """
        known = known_here(consumers)
        if known.writes:
            settle_all(known.writes, self.ask)
            known = known_here(consumers)
        return known

    def written(
        self, request: AllocationRequest, known: KnownHere, items: Mapping[str, str]
    ) -> HttpResponse:
        """Let one side write or both, as what consumers hold and are to hold says."""
        named = {uuid for one in request.consumers for uuid in one.resources}
        owned = owned_among(named)
        if not owned and not known.holding:
            return self.by_them()
        self.authenticate()
        authorise(self.rule, self.caller)
        ask: Asks = self.ask
        parts = parts_of(request, owned=owned, holding=known.holding, ask=ask)
        if not any(part.concerns_there for part in parts):
            return self.by_us(items)
        if not any(part.concerns_here for part in parts):
            return self.by_them()
        metrics.SPLIT_WRITES.inc()
        refused = write_both(
            parts,
            minor=self.version,
            ask=ask,
            actor=self.caller.actor,
            request_id=self.request_id,
        )
        return response_of(refused, self.http_request) if refused else empty_answer(status=204)


class ConsumerAllocationsView(WriteView):
    """What one consumer holds."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        work = {"GET": self._shown, "PUT": self._replaced, "DELETE": self._deleted}
        return work.get(self.method, self.by_us)(items)

    def _shown(self, items: Mapping[str, str]) -> HttpResponse:
        consumer = items["consumer_uuid"]
        if canonical_uuid(consumer) != consumer or not known_here([consumer]).holding:
            return self.by_them()
        ours = self.by_us(items)
        if ours.status_code != OK:
            return ours
        theirs = self.read_there()
        if theirs.status != OK:
            return response_of(theirs, self.http_request)
        try:
            document = merged_allocations(orjson.loads(ours.content), decoded(theirs))
        except UNREADABLE as error:
            raise unreadable("allocations") from error
        return self.merged(ours, theirs, document)

    def _replaced(self, items: Mapping[str, str]) -> HttpResponse:
        self.rule = "placement:allocations:update"
        uuid = canonical_uuid(items["consumer_uuid"])
        body = checked(self.body, schemas.put_allocations(self.version))
        if uuid is None or body is None:
            return self.by_us(items)
        known = self.known([uuid])
        try:
            write = consumer_write(uuid, body, minor=self.version)
        except BadRequest:
            return self.by_us(items)
        request = AllocationRequest(
            consumers=[write],
            checks_generations=self.version >= CONSUMER_GENERATIONS_SINCE,
            who=uuid,
        )
        return self.written(request, known, items)

    def _deleted(self, items: Mapping[str, str]) -> HttpResponse:
        self.rule = "placement:allocations:delete"
        consumer = items["consumer_uuid"]
        if canonical_uuid(consumer) != consumer:
            return self.by_them()
        known = self.known([consumer])
        if not known.holding:
            return self.by_them()
        given = self.http_request.META.get("HTTP_IF_MATCH", "").strip().strip('"')
        request = AllocationRequest(
            consumers=[
                ConsumerWrite(
                    uuid=consumer,
                    project_id=headroom().placement.incomplete_consumer_project_id,
                    user_id=headroom().placement.incomplete_consumer_user_id,
                    resources={},
                    generation=int(given) if given.isdecimal() else None,
                )
            ],
            checks_generations=given.isdecimal(),
            who=consumer,
        )
        return self.written(request, known, items)


class AllocationsView(WriteView):
    """Several consumers at once."""

    rule: str = "placement:allocations:manage"

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        body = checked(self.body, schemas.post_allocations(self.version))
        if self.method != "POST" or body is None:
            return self.by_us(items)
        try:
            request = allocation_request(body, minor=self.version)
        except BadRequest:
            return self.by_us(items)
        known = self.known([one.uuid for one in request.consumers])
        return self.written(request, known, items)


class ReshaperView(WriteView):
    """Inventories and allocations of one side; those of both cannot move at once."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        body = checked(self.body, schemas.reshaper(self.version))
        if self.method != "POST" or body is None:
            return self.by_us(items)
        try:
            request = allocation_request(body["allocations"], minor=self.version)
        except BadRequest:
            return self.by_us(items)
        named = {canonical_uuid(uuid) or uuid for uuid in body["inventories"]}
        named.update(uuid for one in request.consumers for uuid in one.resources)
        known = self.known([one.uuid for one in request.consumers])
        owned = owned_among(named)
        if not owned and not known.holding:
            return self.by_them()
        self.authenticate()
        if named - owned or any(
            part.concerns_there
            for part in parts_of(request, owned=owned, holding=known.holding, ask=self.ask)
        ):
            raise Conflict(
                "The request is about providers of Headroom and of the Placement behind it, or "
                "about consumers that hold something of both. A reshape is all or nothing, which "
                "two services cannot promise: send one request for each side, and move what "
                "consumers hold between the sides with POST /allocations.",
                reason="mixed_reshape",
            )
        return self.by_us(items)


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


def checked(body: bytes, schema: Any) -> Any:  # Any: shaped as the schema says
    """Return the document of a body; nothing if it is none, which our own view refuses in words."""
    check_values(body)
    try:
        return schema.load(body)
    except BadRequest:
        return None


def successful(ours: HttpResponse) -> HttpResponse:
    """Return an answer whose headers fit a success."""
    return ours if ours.status_code == OK else HttpResponse()


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


VIEWS: Final[Mapping[str, type[HybridView]]] = {
    "": RootView,
    "resource_providers": ProvidersView,
    PROVIDER: ProviderView,
    "traits": NamesView,
    "traits/{name}": NamesView,
    "resource_classes": NamesView,
    "resource_classes/{name}": NamesView,
    "usages": UsagesView,
    "allocation_candidates": CandidatesView,
    "allocations": AllocationsView,
    "allocations/{consumer_uuid}": ConsumerAllocationsView,
    "reshaper": ReshaperView,
}


def hybrid_view(template: str, view: View) -> View:
    """Return what serves a path of which both sides know a part.

    Args:
        template: The path, such as ``traits/{name}``.
        view: Serves it for us.
    """
    part = view.cls.as_view(is_part=True)  # type: ignore[attr-defined]  # of every view of ours
    kind = VIEWS.get(template, ProviderPartView)
    return kind.as_view(ours=part, pattern=f"/{template}")


def hybrid_unknown(view: View) -> View:
    """Return what serves paths that do not exist."""
    part = view.cls.as_view(is_part=True)  # type: ignore[attr-defined]  # of every view of ours
    return UnknownPathView.as_view(ours=part)
