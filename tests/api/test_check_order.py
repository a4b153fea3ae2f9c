"""The order of checks of each endpoint (spec liquid, 2.4): of two faults the earlier answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest

from capacity.models import FlavorGroup, FlavorGroupMember, FlavorGroupSnapshot
from tests.api.conftest import Configure
from tests.api.liquid_client import ADMIN, MEMBER, PROJECT, LiquidClient, assert_text
from tests.factories import make_group

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_refresh")]


@dataclass
class Asked:
    """A request that every check lets through, until faults are put in."""

    method: str
    path: str
    body: Any
    token: str | None = ADMIN
    switched_off: dict[str, bool] = field(default_factory=dict)
    is_ready: bool = True


Fault = tuple[str, Callable[[Asked], None], int, str]


def change(**fields: Any) -> Callable[[Asked], None]:
    def apply(asked: Asked) -> None:
        for name, new in fields.items():
            setattr(asked, name, new)

    return apply


def into_body(**fields: Any) -> Callable[[Asked], None]:
    def apply(asked: Asked) -> None:
        if isinstance(asked.body, dict):
            asked.body = {**asked.body, **fields}

    return apply


def switched_off(name: str) -> Fault:
    return "disabled", change(switched_off={name: False}), 503, "is switched off"


NO_TOKEN: Fault = ("no token", change(token=None), 401, "Unauthorized")
FORBIDDEN: Fault = ("forbidden", change(token=MEMBER), 403, "Forbidden")
METHOD: Fault = ("method", change(method="DELETE"), 405, "")
BODY: Fault = ("body", change(body=b"{invalid"), 400, "body")
NOT_READY: Fault = ("not ready", change(is_ready=False), 503, "flavor groups")
ENDPOINTS: dict[str, tuple[Asked, list[Fault]]] = {
    "info": (Asked("GET", "v1/info", None), [NO_TOKEN, FORBIDDEN, METHOD, NOT_READY]),
    "report-capacity": (
        Asked("POST", "v1/report-capacity", {}),
        [NO_TOKEN, FORBIDDEN, switched_off("enable_report_capacity"), METHOD, NOT_READY],
    ),
    "report-usage": (
        Asked("POST", f"v1/projects/{PROJECT}/report-usage", {}),
        [
            NO_TOKEN,
            FORBIDDEN,
            switched_off("enable_report_usage"),
            METHOD,
            ("project id", change(path="v1/projects//report-usage"), 400, "project id"),
            BODY,
            NOT_READY,
        ],
    ),
    "quota": (
        Asked("PUT", f"v1/projects/{PROJECT}/quota", {"resources": {}}),
        [
            NO_TOKEN,
            FORBIDDEN,
            METHOD,
            switched_off("enable_quota"),
            ("project id", change(path="v1/projects//quota"), 400, "project id"),
            BODY,
            ("metadata", into_body(projectMetadata={"uuid": "other"}), 400, "projectMetadata"),
            NOT_READY,
        ],
    ),
    "change-commitments": (
        Asked("POST", "v1/change-commitments", {"az": "az-a", "infoVersion": None}),
        [
            NO_TOKEN,
            FORBIDDEN,
            switched_off("enable_change_commitments"),
            METHOD,
            BODY,
            ("zone", into_body(az=""), 400, "az"),
            ("version", into_body(infoVersion=9999), 409, "9999"),
        ],
    ),
}


def each_and_pairs() -> Iterator[Any]:
    for endpoint, (_, faults) in ENDPOINTS.items():
        for fault in faults:
            yield pytest.param(endpoint, fault, None, id=f"{endpoint}: {fault[0]}")
        for first, second in combinations(faults, 2):
            if {first[0], second[0]} != {"no token", "forbidden"}:  # a request has one token
                yield pytest.param(
                    endpoint, first, second, id=f"{endpoint}: {first[0]} before {second[0]}"
                )


@pytest.mark.parametrize(("endpoint", "first", "second"), list(each_and_pairs()))
def test_earlier_check_answers(
    liquid: LiquidClient, configure: Configure, endpoint: str, first: Fault, second: Fault | None
) -> None:
    make_group()
    template, _ = ENDPOINTS[endpoint]
    body = template.body
    if endpoint == "change-commitments":
        body = {**body, "infoVersion": liquid.get_info()["version"]}
    asked = Asked(template.method, template.path, body)
    for fault in (second, first):
        if fault is not None:
            fault[1](asked)
    if asked.switched_off:
        configure(liquid=asked.switched_off)
    if not asked.is_ready:
        FlavorGroupSnapshot.objects.all().delete()
        FlavorGroupMember.objects.all().delete()
        FlavorGroup.objects.all().delete()
    response = liquid.send(
        asked.method, asked.path, asked.body, token=asked.token, X_Request_ID="order-1"
    )
    _, _, status, words = first
    assert response["X-Request-ID"] == "order-1"
    if status == 405:
        assert response.status_code == 405
    else:
        assert_text(response, status, words)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_request_without_faults_is_let_through(liquid: LiquidClient, endpoint: str) -> None:
    make_group()
    asked, _ = ENDPOINTS[endpoint]
    body = asked.body
    if endpoint == "change-commitments":
        body = {**body, "infoVersion": liquid.get_info()["version"]}
    response = liquid.send(asked.method, asked.path, body, X_Request_ID="order-2")
    assert response.status_code == (204 if endpoint == "quota" else 200)
    assert response["X-Request-ID"] == "order-2"


def test_change_is_not_ready_whatever_the_version(liquid: LiquidClient) -> None:
    """The version is not compared while flavor groups are not ready (11)."""
    assert_text(
        liquid.send("POST", liquid.change, {"az": "az-a", "infoVersion": 9999}),
        503,
        "flavor groups",
    )
    assert_text(liquid.send("POST", liquid.change, {"az": "", "infoVersion": 9999}), 400, "az")
