"""The document of our own API about commitments says what is served, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import get_resolver

from capacity.models import Reservation
from config import urls
from console.api import urls as lists
from tests.api.conftest import configure, liquid  # noqa: F401 - fixtures of the API tests
from tests.api.liquid_client import ADMIN, MEMBER, LiquidClient
from tests.api.test_what_if import (
    CORES,
    EVERY_EDIT,
    URL,
    A,
    B,
    ask,
    batch,
    cloud,  # noqa: F401 - fixture
    commit,
)
from tests.contract.test_liquid_openapi import as_template, patterns_below
from tests.factories import make_vm
from tests.openapi_documents import document_of, validator

PREFIXES = ("/api/v1/commitments", "/api/v1/explanations")
EXPLANATION = "/api/v1/explanations/commitments/{commitment_uuid}"
FOCUS = "/api/v1/commitments/focus"


def validate(content: Any, schema: str) -> None:
    """Check content against a schema of the document."""
    validator("commitments", schema).validate(content)


def test_every_url_below_the_prefix_is_documented_with_its_methods_and_nothing_else() -> None:
    served = {
        as_template(route): set(pattern.callback.view_class.http_method_names)  # type: ignore[attr-defined]  # a View's
        for route, pattern in patterns_below(get_resolver(urls.__name__))
        if as_template(route).startswith(PREFIXES) and pattern not in lists.urlpatterns
    }
    assert {path: set(item) for path, item in document_of("commitments")["paths"].items()} == served
    assert set(served) == {URL, EXPLANATION, FOCUS}


def deleting(uuid: str) -> dict[str, Any]:
    body = batch(uuid, 10, project="beta")
    (changeset,) = body["byProject"]["beta"]["byResource"].values()
    changeset["commitments"][0] |= {"oldStatus": "confirmed", "newStatus": None}
    return body


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("question", "outcome"),
    [
        pytest.param({"batch": batch(A, 5)}, "accepted", id="accepted"),
        pytest.param({"batch": batch(A, 15)}, "rejected", id="refused"),
        pytest.param({"batch": batch(A, 500, resource=CORES)}, "rejected", id="cores"),
        pytest.param({"batch": deleting(B)}, "deleted", id="deleted"),
        pytest.param({"batch": batch(A, 15), "edit": EVERY_EDIT}, "accepted", id="every edit"),
        pytest.param(
            {"batch": batch(A, 15), "edit": {"hosts_failed": ["h1"]}}, "rejected", id="unplaced"
        ),
        pytest.param(
            {"batch": batch(A, 15), "edit": None, "at": None}, "rejected", id="null is left out"
        ),
    ],
)
def test_questions_and_answers_are_as_documented(
    cloud: LiquidClient,  # noqa: F811
    question: dict[str, Any],
    outcome: str,
) -> None:
    commit(cloud, B, 10, "2098-01-01T00:00:00Z")
    slot = Reservation.objects.select_related("target_host").order_by("pk")[0]
    assert slot.target_host is not None
    make_vm(host=slot.target_host, slot=slot, flavor_name="small", memory_gib=1, vcpus=1)
    validate(question, "Question")
    response = ask(question)
    assert response.status_code == 200, response.content
    validate(response.json(), "Answer")
    assert [one["outcome"] for one in response.json()["decisions"]] == [outcome]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "body", "token", "status"),
    [
        ("POST", b"{", "nobody-knows-this-one", 401),
        ("POST", b"{", MEMBER, 403),
        ("POST", b"{", ADMIN, 400),
        ("GET", b"", ADMIN, 405),
        ("POST", b" " * (65 << 20), ADMIN, 413),
        ("POST", {"batch": batch(A, 1)}, ADMIN, 503),
    ],
)
def test_errors_are_as_documented(
    liquid: LiquidClient,  # noqa: F811
    method: str,
    body: Any,
    token: str,
    status: int,
) -> None:
    del liquid
    response = ask(body, token=token, method=method)
    assert response.status_code == status, response.content
    assert str(status) in document_of("commitments")["paths"][URL]["post"]["responses"]
    assert response["Content-Type"] == "application/problem+json"
    validate(response.json(), "ProblemDetails")


@pytest.mark.django_db
def test_explanations_are_as_documented(cloud: LiquidClient) -> None:  # noqa: F811
    commit(cloud, B, 10, "2098-01-01T00:00:00Z")
    slot = Reservation.objects.select_related("target_host").order_by("pk")[0]
    assert slot.target_host is not None
    make_vm(host=slot.target_host, slot=slot, flavor_name="small", memory_gib=1, vcpus=1)
    path = EXPLANATION.format(commitment_uuid=B)
    answer = Client(headers={"X-Auth-Token": ADMIN}).get(path)
    assert answer.status_code == 200, answer.content
    validate(answer.json(), "Explanation")
    assert answer.json()["slots"][0]["vms"]
    assert answer.json()["events"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "token", "status"),
    [
        ("get", "nobody-knows-this-one", 401),
        ("get", MEMBER, 403),
        ("get", ADMIN, 404),
        ("post", ADMIN, 405),
    ],
)
def test_errors_of_explanations_are_as_documented(
    liquid: LiquidClient,  # noqa: F811
    method: str,
    token: str,
    status: int,
) -> None:
    del liquid
    path = EXPLANATION.format(commitment_uuid=A)
    answer = getattr(Client(headers={"X-Auth-Token": token}), method)(path)
    assert answer.status_code == status, answer.content
    assert str(status) in document_of("commitments")["paths"][EXPLANATION]["get"]["responses"]
    assert answer["Content-Type"] == "application/problem+json"
    validate(answer.json(), "ProblemDetails")
