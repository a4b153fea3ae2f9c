"""``/traits`` and ``/resource_classes`` (spec placement, 4.6, 4.7)."""

from __future__ import annotations

import re
from typing import Any, Final

from django.http import HttpResponse

from placement.api.base import PlacementView, allowed_by, answers_json, reads_json, since
from placement.api.rendering import TRAITS_SINCE, put_cache_headers
from placement.domain import schemas
from placement.domain.errors import BadRequest, NotFound
from placement.domain.querystring import grouped_values, last_values, parsed_pairs
from placement.models.names import CUSTOM_PREFIX
from placement.selectors.names import Named, find_class, find_trait, list_classes, list_traits
from placement.services.names import (
    create_class,
    delete_class,
    delete_trait,
    ensure_class,
    ensure_trait,
    rename_class,
)

CLASSES_SINCE: Final = 2
ENSURE_CLASS_SINCE: Final = 7
CUSTOM_NAME = re.compile(r"CUSTOM_[A-Z0-9_]+")
MAX_NAME: Final = 255
BAD_TRAIT: Final = (
    "The trait is invalid. A valid trait must be no longer than 255 characters, start with the "
    'prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
)
BAD_NAME_FILTER: Final = (
    "Badly formatted name parameter. Expected name query string parameter in form: "
    "?name=[in|startswith]:[name1,name2|prefix]. Got: "
)
BAD_ASSOCIATED: Final = 'The query parameter "associated" only accepts "true" or "false"'


class TraitsView(PlacementView):
    """``/traits``."""

    pattern = "/traits"

    @since(TRAITS_SINCE)
    @answers_json
    @allowed_by("placement:traits:list")
    def get(self) -> HttpResponse:
        """List traits."""
        pairs = parsed_pairs(self.http_request.META.get("QUERY_STRING", ""))
        values = last_values(grouped_values(pairs))
        schemas.TRAIT_QUERY.check_query(values)
        found = list_traits(**_name_filter(values), is_used=_associated(values))
        payload = {"traits": [trait.name for trait in found]}
        return self.answer(payload, modified_at=_newest(found))


class TraitView(PlacementView):
    """``/traits/{name}``."""

    pattern = "/traits/{name}"

    @since(TRAITS_SINCE)
    @allowed_by("placement:traits:show")
    def get(self, name: str) -> HttpResponse:
        """Tell whether a trait exists."""
        trait = find_trait(name)
        if trait is None:
            raise NotFound(f"No such trait(s): {name}.")
        return self._without_body(204, trait)

    @since(TRAITS_SINCE)
    @allowed_by("placement:traits:update")
    def put(self, name: str) -> HttpResponse:
        """Make sure that a trait exists."""
        if len(name) > MAX_NAME or CUSTOM_NAME.fullmatch(name) is None:
            raise BadRequest(BAD_TRAIT)
        status = 201 if ensure_trait(name) else 204
        return self._without_body(status, find_trait(name), location=f"/traits/{name}")

    @since(TRAITS_SINCE)
    @allowed_by("placement:traits:delete")
    def delete(self, name: str) -> HttpResponse:
        """Delete a trait."""
        delete_trait(name)
        return self.done()

    def _without_body(
        self, status: int, trait: Named | None, *, location: str = ""
    ) -> HttpResponse:
        response = self.done(status=status, location=location)
        put_cache_headers(response, self.version, trait.modified_at if trait else None)
        return response


class ResourceClassesView(PlacementView):
    """``/resource_classes``."""

    pattern = "/resource_classes"

    @since(CLASSES_SINCE)
    @answers_json
    @allowed_by("placement:resource_classes:list")
    def get(self) -> HttpResponse:
        """List resource classes."""
        found = list_classes()
        listed = [class_payload(self.prefix, known.name) for known in found]
        payload = {"resource_classes": listed}
        return self.answer(payload, modified_at=_newest(found))

    @since(CLASSES_SINCE)
    @reads_json
    @allowed_by("placement:resource_classes:create")
    def post(self) -> HttpResponse:
        """Create a resource class."""
        name = str(self.load(schemas.RESOURCE_CLASS)["name"])
        create_class(name)
        return self.done(status=201, location=f"/resource_classes/{name}")


class ResourceClassView(PlacementView):
    """``/resource_classes/{name}``."""

    pattern = "/resource_classes/{name}"

    @since(CLASSES_SINCE)
    @answers_json
    @allowed_by("placement:resource_classes:show")
    def get(self, name: str) -> HttpResponse:
        """Show a resource class."""
        found = find_class(name)
        if found is None:
            raise NotFound(f"No such resource class {name}.")
        is_custom = name.startswith(CUSTOM_PREFIX)
        modified_at = found.modified_at if is_custom else None
        return self.answer(class_payload(self.prefix, name), modified_at=modified_at)

    @since(CLASSES_SINCE)
    def put(self, name: str) -> HttpResponse:
        """Make sure that a class exists; before 1.7, rename it."""
        if self.version < ENSURE_CLASS_SINCE:
            return self._rename(name)
        return self._ensure(name)

    @since(CLASSES_SINCE)
    @allowed_by("placement:resource_classes:delete")
    def delete(self, name: str) -> HttpResponse:
        """Delete a resource class."""
        delete_class(name)
        return self.done()

    @reads_json
    @allowed_by("placement:resource_classes:update")
    def _rename(self, name: str) -> HttpResponse:
        new_name = str(self.load(schemas.RESOURCE_CLASS)["name"])
        rename_class(name, new_name)
        return self.answer(class_payload(self.prefix, new_name))

    @allowed_by("placement:resource_classes:update")
    def _ensure(self, name: str) -> HttpResponse:
        violation = schemas.RESOURCE_CLASS.violation({"name": name}, is_query=False)
        if violation is not None:
            raise BadRequest(f"JSON does not validate: {violation}")
        status = 201 if ensure_class(name) else 204
        return self.done(status=status, location=f"/resource_classes/{name}")


def class_payload(prefix: str, name: str) -> dict[str, object]:
    """Return a class as answers show it."""
    links = [{"rel": "self", "href": f"{prefix}/resource_classes/{name}"}]
    return {"name": name, "links": links}


def _newest(found: list[Named]) -> float | None:
    return max((known.modified_at for known in found), default=None)


def _name_filter(values: dict[str, str]) -> dict[str, Any]:  # Any: keyword arguments
    if "name" not in values:
        return {}
    operator, colon, operand = values["name"].partition(":")
    if colon and operator == "in":
        return {"names": operand.split(",")}
    if colon and operator == "startswith":
        return {"prefix": operand}
    raise BadRequest(f'{BAD_NAME_FILTER}"{values["name"]}"')


def _associated(values: dict[str, str]) -> bool | None:
    if "associated" not in values:
        return None
    word = values["associated"].lower()
    if word not in {"true", "false"}:
        raise BadRequest(BAD_ASSOCIATED)
    return word == "true"
