from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import SecretStr

from capacity.models import Reservation, SchedulingDecision
from journal.conf import AccessToken
from tests.api.conftest import Configure
from tests.api.liquid_client import MEMBER, VIEWER
from tests.api.scheduler_client import SCHEDULER, NovaClient
from tests.factories import make_host

pytestmark = pytest.mark.django_db
PATH = "/api/v1/scheduling/explain"


@pytest.fixture
def nova(configure: Configure) -> NovaClient:
    tokens = (
        (SCHEDULER, "cloud_resource_scheduler"),
        (VIEWER, "cloud_resource_viewer"),
        (MEMBER, "member"),
    )
    configure(
        auth="token",
        tokens=tuple(
            AccessToken(token=SecretStr(token), name=role, roles=(role,)) for token, role in tokens
        ),
    )
    make_host("h1")
    make_host("h2", zone="az-b")
    make_host("h3", memory_gib=2)
    return NovaClient()


def ask(nova: NovaClient, *, token: str = SCHEDULER, hosts: Any = None, **changes: Any) -> Any:
    body = nova.body(**changes)
    if hosts is not None:
        body["explain_hosts"] = hosts
    return nova.send("POST", json.dumps(body).encode(), path=PATH, token=token)


def test_each_host_has_the_filter_that_removes_it_and_nothing_is_written(nova: NovaClient) -> None:
    response = ask(nova, availability_zone="az-a", token=VIEWER)
    assert response.status_code == 200, response.content
    answer = response.json()
    removed = {entry["host"]: entry["removed_by"] for entry in answer["hosts"]}
    assert removed == {
        "h1": None,
        "h2": "filter_correct_az",
        "h3": "filter_has_enough_capacity",
    }
    assert answer["target"] == "h1"
    assert not Reservation.objects.exists()
    assert not SchedulingDecision.objects.exists()


def test_named_hosts_are_explained_in_detail(nova: NovaClient) -> None:
    answer = ask(nova, hosts=["h3"], availability_zone="az-b").json()
    assert len(answer["details"]) == 1
    told = json.dumps(answer["details"])
    assert "filter_correct_az" in told
    assert "filter_has_enough_capacity" in told


def test_without_hosts_all_are_considered(nova: NovaClient) -> None:
    answer = ask(nova, offered=()).json()
    assert {entry["host"] for entry in answer["hosts"]} == {"h1", "h2", "h3"}


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"token": MEMBER}, 403, "forbidden"),
        ({"pipeline": "unknown"}, 404, "unknown_pipeline"),
        ({"hosts": [1]}, 400, "invalid_call"),
        ({"hosts": ["h1"] * 51}, 400, "invalid_call"),
        ({"weights": {}}, 400, "invalid_call"),
        ({"options": {"max_candidates": -1}}, 400, "invalid_call"),
    ],
)
def test_errors_are_problem_details(
    nova: NovaClient, changes: dict[str, Any], status: int, code: str
) -> None:
    response = ask(nova, **changes)
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["request_id"] == response["X-Request-ID"]


def test_a_flavor_without_size_is_a_problem(nova: NovaClient) -> None:
    body = nova.body()
    body["spec"]["nova_object.data"]["flavor"]["nova_object.data"]["vcpus"] = 0
    response = nova.send("POST", json.dumps(body).encode(), path=PATH)
    assert response.json()["code"] == "unplaceable_request"
