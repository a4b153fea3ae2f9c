"""``docs/api/placement.openapi.yaml`` says what is served below ``/api/v1/placement``."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
from django.test import Client
from django.urls import get_resolver

from config import urls
from placement.api.base import METHODS
from placement.api.operator import SIMULATION, OperatorView
from placement.models import ResourceProvider
from tests.contract.test_liquid_openapi import as_template, patterns_below
from tests.openapi_documents import document_of, validator
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.placement.rows import grow_providers

PREFIX = "/api/v1/placement"
ADMIN = {"X-Auth-Token": "admin"}


def validate(content: Any, schema: str) -> None:
    """Check content against a schema of the document."""
    validator("placement", schema).validate(content)


def served() -> dict[str, set[str]]:
    found = {}
    for route, pattern in patterns_below(get_resolver(urls.__name__)):
        view = getattr(pattern.callback, "view_class", None)
        path = as_template(route)
        if isinstance(view, type) and issubclass(view, OperatorView):
            found[path] = {name for name in METHODS if hasattr(view, name)}
    return found


def test_every_url_is_documented_with_its_methods_and_nothing_else() -> None:
    documented = {path: set(item) for path, item in document_of("placement")["paths"].items()}
    assert documented == served()
    assert {path.removeprefix(PREFIX) for path in documented} == {
        "/explain",
        "/simulate",
        "/history",
        "/providers",
    }


UNKNOWN = "00000000-0000-4000-8000-00000000dead"
SIMULATIONS: tuple[dict[str, Any], ...] = (
    {"query": "resources=VCPU:1"},
    {"query": ""},
    {},
    {"query": "x", "other": 1},
    {"query": "x", "removed_providers": ["x"]},
    {"query": "x", "removed_providers": [UNKNOWN]},
    {"query": "x", "allocations": [{"resource_provider_uuid": UNKNOWN}]},
    {
        "query": "x",
        "allocations": [{"resource_provider_uuid": UNKNOWN, "resources": {"VCPU": -(2**31)}}],
    },
    {
        "query": "x",
        "allocations": [{"resource_provider_uuid": UNKNOWN, "resources": {"VCPU": 2**31 + 1}}],
    },
    {"query": "x", "allocations": [{"resource_provider_uuid": UNKNOWN, "resources": {}}]},
)


@pytest.mark.parametrize("body", SIMULATIONS, ids=json.dumps)
def test_the_documented_body_is_the_one_that_is_checked(body: dict[str, Any]) -> None:
    try:
        validate(body, "SimulationCall")
        is_documented = True
    except jsonschema.ValidationError:
        is_documented = False
    assert is_documented == (SIMULATION.violation(body, is_query=False) is None)


@pytest.fixture
def client(settings: Any) -> Client:
    placement_settings(settings, enforce_new_defaults=False)
    return Client()


@pytest.fixture
def host(client: Client) -> ResourceProvider:
    del client
    return grow_providers("h1", consumer_uuid=uuid4())


def get(client: Client, path: str, status: int = 200, **headers: str) -> Any:
    response = client.get(f"{PREFIX}{path}", headers={**ADMIN, **headers})
    assert response.status_code == status, response.content
    operation = document_of("placement")["paths"][f"{PREFIX}{path.partition('?')[0]}"]["get"]
    assert str(status) in operation["responses"]
    return response.json()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query",
    [
        "resources=VCPU:1",
        "resources=VCPU:999",
        "resources=VCPU:1&required=!CUSTOM_GOLD",
        "resources1=VCPU:1&resources2=PCPU:1&group_policy=isolate",
        "resources=VCPU:1&root_required=CUSTOM_GOLD&limit=1",
    ],
)
def test_explanations_are_as_documented(client: Client, host: ResourceProvider, query: str) -> None:
    validate(get(client, f"/explain?{query}"), "Explanation")


@pytest.mark.django_db
@pytest.mark.parametrize("version", ["1.10", "1.29", "1.39"])
def test_simulations_are_as_documented(
    client: Client, host: ResourceProvider, version: str
) -> None:
    taken = {"resource_provider_uuid": str(host.uuid), "resources": {"VCPU": 13}}
    body = {"query": "resources=VCPU:1", "allocations": [taken], "removed_providers": []}
    validate(body, "SimulationCall")
    response = client.post(
        f"{PREFIX}/simulate",
        json.dumps(body),
        content_type="application/json",
        headers={**ADMIN, "OpenStack-API-Version": f"placement {version}"},
    )
    assert response.status_code == 200, response.content
    validate(response.json(), "Simulation")
    assert response.json()["over_capacity"]


@pytest.mark.django_db
def test_lists_are_as_documented(client: Client, host: ResourceProvider) -> None:
    placement = PlacementClient()
    provider = placement.make_provider("p", VCPU=8)
    assert placement.allocate(uuid(), {provider: {"VCPU": 1}}).status == 204
    for path in ("/history", "/history?limit=1", f"/history?provider={provider}"):
        page = get(client, path)
        validate(page, "History")
        assert page["events"]
    for path in ("/providers", "/providers?limit=1", f"/providers?marker={host.uuid}"):
        page = get(client, path)
        validate(page, "ProviderPage")
        assert page["resource_providers"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/explain", {}, 400),
        ("/explain?resources=VCPU:1", {"X-Auth-Token": ""}, 401),
        ("/explain?resources=VCPU:1", {"X-Auth-Token": "nobody"}, 403),
        ("/explain?resources=VCPU:1", {"OpenStack-API-Version": "placement 1.99"}, 406),
        ("/history?marker=x", {}, 400),
        ("/history", {"X-Auth-Token": "nobody"}, 403),
        ("/providers?limit=0", {}, 400),
        ("/providers", {"OpenStack-API-Version": "placement 2.0"}, 406),
    ],
)
def test_errors_are_as_documented(
    client: Client, path: str, headers: dict[str, str], status: int
) -> None:
    validate(get(client, path, status, **headers), "ProblemDetails")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "content_type", "status"),
    [
        ("PUT", "application/json", 405),
        ("POST", "text/plain", 415),
        ("POST", "application/json", 400),
    ],
)
def test_refused_simulations_are_as_documented(
    client: Client, method: str, content_type: str, status: int
) -> None:
    response = client.generic(
        method, f"{PREFIX}/simulate", b"{", content_type=content_type, headers=ADMIN
    )
    assert response.status_code == status
    assert (
        str(status) in document_of("placement")["paths"][f"{PREFIX}/simulate"]["post"]["responses"]
    )
    assert response["Content-Type"] == "application/problem+json"
    validate(response.json(), "ProblemDetails")
