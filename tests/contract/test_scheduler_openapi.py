from __future__ import annotations

import json
from typing import Any

import pytest
from django.urls import get_resolver

from config import urls
from core.api import ApiView
from tests.api.conftest import configure, nova  # noqa: F401 - fixtures of the API tests
from tests.api.liquid_client import MEMBER
from tests.api.scheduler_client import PATH, READ_ONLY, NovaClient, recorded_request
from tests.contract.test_liquid_openapi import as_template, patterns_below
from tests.factories import make_host, make_hosts
from tests.openapi_documents import document_of, validator

EXPLAIN = "/api/v1/scheduling/explain"
PREFIXES = ("/scheduler", "/api/v1/scheduling")


def validate(content: Any, schema: str) -> None:
    """Check content against a schema of the document."""
    validator("scheduler", schema).validate(content)


def served() -> dict[str, type[ApiView]]:
    found = {}
    for route, pattern in patterns_below(get_resolver(urls.__name__)):
        view = getattr(pattern.callback, "view_class", None)
        path = as_template(route)
        if isinstance(view, type) and issubclass(view, ApiView) and path.startswith(PREFIXES):
            found[path] = view
    return found


def test_every_url_of_the_scheduler_is_documented_with_its_methods_and_nothing_else() -> None:
    documented = {path: set(item) for path, item in document_of("scheduler")["paths"].items()}
    assert documented == {path: set(view.http_method_names) for path, view in served().items()}
    assert set(documented) == {PATH, EXPLAIN}


def test_a_recorded_call_of_nova_fits_the_document() -> None:
    validate(recorded_request(), "NovaCall")
    validate({**recorded_request(), "explain_hosts": ["h1"]}, "ExplainCall")


@pytest.mark.django_db
@pytest.mark.parametrize("offered", [("h1", "h2", "h3"), ()])
def test_answers_are_as_documented(nova: NovaClient, offered: tuple[str, ...]) -> None:  # noqa: F811
    make_hosts(2)
    make_host("h3", memory_gib=1)
    body = nova.body(offered=offered, options=READ_ONLY)
    validate(body, "NovaCall")
    validate(nova.post(body).json(), "HostList")
    body["explain_hosts"] = ["h1", "h3", "unknown"]
    explained = nova.send("POST", json.dumps(body).encode(), path=EXPLAIN)
    assert explained.status_code == 200, explained.content
    validate(explained.json(), "Explanation")
    assert {host["host"] for host in explained.json()["details"]} == {"h1", "h3", "unknown"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "content", "token", "status"),
    [
        ("POST", b"{", None, 401),
        ("POST", b"{", MEMBER, 403),
        ("POST", b"{", "", 400),
        ("POST", b'{"pipeline": "x"}', "", 404),
        ("GET", b"", "", 405),
    ],
)
def test_errors_are_as_documented(
    nova: NovaClient,  # noqa: F811
    method: str,
    content: bytes,
    token: str | None,
    status: int,
) -> None:
    sent = {} if token == "" else {"token": token}
    for path, schema in ((PATH, "Error"), (EXPLAIN, "ProblemDetails")):
        response = nova.send(method, content, path=path, **sent)
        assert response.status_code == status
        assert str(status) in document_of("scheduler")["paths"][path]["post"]["responses"]
        validate(response.json(), schema)
