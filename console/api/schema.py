"""The OpenAPI document of ``/api/v1``: lists from their serializers, the rest as it is written.

``docs/api/*.openapi.yaml`` describe the paths that are no lists. They are merged into one document,
which ``./run manage export_operator_api`` writes and ``/api/schema`` serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from django.urls import include, path
from drf_spectacular.contrib.django_filters import DjangoFilterExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema

from console.api.paging import PAGE_PARAMETERS

PREFIX: Final = "/api/v1/"
WRITTEN: Final = ("commitments", "failover", "hosts", "placement", "scheduler")
_NOISE: Final = frozenset({"readOnly", "x-spec-enum-id"})
_COMPONENTS: Final = "#/components/"
_REFUSALS: Final = {
    "list": ("400", "401", "403", "405"),
    "retrieve": ("400", "401", "403", "404", "405"),
}
_TAG: Final = {"ETag": {"$ref": "#/components/headers/ETag"}}
_ID: Final = {"X-Request-ID": {"$ref": "#/components/headers/RequestID"}}
_PROBLEM: Final = {
    "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
}
_SHARED: Final[Mapping[str, Mapping[str, Any]]] = {  # Any: JSON
    "securitySchemes": {
        "authToken": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
        "bearer": {"type": "http", "scheme": "bearer"},
    },
    "parameters": {
        "IfNoneMatch": {
            "name": "If-None-Match",
            "in": "header",
            "description": "Tags of answers that the caller has.",
            "schema": {"type": "string"},
        },
    },
    "headers": {
        "RequestID": {
            "description": "Found again in logs, decisions and audit entries.",
            "required": True,
            "schema": {"type": "string"},
        },
        "ETag": {
            "description": "Tag of the content.",
            "required": True,
            "schema": {"type": "string", "pattern": '^W/"[0-9a-f]{32}"$'},
        },
    },
    "responses": {
        "NotModified": {
            "description": "The caller has this answer already.",
            "headers": {**_ID, **_TAG},
        },
        "Problem": {
            "description": "The call was refused; code and detail say why.",
            "headers": _ID,
            "content": _PROBLEM,
        },
        "Unavailable": {
            "description": "The database did not answer in time.",
            "headers": {
                **_ID,
                "Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}},
            },
            "content": _PROBLEM,
        },
    },
    "schemas": {
        "ProblemDetails": {
            "type": "object",
            "description": "RFC 9457.",
            "additionalProperties": False,
            "required": ["type", "title", "status", "detail", "code", "request_id"],
            "properties": {
                "type": {"const": "about:blank"},
                "title": {"type": "string"},
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "detail": {"type": "string"},
                "code": {"type": "string", "pattern": "^[a-z_]+$"},
                "request_id": {"type": "string"},
                "field": {"type": "string", "description": "What is wrong, when one thing is."},
            },
        },
    },
}


class StrictFilterExtension(DjangoFilterExtension):  # type: ignore[no-untyped-call]  # registers itself
    """Filters of lists as parameters."""

    target_class = "console.api.filters.StrictFilterBackend"
    priority = 1

    def get_schema_operation_parameters(self, auto_schema: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the parameters; an empty one is refused."""
        told = super().get_schema_operation_parameters
        found = told(auto_schema, *args, **kwargs)  # type: ignore[no-untyped-call]  # no types
        for parameter in found:
            if parameter["name"] in PAGE_PARAMETERS:
                raise ValueError(f"{parameter['name']} is a parameter of pages")
            parameter["schema"].setdefault("minLength", 1)
        return found


class ListSchema(AutoSchema):
    """What is said of a list and of one of its rows."""

    view: Any  # a list; the library's type is any view

    def get_operation(self, *args: Any, **kwargs: Any) -> Any:  # Any: the library's
        """Return an operation with its headers and refusals."""
        operation = super().get_operation(*args, **kwargs)
        if operation is None or self.view.action not in _REFUSALS:  # what is written by hand
            return None
        operation["parameters"] = [
            *operation.get("parameters", ()),
            {"$ref": "#/components/parameters/IfNoneMatch"},
        ]
        responses = operation["responses"]
        responses["200"]["description"] = "A page." if self._is_list() else "The row."
        responses["200"]["headers"] = {**_ID, **_TAG}
        responses["304"] = {"$ref": "#/components/responses/NotModified"}
        named = ("404",) if "{" in self.view.path_label else ()
        for status in sorted({*_REFUSALS[self.view.action], *named}):
            responses[status] = {"$ref": "#/components/responses/Problem"}
        responses["503"] = {"$ref": "#/components/responses/Unavailable"}
        return operation

    def get_operation_id(self) -> str:
        """Return ``listHosts``, ``getHosts`` or ``listHostsSlots``."""
        parts = self._path_name().replace("/{name}/", "-").split("-")
        words = "".join(word.capitalize() for word in parts)
        return ("list" if self._is_list() else "get") + words

    def get_tags(self) -> list[str]:
        """Return the one group that all lists are in."""
        return ["rows"]

    def get_summary(self) -> str:
        """Return the first line of the view."""
        told = str(type(self.view).__doc__).strip().splitlines()[0]
        return told if self._is_list() else f"One row: {told[0].lower()}{told[1:]}"

    def get_description(self) -> str:  # type: ignore[override]  # the library's
        """Return nothing: the summary says it."""
        return ""

    def _is_list(self) -> bool:
        return str(self.view.action) == "list"

    def _path_name(self) -> str:
        return str(self.view.path_label).removeprefix(PREFIX)


