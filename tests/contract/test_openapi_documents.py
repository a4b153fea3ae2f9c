"""What holds for every document of an API: it is valid, complete, and nothing in it is unused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from schemathesis.core.result import Ok

from console.api.document import DOCUMENT
from tests.openapi_documents import FOLDER, SUFFIX, document_of, place_of

APIS = ("commitments", "failover", "hosts", "liquid", "placement", "scheduler", "operator")

of_each_api = pytest.mark.parametrize("api", APIS)


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def test_every_document_is_looked_at() -> None:
    assert {DOCUMENT, *FOLDER.glob(f"*{SUFFIX}")} == {place_of(api) for api in APIS}


@of_each_api
def test_document_is_valid_openapi(api: str) -> None:
    schema = schemathesis.openapi.from_path(place_of(api))
    schema.validate()
    assert all(isinstance(operation, Ok) for operation in schema.get_all_operations())


@of_each_api
def test_every_schema_is_a_valid_json_schema(api: str) -> None:
    for schema in document_of(api)["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@of_each_api
def test_every_reference_leads_somewhere_and_every_component_is_used(api: str) -> None:
    content = document_of(api)
    targets = {
        f"#/components/{kind}/{name}"
        for kind, entries in content["components"].items()
        for name in entries
        if kind != "securitySchemes"
    }
    assert set(references(content)) == targets


@of_each_api
def test_operation_ids_are_unique(api: str) -> None:
    ids = [
        operation["operationId"]
        for item in document_of(api)["paths"].values()
        for operation in item.values()
    ]
    assert ids
    assert len(ids) == len(set(ids))
