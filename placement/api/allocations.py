"""Allocations, the reshaper, and usages of projects (spec placement, 4.8-4.10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpResponse

from core.conf import headroom
from placement.api.base import (
    GENERATION,
    PlacementView,
    allowed_by,
    answers_json,
    reads_json,
    since,
)
from placement.api.inventories import inventories_of
from placement.domain import schemas
from placement.domain.capacity import MAX_INTEGER
from placement.domain.errors import BadRequest, NotFound
from placement.domain.querystring import (
    canonical_uuid,
    capped_number,
    grouped_values,
    last_values,
    parsed_pairs,
)
from placement.domain.schemas import (
    CONSUMER_GENERATIONS_SINCE,
    CONSUMER_TYPES_SINCE,
    DICT_FORM_SINCE,
)
from placement.selectors.allocations import (
    get_consumer_allocations,
    get_project_usages,
    get_provider_allocations,
)
from placement.selectors.providers import is_canonical
from placement.services.allocations import (
    AllocationRequest,
    ConsumerWrite,
    delete_allocations,
    replace_allocations,
)
from placement.services.reshaper import NewInventories, reshape
from placement.services.upkeep import fold_usage_of

POST_SINCE: Final = 13
RESHAPER_SINCE: Final = 30
USAGES_SINCE: Final = 9
CONSUMER_COUNT: Final = "consumer_count"

Document = Mapping[str, Any]  # Any: JSON that passed its schema


class AllocationsView(PlacementView):
    """``/allocations``: several consumers at once."""

    pattern = "/allocations"

    @since(POST_SINCE)
    @reads_json
    @allowed_by("placement:allocations:manage")
    def post(self) -> HttpResponse:
        """Replace what several consumers hold, all or none."""
        body = self.load(schemas.post_allocations(self.version))
        request = allocation_request(body, minor=self.version)
        replace_allocations(
            request, actor=self.caller.actor, request_id=self.request_id, kind="post"
        )
        return self.done()


class ConsumerAllocationsView(PlacementView):
    """``/allocations/{consumer_uuid}``."""

    pattern = "/allocations/{consumer_uuid}"

    @answers_json
    @allowed_by("placement:allocations:list")
    def get(self, consumer_uuid: str) -> HttpResponse:
        """Show what a consumer holds."""
        held = get_consumer_allocations(consumer_uuid)
        payload: dict[str, object] = {
            "allocations": {
                provider: {"resources": resources, "generation": held.generations[provider]}
                for provider, resources in held.resources.items()
            }
        }
        if held.resources and self.version >= DICT_FORM_SINCE:
            payload["project_id"] = held.project_id
            payload["user_id"] = held.user_id
            if self.version >= CONSUMER_GENERATIONS_SINCE:
                payload["consumer_generation"] = held.consumer_generation
            if self.version >= CONSUMER_TYPES_SINCE:
                payload["consumer_type"] = held.consumer_type
        return self.answer(payload, modified_at=held.modified_at)

    @reads_json
    @allowed_by("placement:allocations:update")
    def put(self, consumer_uuid: str) -> HttpResponse:
        """Replace what a consumer holds."""
        uuid = canonical_uuid(consumer_uuid)
        if uuid is None:
            raise BadRequest(f"Malformed consumer_uuid: {consumer_uuid}")
        body = self.load(schemas.put_allocations(self.version))
        request = AllocationRequest(
            consumers=[consumer_write(uuid, body, minor=self.version)],
            checks_generations=self.version >= CONSUMER_GENERATIONS_SINCE,
            who=uuid,
        )
        replace_allocations(
            request, actor=self.caller.actor, request_id=self.request_id, kind="put"
        )
        return self.done()

    @allowed_by("placement:allocations:delete")
    def delete(self, consumer_uuid: str) -> HttpResponse:
        """Give back what a consumer holds; ``If-Match`` may name its generation."""
        if not is_canonical(consumer_uuid):
            raise NotFound(f"No allocations for consumer '{consumer_uuid}'")
        delete_allocations(
            consumer_uuid,
            generation=_expected_generation(self.http_request.META.get("HTTP_IF_MATCH")),
            actor=self.caller.actor,
            request_id=self.request_id,
        )
        return self.done()


class ProviderAllocationsView(PlacementView):
    """``/resource_providers/{uuid}/allocations``."""

    pattern = "/resource_providers/{uuid}/allocations"

    @answers_json
    @allowed_by("placement:resource_providers:allocations:list")
    def get(self, uuid: str) -> HttpResponse:
        """Show who holds what of a provider."""
        held = get_provider_allocations(uuid)
        has_generations = self.version >= CONSUMER_GENERATIONS_SINCE
        allocations: dict[str, dict[str, object]] = {}
        for consumer, resources in held.resources.items():
            allocations[consumer] = {"resources": resources}
            if has_generations:
                generation = held.consumer_generations[consumer]
                allocations[consumer]["consumer_generation"] = generation
        payload = {"allocations": allocations, GENERATION: held.generation}
        return self.answer(payload, modified_at=held.modified_at)


class ReshaperView(PlacementView):
    """``/reshaper``."""

    pattern = "/reshaper"

    @since(RESHAPER_SINCE)
    @reads_json
    @allowed_by("placement:reshaper:reshape")
    def post(self) -> HttpResponse:
        """Move inventories and allocations between providers, all or nothing."""
        body = self.load(schemas.reshaper(self.version))
        inventories = {
            uuid: NewInventories(generation=int(new[GENERATION]), by_class=inventories_of(new))
            for uuid, new in _named_once(body["inventories"], "resource provider").items()
        }
        allocations = allocation_request(body["allocations"], minor=self.version)
        reshape(inventories, allocations, actor=self.caller.actor, request_id=self.request_id)
        return self.done()


class UsagesView(PlacementView):
    """``/usages``: what a project holds."""

    pattern = "/usages"

    @since(USAGES_SINCE)
    @answers_json
    def get(self) -> HttpResponse:
        """Show what a project holds, by consumer type since 1.38."""
        pairs = parsed_pairs(self.http_request.META.get("QUERY_STRING", ""))
        values = last_values(grouped_values(pairs))
        self.authorise("placement:usages", project_id=values.get("project_id", ""))
        has_types = self.version >= CONSUMER_TYPES_SINCE
        schemas.usage_query(has_types=has_types).check_query(values)
        usages = get_project_usages(
            values["project_id"],
            user_id=values.get("user_id"),
            consumer_type=values.get("consumer_type") if has_types else "all",
            with_held=not headroom().placement.strict_reference,
            note_parts=lambda rows: fold_usage_of(values["project_id"], rows),
        )
        if not has_types:
            in_all = usages.get("all")
            return self.answer({"usages": in_all.resources if in_all else {}})
        by_type = {
            kind: {**usage.resources, CONSUMER_COUNT: usage.consumer_count}
            for kind, usage in usages.items()
        }
        return self.answer({"usages": by_type})


def allocation_request(body: Document, *, minor: int) -> AllocationRequest:
    """Return the request of a body that names several consumers.

    Raises:
        BadRequest: a consumer is not like a UUID, or is named twice.
    """
    malformed = next((given for given in body if canonical_uuid(given) is None), None)
    if malformed is not None:
        raise BadRequest(f"Malformed consumer_uuid: {malformed}")
    return AllocationRequest(
        consumers=[
            consumer_write(uuid, document, minor=minor)
            for uuid, document in _named_once(body, "consumer").items()
        ],
        checks_generations=minor >= CONSUMER_GENERATIONS_SINCE,
    )


def consumer_write(uuid: str, document: Document, *, minor: int) -> ConsumerWrite:
    """Return what one consumer is to hold.

    Raises:
        BadRequest: a provider is not like a UUID, so there is none, or is named twice.
    """
    placement = headroom().placement
    generation = document.get("consumer_generation")
    return ConsumerWrite(
        uuid=uuid,
        project_id=document.get("project_id") or placement.incomplete_consumer_project_id,
        user_id=document.get("user_id") or placement.incomplete_consumer_user_id,
        resources=_resources(document["allocations"], is_list=minor < DICT_FORM_SINCE),
        generation=None if generation is None else int(generation),
        consumer_type=document.get("consumer_type"),
    )


def _resources(allocations: Any, *, is_list: bool) -> dict[str, dict[str, int]]:  # Any: checked
    if is_list:  # of one provider's entries the last counts, as in the reference
        by_given = {item["resource_provider"]["uuid"]: item for item in allocations}
    else:
        by_given = allocations
    for given in by_given:
        if canonical_uuid(given) is None:
            raise BadRequest(f"Allocation for resource provider '{given}' that does not exist.")
    named = _named_once(by_given, "resource provider")
    return {uuid: item["resources"] for uuid, item in named.items()}


def _named_once(by_given: Mapping[str, Any], kind: str) -> dict[str, Any]:  # Any: as above
    """Return the same values by canonical UUID; a key that is not like a UUID stays.

    Raises:
        BadRequest: two keys are spellings of one UUID.
    """
    by_uuid: dict[str, Any] = {}  # Any: as above
    for given, found in by_given.items():
        uuid = canonical_uuid(given) or given
        if uuid in by_uuid:
            raise BadRequest(f"The request names {kind} {uuid} more than once.")
        by_uuid[uuid] = found
    return by_uuid


def _expected_generation(header: str | None) -> int | None:
    if header is None:
        return None
    text = header.strip().strip('"')
    if not (text.isascii() and text.isdecimal()):
        raise BadRequest(f"If-Match must be a consumer generation. Got: {header}")
    return capped_number(text, limit=MAX_INTEGER)
