"""Writes of allocations that may be on both sides (spec placement, 8.2, 8.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse

from core.conf import headroom
from journal.bodies import check_values
from placement import metrics
from placement.api.allocations import allocation_request, consumer_write
from placement.api.rendering import empty_answer
from placement.domain import schemas
from placement.domain.errors import (
    BadRequest,
    Conflict,
)
from placement.domain.merging import (
    merged_allocations,
)
from placement.domain.querystring import (
    canonical_uuid,
)
from placement.domain.schemas import CONSUMER_GENERATIONS_SINCE
from placement.gateway.asking import Asks
from placement.gateway.hybrid import HybridView
from placement.gateway.ownership import owned_among
from placement.gateway.split import (
    KnownHere,
    known_here,
    parts_of,
    settle_all,
    write_both,
    write_here,
)
from placement.gateway.views import response_of
from placement.policy import authorise
from placement.services.allocations import AllocationRequest, ConsumerWrite


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

    def by_us_alone(self, request: AllocationRequest, items: Mapping[str, str]) -> HttpResponse:
        """Return our own answer to a write about nothing of theirs.

        Raises:
            Conflict: a write of both sides is under way since it was looked.
        """
        consumers = [one.uuid for one in request.consumers]
        return write_here(consumers, lambda: self.by_us(items))

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
            return self.by_us_alone(request, items)
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
        return self.by_both(items, merged_allocations, "allocations")

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
        return self.by_us_alone(request, items)


def checked(body: bytes, schema: Any) -> Any:  # Any: shaped as the schema says
    """Return the document of a body; nothing if it is none, which our own view refuses in words."""
    check_values(body)
    try:
        return schema.load(body)
    except BadRequest:
        return None
