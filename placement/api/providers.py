"""``/resource_providers`` and one of them (spec placement, 4.2)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson
from django.http import HttpResponse

from placement.api.base import PlacementView, allowed_by, answers_json, reads_json
from placement.api.rendering import (
    NESTED_SINCE,
    PiecesResponse,
    provider_links,
    put_cache_headers,
)
from placement.domain import schemas
from placement.domain.errors import BadRequest
from placement.domain.provider_list import ListedProviders, ProviderForm
from placement.domain.querystring import (
    canonical_uuid,
    grouped_values,
    last_values,
    parse_member_of,
    parse_required,
    parse_resources,
    parsed_pairs,
)
from placement.selectors.providers import (
    ProviderQuery,
    ShownProvider,
    get_provider,
    list_kept_providers,
    list_providers,
)
from placement.services.providers import (
    KEEP,
    Keep,
    create_provider,
    delete_provider,
    update_provider,
)

PROVIDER_BODY_SINCE = 20


class ProvidersView(PlacementView):
    """``/resource_providers``."""

    pattern = "/resource_providers"

    @answers_json
    @allowed_by("placement:resource_providers:list")
    def get(self) -> HttpResponse:
        """List providers."""
        query, form = self._query(), _form(self.prefix, self.version)
        listed = list_kept_providers(query, form)
        if listed is None:
            found = list_providers(query)
            texts = [form.text(provider) for provider in found]
            newest = max((provider.modified_at for provider in found), default=None)
            listed = ListedProviders(pieces=[",".join(texts).encode()], newest=newest)
        response = PiecesResponse([b'{"resource_providers":[', *listed.pieces, b"]}"])
        put_cache_headers(response, self.version, listed.newest)
        return response

    @reads_json
    @allowed_by("placement:resource_providers:create")
    def post(self) -> HttpResponse:
        """Create a provider."""
        body = self.load(schemas.create_provider(is_nested=self.version >= NESTED_SINCE))
        provider = create_provider(
            name=_name(body),
            uuid=canonical_uuid(body["uuid"]) if body.get("uuid") else None,
            parent_uuid=_canonical(body.get("parent_provider_uuid")),
        )
        location = f"/resource_providers/{provider.uuid}"
        if self.version < PROVIDER_BODY_SINCE:
            return self.done(status=201, location=location)
        payload = provider_payload(provider, self.prefix, self.version)
        return self.answer(payload, modified_at=provider.modified_at, location=location)

    def _query(self) -> ProviderQuery:
        values = grouped_values(parsed_pairs(self.http_request.META.get("QUERY_STRING", "")))
        last = last_values(values)
        schemas.provider_query(self.version).check_query(last)
        found: dict[str, Any] = {}  # Any: keyword arguments of several types
        if "member_of" in values:
            found["member_of"] = parse_member_of(values["member_of"], minor=self.version)
        if "required" in values:
            found["required"] = parse_required(values["required"], minor=self.version)
        if "resources" in values:
            found["resources"] = parse_resources(last["resources"])
        return ProviderQuery(
            name=last.get("name", ""),
            uuid=last.get("uuid", ""),
            in_tree=last.get("in_tree", ""),
            **found,
        )


class ProviderView(PlacementView):
    """``/resource_providers/{uuid}``."""

    pattern = "/resource_providers/{uuid}"

    @answers_json
    @allowed_by("placement:resource_providers:show")
    def get(self, uuid: str) -> HttpResponse:
        """Show a provider."""
        return self._show(get_provider(uuid))

    @allowed_by("placement:resource_providers:delete")
    def delete(self, uuid: str) -> HttpResponse:
        """Delete a provider."""
        delete_provider(uuid)
        return self.done()

    @reads_json
    @allowed_by("placement:resource_providers:update")
    def put(self, uuid: str) -> HttpResponse:
        """Rename or move a provider."""
        get_provider(uuid)
        body = self.load(schemas.update_provider(is_nested=self.version >= NESTED_SINCE))
        parent_uuid: str | Keep | None = KEEP
        if "parent_provider_uuid" in body:
            parent_uuid = _canonical(body["parent_provider_uuid"])
        provider = update_provider(
            uuid, name=_name(body), parent_uuid=parent_uuid, minor=self.version
        )
        return self._show(provider)

    def _show(self, provider: ShownProvider) -> HttpResponse:
        payload = provider_payload(provider, self.prefix, self.version)
        return self.answer(payload, modified_at=provider.modified_at)


def provider_payload(provider: ShownProvider, prefix: str, minor: int) -> dict[str, object]:
    """Return a provider as answers of a version show it."""
    payload: dict[str, object] = {
        "uuid": provider.uuid,
        "name": provider.name,
        "generation": provider.generation,
        "links": provider_links(prefix, provider.uuid, minor),
    }
    if minor >= NESTED_SINCE:
        payload["parent_provider_uuid"] = provider.parent_uuid
        payload["root_provider_uuid"] = provider.root_uuid
    return payload


@lru_cache(maxsize=64)
def _form(prefix: str, minor: int) -> ProviderForm:
    return ProviderForm(
        links=orjson.dumps(provider_links(prefix, "*", minor)).decode(),
        is_nested=minor >= NESTED_SINCE,
    )


def _name(body: dict[str, Any]) -> str:  # Any: JSON that passed its schema
    name = str(body["name"])
    if not name:
        raise BadRequest("name is required")
    return name


def _canonical(uuid: str | None) -> str | None:
    return None if uuid is None else canonical_uuid(uuid)
