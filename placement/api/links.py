"""Aggregates and traits of a provider (spec placement, 4.4, 4.5)."""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpResponse

from placement.api.base import (
    GENERATION,
    PlacementView,
    allowed_by,
    answers_json,
    reads_json,
    since,
)
from placement.api.rendering import AGGREGATES_SINCE, TRAITS_SINCE
from placement.domain import schemas
from placement.domain.querystring import canonical_uuid
from placement.selectors.inventories import get_provider_aggregates, get_provider_traits
from placement.selectors.providers import get_provider
from placement.services.links import (
    delete_provider_traits,
    set_provider_aggregates,
    set_provider_traits,
)

AGGREGATE_GENERATIONS_SINCE = 19


class ProviderAggregatesView(PlacementView):
    """``/resource_providers/{uuid}/aggregates``."""

    pattern = "/resource_providers/{uuid}/aggregates"

    @answers_json
    @since(AGGREGATES_SINCE)
    @allowed_by("placement:resource_providers:aggregates:list")
    def get(self, uuid: str) -> HttpResponse:
        """List the aggregates a provider is in."""
        found = get_provider_aggregates(uuid)
        return self._show(found.names, found.generation)

    @reads_json
    @since(AGGREGATES_SINCE)
    @allowed_by("placement:resource_providers:aggregates:update")
    def put(self, uuid: str) -> HttpResponse:
        """Replace the aggregates a provider is in."""
        get_provider(uuid)
        generation = None
        if self.version >= AGGREGATE_GENERATIONS_SINCE:
            body = self.load(schemas.PUT_AGGREGATES)
            listed, generation = body["aggregates"], int(body[GENERATION])
        else:
            listed = self.load(schemas.PUT_AGGREGATES_LIST)
        aggregates = list(dict.fromkeys(filter(None, map(canonical_uuid, listed))))
        new_generation = set_provider_aggregates(uuid, aggregates=aggregates, generation=generation)
        return self._show(aggregates, new_generation)

    def _show(self, aggregates: Sequence[str], generation: int) -> HttpResponse:
        payload: dict[str, object] = {"aggregates": list(aggregates)}
        if self.version >= AGGREGATE_GENERATIONS_SINCE:
            payload[GENERATION] = generation
        return self.answer(payload)


class ProviderTraitsView(PlacementView):
    """``/resource_providers/{uuid}/traits``."""

    pattern = "/resource_providers/{uuid}/traits"

    @since(TRAITS_SINCE)
    @answers_json
    @allowed_by("placement:resource_providers:traits:list")
    def get(self, uuid: str) -> HttpResponse:
        """List the traits of a provider."""
        return self._show(uuid)

    @since(TRAITS_SINCE)
    @reads_json
    @allowed_by("placement:resource_providers:traits:update")
    def put(self, uuid: str) -> HttpResponse:
        """Replace the traits of a provider."""
        body = self.load(schemas.PUT_TRAITS)
        set_provider_traits(uuid, names=body["traits"], generation=int(body[GENERATION]))
        return self._show(uuid)

    @since(TRAITS_SINCE)
    @allowed_by("placement:resource_providers:traits:delete")
    def delete(self, uuid: str) -> HttpResponse:
        """Take all traits from a provider."""
        delete_provider_traits(uuid)
        return self.done()

    def _show(self, uuid: str) -> HttpResponse:
        found = get_provider_traits(uuid)
        payload = {"traits": found.names, GENERATION: found.generation}
        return self.answer(payload, modified_at=found.modified_at)
