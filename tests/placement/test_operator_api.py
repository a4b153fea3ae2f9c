"""``/api/v1/placement``: explanations and what-if (spec placement, 12)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import pytest
from django.test import Client

from placement.models import Allocation, ResourceProvider
from tests.placement.client import placement_settings
from tests.placement.rows import allocate, make_provider

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _open_server(settings: Any) -> None:
    placement_settings(settings)


@pytest.fixture
def hosts() -> tuple[ResourceProvider, ResourceProvider]:
    small = make_provider("small", inventories={"VCPU": 8})
    large = make_provider("large", inventories={"VCPU": 16}, traits=("CUSTOM_GOLD",))
    allocate(uuid4(), {large: {"VCPU": 4}})
    return small, large


def explain(query: str, **headers: str) -> Any:
    headers = {"X-Auth-Token": "admin", **headers}
    return Client().get(f"/api/v1/placement/explain?{query}", headers=headers)


def simulate(body: object) -> Any:
    return Client().post(
        "/api/v1/placement/simulate",
        orjson.dumps(body),
        content_type="application/json",
        headers={"X-Auth-Token": "admin"},
    )


def test_explanation_counts_what_each_constraint_removes(hosts: Any) -> None:
    small, large = hosts
    response = explain("resources=VCPU:10&required=!CUSTOM_GOLD")
    assert response.status_code == 200
    answer = response.json()
    assert answer["candidates"] == 0
    assert answer["groups"] == [
        {
            "suffix": "",
            "resources": {"VCPU": 10},
            "steps": [
                {
                    "constraint": "inventory",
                    "asked": "VCPU",
                    "removed_providers": 0,
                    "left_providers": 2,
                    "left_trees": 2,
                },
                {
                    "constraint": "room",
                    "asked": "VCPU:10",
                    "removed_providers": 1,
                    "left_providers": 1,
                    "left_trees": 1,
                },
                {
                    "constraint": "forbidden",
                    "asked": "!CUSTOM_GOLD",
                    "removed_providers": 1,
                    "left_providers": 0,
                    "left_trees": 0,
                },
            ],
        }
    ]
    assert [remedy["changes"] for remedy in answer["remedies"]] == [
        ["leave out required=!CUSTOM_GOLD"],
        ["ask for VCPU:8 instead of VCPU:10 in the unsuffixed group"],
    ]
    assert answer["nearest_trees"] == []
    assert {str(small.uuid), str(large.uuid)} == {
        tree["root_provider_uuid"] for tree in explain("resources=VCPU:1").json()["nearest_trees"]
    }


@pytest.mark.parametrize(
    ("query", "headers", "status", "told"),
    [
        ("", {}, 400, "There must be at least one resources"),
        ("resources=VCPU:1&required=CUSTOM_NONE", {}, 400, "No such trait(s): CUSTOM_NONE."),
        (
            "resources=VCPU:1&required=in:CUSTOM_GOLD",
            {"OpenStack-API-Version": "placement 1.38"},
            400,
            "only supported since microversion 1.39",
        ),
        ("resources=VCPU:1", {"X-Auth-Token": "someone"}, 403, "placement:allocation_candidates"),
        ("resources=VCPU:1", {"X-Auth-Token": ""}, 401, "requires authentication"),
    ],
)
def test_errors_are_problem_details(
    hosts: Any, query: str, headers: dict[str, str], status: int, told: str
) -> None:
    assert hosts
    response = explain(query, **headers)
    assert response.status_code == status
    assert response["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert told in problem["detail"]
    assert problem["status"] == status
    assert problem["code"]
    assert problem["request_id"]


def test_simulation_supposes_allocations_and_writes_nothing(hosts: Any) -> None:
    _, large = hosts
    body = {
        "query": "resources=VCPU:8",
        "allocations": [
            {"resource_provider_uuid": str(large.uuid), "resources": {"VCPU": 3}},
            {"resource_provider_uuid": str(large.uuid), "resources": {"VCPU": 2}},
        ],
    }
    answer = simulate(body).json()
    assert (answer["candidates"], answer["candidates_now"]) == (1, 2)
    (request,) = answer["allocation_requests"]
    assert str(large.uuid) not in request["allocations"]
    assert answer["over_capacity"] == []
    assert Allocation.objects.count() == 1


def test_simulation_supposes_amounts_that_are_given_back(hosts: Any) -> None:
    _, large = hosts
    given_back = {"resource_provider_uuid": str(large.uuid), "resources": {"VCPU": -4}}
    answer = simulate({"query": "resources=VCPU:16", "allocations": [given_back]}).json()
    assert (answer["candidates"], answer["candidates_now"]) == (1, 0)


def test_simulation_tells_what_would_be_over_capacity(hosts: Any) -> None:
    small, _ = hosts
    taken = {"resource_provider_uuid": str(small.uuid).upper(), "resources": {"VCPU": 9}}
    answer = simulate({"query": "resources=VCPU:1", "allocations": [taken]}).json()
    assert answer["over_capacity"] == [
        {"provider": str(small.uuid), "resource_class": "VCPU", "capacity": 8, "used": 9}
    ]
    assert answer["candidates"] == 1


def test_simulation_supposes_that_trees_are_gone(hosts: Any) -> None:
    _, large = hosts
    child = make_provider("card", parent=large, inventories={"SRIOV_NET_VF": 8})
    body = {"query": "resources=VCPU:1", "removed_providers": [str(child.uuid)]}
    answer = simulate(body).json()
    assert (answer["candidates"], answer["candidates_now"]) == (1, 2)
    assert str(large.uuid) not in answer["provider_summaries"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "'query' is a required property"),
        ({"query": "resources=VCPU:0"}, "requires amount >= 1"),
        (
            {"query": "resources=VCPU:1", "removed_providers": [str(uuid4())]},
            "No resource provider with uuid",
        ),
        ({"query": "resources=VCPU:1", "removed_providers": ["x"]}, "is not a 'uuid'"),
    ],
)
def test_simulation_of_nonsense_is_refused(hosts: Any, body: object, told: str) -> None:
    assert hosts
    response = simulate(body)
    assert response.status_code == 400
    assert told in response.json()["detail"]


def test_simulation_of_a_class_that_a_provider_has_not_is_refused(hosts: Any) -> None:
    small, _ = hosts
    taken = {"resource_provider_uuid": str(small.uuid), "resources": {"DISK_GB": 9}}
    response = simulate({"query": "resources=VCPU:1", "allocations": [taken]})
    assert response.status_code == 400
    assert "No inventory of class DISK_GB" in response.json()["detail"]
