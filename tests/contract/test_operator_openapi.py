"""The document of ``/api/v1`` is what the code says, and what the server answers."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from django.test import Client
from django.urls import get_resolver

from config import urls
from console.api import urls as lists
from console.api.document import DOCUMENT
from console.api.schema import openapi_document
from console.api.urls import LISTS
from console.api.views import ReadViewSet
from journal.middleware import ADMIN_POLICY
from tests.api.liquid_client import MEMBER, VIEWER
from tests.console.api.conftest import _tokens, ask, key_field, page, region  # noqa: F401 - fixtures
from tests.contract.test_liquid_openapi import as_template, patterns_below
from tests.docs.tour import ROOT
from tests.openapi_documents import document_of

each_list = pytest.mark.parametrize("view", LISTS, ids=lambda view: view.path_label)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return document_of("operator")


def schema_of(document: dict[str, Any], path: str, status: str = "200") -> dict[str, Any]:
    """Return the schema of an answer, with all that it refers to."""
    answer = document["paths"][path]["get"]["responses"][status]
    if "$ref" in answer:
        answer = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    (content,) = answer["content"].values()
    return {"components": document["components"], **content["schema"]}


def checked(answer: Any, schema: dict[str, Any]) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(answer)


def test_committed_document_is_what_the_code_says() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == openapi_document(ROOT / "docs" / "api"), "./run manage export_operator_api"


def test_every_path_below_the_prefix_is_documented_with_its_methods_and_nothing_else(
    document: dict[str, Any],
) -> None:
    served = {
        as_template(route): _methods(pattern)
        for route, pattern in patterns_below(get_resolver(urls.__name__))
        if as_template(route).startswith("/api/v1/")
    }
    assert {path: set(item) for path, item in document["paths"].items()} == served


def _methods(pattern: Any) -> set[str]:
    if pattern in lists.urlpatterns:
        return set(pattern.callback.actions) - {"head"}
    view = pattern.callback.view_class
    return {name for name in view.http_method_names if hasattr(view, name)} - {"head", "options"}


@pytest.mark.django_db
@each_list
def test_rows_are_as_documented(
    region: None,  # noqa: F811
    view: type[ReadViewSet],
    document: dict[str, Any],
) -> None:
    listed = page(view.path_label)
    assert listed["items"]
    checked(listed, schema_of(document, view.path_label))
    key = listed["items"][0][key_field(view)]
    row = page(f"{view.path_label}/{key}")
    checked(row, schema_of(document, f"{view.path_label}/{{key}}"))
    broken = {**row, "surprise": 1}
    with pytest.raises(jsonschema.ValidationError):
        checked(broken, schema_of(document, f"{view.path_label}/{{key}}"))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "shown", "token", "status"),
    [
        ("/api/v1/hosts", "?limit=0", VIEWER, 400),
        ("/api/v1/hosts", "", "nobody-knows-this-one", 401),
        ("/api/v1/hosts", "", MEMBER, 403),
        ("/api/v1/hosts/{key}", "", VIEWER, 404),
    ],
)
def test_refusals_are_as_documented(
    document: dict[str, Any], path: str, shown: str, token: str, status: int
) -> None:
    answer = ask(path.replace("{key}", "nowhere") + shown, token=token)
    assert answer.status_code == status
    checked(answer.json(), schema_of(document, path, str(status)))


def test_anybody_gets_the_document_and_the_page_that_shows_it() -> None:
    answer = Client().get("/api/schema")
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/yaml")
    assert answer.content == DOCUMENT.read_bytes()
    again = Client(headers={"If-None-Match": answer["ETag"]}).get("/api/schema")
    assert (again.status_code, again.content) == (304, b"")
    shown = Client().get("/api/docs")
    assert shown.status_code == 200
    assert shown["Content-Security-Policy"] == ADMIN_POLICY
    assert b"//" not in shown.content.replace(b"<!doctype", b"")


@pytest.mark.parametrize("path", ["/api/schema", "/api/docs"])
def test_nothing_is_written_to_the_document(path: str) -> None:
    answer = Client().post(path)
    assert (answer.status_code, answer["Content-Type"]) == (405, "application/problem+json")
    assert answer["Allow"] == "GET, HEAD"