def openapi_document(written: Path) -> str:
    """Return the document of ``/api/v1`` as YAML.

    Args:
        written: Folder with the documents that are written by hand.
    """
    document = _lists()
    for api in WRITTEN:
        text = (written / f"{api}.openapi.yaml").read_text(encoding="utf-8")
        _merge(document, yaml.safe_load(text), api.capitalize())
    _prune(document)
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=100)


class _Plain(yaml.SafeDumper):
    """Writes out what is used twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _lists() -> dict[str, Any]:
    patterns = [path(PREFIX.lstrip("/"), include("console.api.urls"))]
    made = SchemaGenerator(patterns=patterns).get_schema(public=True)  # type: ignore[no-untyped-call]
    schemas = {
        name: {**_plain(schema), "additionalProperties": False}
        for name, schema in made["components"]["schemas"].items()
    }
    components = {kind: dict(entries) for kind, entries in _SHARED.items()}
    components["schemas"] |= schemas
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headroom operator API",
            "version": "1",
            "summary": "Everything that operators see, ask and order.",
            "description": "Errors are problem details (RFC 9457). Every answer carries "
            "X-Request-ID. Paths have no trailing slash and are never redirected.",
        },
        "servers": [{"url": "/"}],
        "security": [{"authToken": []}, {"bearer": []}],
        "tags": [{"name": "rows", "description": "Rows, page by page and one by one."}],
        "paths": _plain(made["paths"]),
        "components": components,
    }


def _plain(node: Any) -> Any:  # Any: JSON
    """Leave out what says nothing here: all rows are read only."""
    if isinstance(node, list):
        return [_plain(child) for child in node]
    if not isinstance(node, dict):
        return node
    if node.get("oneOf") == [{}, {"type": "null"}]:  # any JSON: null is in it
        node = {name: child for name, child in node.items() if name != "oneOf"}
    return {name: _plain(child) for name, child in node.items() if name not in _NOISE}


def _merge(document: dict[str, Any], other: dict[str, Any], prefix: str) -> None:
    """Take over paths below ``/api/v1`` with what they refer to, under names of their own."""
    other = _renamed(other, prefix)
    document["tags"] += other.get("tags", [])
    for name, item in other["paths"].items():
        if name.startswith(PREFIX):
            document["paths"][name] = document["paths"].get(name, {}) | item
    for kind, entries in other["components"].items():
        if kind != "securitySchemes":
            document["components"][kind] |= {
                f"{prefix}{name}": entry for name, entry in entries.items()
            }


def _renamed(node: Any, prefix: str) -> Any:  # Any: JSON
    if isinstance(node, list):
        return [_renamed(child, prefix) for child in node]
    if not isinstance(node, dict):
        return node
    renamed = {name: _renamed(child, prefix) for name, child in node.items()}
    if isinstance(target := renamed.get("$ref"), str):
        kind, name = target.removeprefix(_COMPONENTS).split("/")
        renamed["$ref"] = f"{_COMPONENTS}{kind}/{prefix}{name}"
    return renamed


def _prune(document: dict[str, Any]) -> None:
    """Leave out components that nothing refers to any more, and tags without an operation."""
    components = document["components"]
    seen: set[str] = set()
    waiting = list(_references(document["paths"]))
    while waiting:
        target = waiting.pop()
        if target not in seen:
            seen.add(target)
            kind, name = target.removeprefix(_COMPONENTS).split("/")
            waiting += _references(components[kind][name])
    for kind, entries in components.items():
        if kind != "securitySchemes":
            components[kind] = {
                name: entry
                for name, entry in sorted(entries.items())
                if f"{_COMPONENTS}{kind}/{name}" in seen
            }
    operations = [step for item in document["paths"].values() for step in item.values()]
    used = {tag for operation in operations for tag in operation["tags"]}
    document["tags"] = [tag for tag in document["tags"] if tag["name"] in used]


def _references(node: Any) -> Iterator[str]:  # Any: JSON
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _references(child)
