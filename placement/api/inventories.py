"""Inventories and usages of a provider (spec placement, 4.3, 4.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse

from journal.errors import HeadroomError
from placement.api.base import GENERATION, PlacementView, allowed_by, answers_json, reads_json
from placement.domain import schemas
from placement.domain.capacity import InventoryAmounts
from placement.domain.errors import MethodNotAllowed, NotFound
from placement.selectors.inventories import FIELDS, get_inventories, get_provider_usages
from placement.selectors.providers import get_provider
from placement.services.inventories import (
    WrittenInventories,
    amounts_of,
    create_inventory,
    delete_inventories,
    delete_inventory,
    replace_inventories,
    update_inventory,
)

DELETE_ALL_SINCE = 5


class InventoriesView(PlacementView):
    """``/resource_providers/{uuid}/inventories``."""

    pattern = "/resource_providers/{uuid}/inventories"

    @answers_json
    @allowed_by("placement:resource_providers:inventories:list")
    def get(self, uuid: str) -> HttpResponse:
        """List what a provider has."""
        found = get_inventories(uuid)
        payload = {GENERATION: found.generation, "inventories": found.by_class}
        return self.answer(payload, modified_at=found.newest)

    @reads_json
    @allowed_by("placement:resource_providers:inventories:create")
    def post(self, uuid: str) -> HttpResponse:
        """Add a class."""
        get_provider(uuid)
        body = self.load(schemas.CREATE_INVENTORY)
        class_name = str(body["resource_class"])
        written = create_inventory(
            uuid, class_name=class_name, amounts=amounts_of(body), minor=self.version
        )
        return self.answer(
            _one(written, class_name),
            status=201,
            modified_at=written.modified_at,
            location=f"/resource_providers/{uuid}/inventories/{class_name}",
        )

    @reads_json
    @allowed_by("placement:resource_providers:inventories:update")
    def put(self, uuid: str) -> HttpResponse:
        """Replace everything."""
        try:
            body = self.load(schemas.REPLACE_INVENTORIES)
        except HeadroomError:
            get_provider(uuid)  # that there is none is said first
            raise
        written = replace_inventories(
            uuid,
            inventories=inventories_of(body),
            generation=int(body[GENERATION]),
            minor=self.version,
        )
        payload = {
            GENERATION: written.generation,
            "inventories": {name: _fields(a) for name, a in written.by_class.items()},
        }
        return self.answer(payload, modified_at=written.modified_at)

    @allowed_by("placement:resource_providers:inventories:delete")
    def delete(self, uuid: str) -> HttpResponse:
        """Take everything away."""
        delete_inventories(uuid)
        return self.done()

    def _handler(self) -> Any:  # Any: as the base says
        if self.http_request.method == "DELETE" and self.version < DELETE_ALL_SINCE:
            raise MethodNotAllowed("DELETE", "GET, POST, PUT")
        return super()._handler()


class InventoryView(PlacementView):
    """``/resource_providers/{uuid}/inventories/{resource_class}``."""

    pattern = "/resource_providers/{uuid}/inventories/{resource_class}"

    @answers_json
    @allowed_by("placement:resource_providers:inventories:show")
    def get(self, uuid: str, resource_class: str) -> HttpResponse:
        """Show one class of what a provider has."""
        found = get_inventories(uuid)
        if resource_class not in found.by_class:
            raise NotFound(f"No inventory of class {resource_class} for {uuid}")
        payload = {GENERATION: found.generation, **found.by_class[resource_class]}
        return self.answer(payload, modified_at=found.modified_at[resource_class])

    @reads_json
    @allowed_by("placement:resource_providers:inventories:update")
    def put(self, uuid: str, resource_class: str) -> HttpResponse:
        """Change one class."""
        get_provider(uuid)
        body = self.load(schemas.UPDATE_INVENTORY)
        written = update_inventory(
            uuid,
            class_name=resource_class,
            amounts=amounts_of(body),
            generation=int(body[GENERATION]),
            minor=self.version,
        )
        return self.answer(_one(written, resource_class), modified_at=written.modified_at)

    @allowed_by("placement:resource_providers:inventories:delete")
    def delete(self, uuid: str, resource_class: str) -> HttpResponse:
        """Take one class away."""
        delete_inventory(uuid, class_name=resource_class)
        return self.done()


class ProviderUsagesView(PlacementView):
    """``/resource_providers/{uuid}/usages``."""

    pattern = "/resource_providers/{uuid}/usages"

    @answers_json
    @allowed_by("placement:resource_providers:usages")
    def get(self, uuid: str) -> HttpResponse:
        """Show what is allocated of each class a provider has."""
        generation, usages = get_provider_usages(uuid)
        return self.answer({GENERATION: generation, "usages": usages})


def inventories_of(document: Mapping[str, Any]) -> dict[str, InventoryAmounts]:  # Any: checked JSON
    """Return the inventories of a body, by class."""
    return {name: amounts_of(fields) for name, fields in document["inventories"].items()}


def _fields(amounts: InventoryAmounts) -> dict[str, int | float]:
    return {name: getattr(amounts, name) for name in FIELDS}


def _one(written: WrittenInventories, class_name: str) -> dict[str, int | float]:
    return {GENERATION: written.generation, **_fields(written.by_class[class_name])}
