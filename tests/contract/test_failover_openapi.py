"""The document of the failover API against the server (issue 6; spec failover, 17)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django.conf import settings as django_settings
from django.test import Client
from django.urls import get_resolver
from django.utils import timezone
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError as BrokerError

from capacity.nova.pipelines import ensure_shipped_pipelines
from config import urls
from core.api import ProblemView
from failover.drill_models import ShadowPlan
from failover.services.drills import drill_zone
from failover.services.orders import start_rebalancing
from hosts.models import Instance
from tests.contract.test_liquid_openapi import as_template, patterns_below
from tests.examples import few
from tests.factories import make_commitment, make_domain, make_group, make_project, make_slot
from tests.failover.drill_rows import ZoneRows, make_zone
from tests.openapi_documents import document_of, validator

PREFIX = "/api/v1/failover"
PATHS = {
    "simulations": "post",
    "drain-check": "post",
    "drills": "get",
    "shadow-plans": "get",
    "rebalances": "post",
    "replans": "post",
}
POSTS = [name for name, method in PATHS.items() if method == "post"]
GETS = [name for name, method in PATHS.items() if method == "get"]


def validate(content: Any, schema: str) -> None:
    """Check content against a schema of the document."""
    validator("failover", schema).validate(content)


@pytest.fixture(autouse=True)
def _open(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.HEADROOM = django_settings.HEADROOM.model_copy(update={"auth": "noauth"})
    monkeypatch.setattr("failover.api.views.start_rebalancing", lambda zone, steps: None)


@pytest.fixture
def zone(db: None) -> ZoneRows:
    ensure_shipped_pipelines(request_id="test")
    make_domain()
    make_project()
    make_group()
    rows = make_zone("rA@3{a@1,b@2}, rB@4{a@1}, rC@5{b@2}", vms={"c": "1"}, hosts=("6", "7"))
    make_slot(make_commitment("commitment-1"), rows.hosts["1"], memory_gib=4, vcpus=1)
    return rows


def post(name: str, body: Any) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = Client(raise_request_exception=False)
    return client.generic("POST", f"{PREFIX}/{name}", content, "application/json")


def test_every_url_is_documented_with_its_method_and_nothing_else() -> None:
    documented = {path: set(item) for path, item in document_of("failover")["paths"].items()}
    served = {}
    for route, pattern in patterns_below(get_resolver(urls.__name__)):
        view = getattr(pattern.callback, "view_class", None)
        path = as_template(route)
        if isinstance(view, type) and issubclass(view, ProblemView) and path.startswith(PREFIX):
            served[path] = set(view.http_method_names)
    assert documented == served
    assert served == {f"{PREFIX}/{name}": {method} for name, method in PATHS.items()}


@pytest.mark.parametrize(
    ("name", "body", "request_schema", "answer_schema", "status"),
    [
        pytest.param(
            "simulations",
            {"failed": {"hosts": ["h1", "h2", "h3"]}, "policy": "matching", "explain": True},
            "SimulationCall",
            "Simulation",
            200,
            id="simulation",
        ),
        pytest.param(
            "simulations",
            {"failed": None, "policy": None},
            "SimulationCall",
            "Simulation",
            200,
            id="nothing",
        ),
        pytest.param(
            "drain-check", {"hosts": ["h1", "h3"]}, "DrainCall", "DrainAnswer", 200, id="drain"
        ),
        pytest.param(
            "drain-check",
            {"hosts": [f"h{number}" for number in range(1, 8)]},
            "DrainCall",
            "DrainAnswer",
            200,
            id="drain of everything",
        ),
        pytest.param(
            "rebalances", {"zone": "az-a"}, "RebalanceCall", "RebalancePreview", 200, id="preview"
        ),
        pytest.param(
            "rebalances",
            {"zone": "az-a", "apply": True, "steps": 7},
            "RebalanceCall",
            "RebalanceStarted",
            202,
            id="start",
        ),
        pytest.param("replans", {"vm": "nobody"}, "ReplanCall", "Replan", 200, id="unknown VM"),
    ],
)
def test_calls_and_answers_are_as_documented(  # noqa: PLR0917 - columns of the table
    zone: ZoneRows, name: str, body: Any, request_schema: str, answer_schema: str, status: int
) -> None:
    validate(body, request_schema)
    response = post(name, body)
    assert response.status_code == status, response.content
    validate(response.json(), answer_schema)


@pytest.mark.django_db
def test_preview_of_a_plan_that_saves_enough_says_what_would_be_done() -> None:
    ensure_shipped_pipelines(request_id="test")
    make_domain()
    make_project()
    make_zone("r1@5{a@1}, r2@6{b@2}, r3@7{c@3}", required=1)
    answer = post("rebalances", {"zone": "az-a"}).json()
    validate(answer, "RebalancePreview")
    assert answer["shadow_plan"]["state"] == "proposed"
    would = answer["rebalancing"]
    assert would["reserved_after_bytes"] < would["reserved_memory_bytes"]
    (listed,) = Client().get(f"{PREFIX}/shadow-plans").json()["shadow_plans"]
    assert listed == answer["shadow_plan"]


def test_rebalancing_that_no_worker_hears_of_is_not_started(
    zone: ZoneRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BrokerError

    monkeypatch.setattr("failover.api.views.start_rebalancing", start_rebalancing)
    monkeypatch.setattr(Celery, "send_task", refuse)
    response = post("rebalances", {"zone": "az-a", "apply": True})
    assert (response.status_code, response.json()["code"]) == (503, "broker_unavailable")


def test_replan_shows_and_then_does(zone: ZoneRows) -> None:
    uuid = zone.uuid("c")
    would = post("replans", {"vm": uuid}).json()
    validate(would, "Replan")
    assert (would["outcome"], would["joined"]) == ("covered", 2)
    done = post("replans", {"vm": uuid, "apply": True}).json()
    assert (done["outcome"], done["joined"]) == ("covered", 2)
    assert post("replans", {"vm": uuid, "apply": True}).json()["joined"] == 0


def test_lists_are_as_documented(zone: ZoneRows) -> None:
    drill_zone("az-a", request_id="test", now=timezone.now())
    now = timezone.now()
    for age, state in ((2, "obsolete"), (1, "done")):
        ShadowPlan.objects.create(
            zone="az-a",
            state=state,
            computed_at=now - timedelta(days=age),
            reserved_memory_bytes=10,
            shadow_memory_bytes=5,
        )
    for asked, is_known in (
        ("", True),
        ("?zone=az-a", True),
        ("?zone=nowhere", False),
        ("?zone=", False),
    ):
        drills = Client().get(f"{PREFIX}/drills{asked}").json()
        plans = Client().get(f"{PREFIX}/shadow-plans{asked}").json()
        validate(drills, "DrillList")
        validate(plans, "ShadowPlanList")
        scopes = [row["scope"] for row in drills["drills"]]
        assert scopes == (["host", "pair", "rack"] if is_known else []), asked
        states = [row["state"] for row in plans["shadow_plans"]]
        assert states == (["done"] if is_known else []), asked


@pytest.mark.django_db
@pytest.mark.parametrize("name", PATHS)
def test_other_methods_are_problems(name: str) -> None:
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - {PATHS[name].upper()}:
        response = Client().generic(method, f"{PREFIX}/{name}", b"{}", "application/json")
        assert response.status_code == 405, method
        validate(response.json(), "ProblemDetails")


@pytest.mark.django_db
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    ("token", "status"),
    [
        pytest.param(None, 401, id="nobody"),
        pytest.param("reader", 200, id="a reader"),
        pytest.param("stranger", 403, id="without a role"),
    ],
)
def test_roles(settings: Any, name: str, token: str | None, status: int) -> None:
    from pydantic import SecretStr  # noqa: PLC0415

    from journal.conf import AccessToken  # noqa: PLC0415

    settings.HEADROOM = django_settings.HEADROOM.model_copy(
        update={
            "auth": "token",
            "tokens": [
                AccessToken(
                    name="reader",
                    token=SecretStr("reader" * 6),
                    roles=("cloud_resource_viewer",),
                ),
                AccessToken(name="stranger", token=SecretStr("stranger" * 6), roles=("member",)),
            ],
        }
    )
    headers = {} if token is None else {"X-Auth-Token": token * 6}
    body = b'{"hosts": [], "zone": "x", "vm": ""}'
    method = PATHS[name].upper()
    client = Client(raise_request_exception=False)
    response = client.generic(
        method, f"{PREFIX}/{name}", body if method == "POST" else b"", headers=headers
    )
    is_write = name in {"rebalances", "replans"}
    expected = 403 if status == 200 and is_write else status
    if expected == 200 and name == "drain-check":
        expected = 400
    assert response.status_code == expected, response.content
    if expected != 200:
        validate(response.json(), "ProblemDetails")


TEXTS = st.text(max_size=6) | st.sampled_from(
    [
        "h1",
        "h9",
        "az-a",
        "bb1",
        "matching",
        "private",
        "\x00",
        "a\x00b",
        "x" * 256,
        "x" * 70_000,
        "\ud83d",
        "\u202e",
        "'; DROP TABLE hosts_host; --",
        "%s",
        "{}",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 2**64, -(2**70), 10**400, 1.5, 1e400, -0.0])
    | st.floats()
    | TEXTS
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
NAMES = st.lists(TEXTS | LEAVES, max_size=4) | JSON
CALLS = {
    "simulations": st.fixed_dictionaries(
        {},
        optional={
            "failed": st.fixed_dictionaries(
                {}, optional={"hosts": NAMES, "racks": NAMES, "azs": NAMES}
            )
            | JSON,
            "policy": JSON,
            "explain": JSON,
        },
    ),
    "drain-check": st.fixed_dictionaries({}, optional={"hosts": NAMES}),
    "rebalances": st.fixed_dictionaries({}, optional={"zone": JSON, "apply": JSON, "steps": JSON}),
    "replans": st.fixed_dictionaries({}, optional={"vm": JSON, "apply": JSON}),
}
KNOWN = {200, 202, 400}


def encoded(body: Any) -> bytes:
    """Return JSON as a careless client writes it: NaN, huge numbers and half surrogates as is."""
    return json.dumps(body).encode()


RAW_BODIES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"NaN",
    b'{"hosts": ["\\ud83d"]}',
    b'{"hosts": ["\xff\xfe"]}',
    b"\xef\xbb\xbf{}",
    b'{"a":' * 1200 + b"{}" + b"}" * 1200,
    b"[" * 5000,
    b'{"hosts": ["a"], "hosts": 5}',
    b'{"steps": 1e999, "zone": "az-a"}',
    "{}".encode("utf-16"),
)
ODD_QUERIES = ("zone=%00", "zone=" + "x" * 300, "zone=%ff%fe", "zone=a&zone=b", "zone=%ED%A0%BD")


def check(response: Any, asked: object) -> None:
    assert response.status_code in KNOWN, (asked, response.status_code, response.content)
    assert response.headers["X-Request-ID"], asked
    if response.status_code == 400:
        validate(response.json(), "ProblemDetails")


@pytest.mark.parametrize("name", POSTS)
def test_no_call_is_a_server_error(zone: ZoneRows, name: str) -> None:
    before = Instance.objects.count()

    @few(50, suppress_health_check=list(HealthCheck), database=None)
    @given(body=CALLS[name] | JSON)
    @example(body={"hosts": ["\x00"]})
    @example(body={"hosts": ["h1", "h1"], "zone": "az-a", "vm": "\ud83d", "steps": 2**64})
    def ask(body: Any) -> None:
        check(post(name, encoded(body)), body)

    ask()
    for raw in RAW_BODIES:
        check(post(name, raw), raw)
    assert Instance.objects.count() == before


@pytest.mark.parametrize("name", GETS)
def test_no_query_is_a_server_error(zone: ZoneRows, name: str) -> None:
    for asked in ODD_QUERIES:
        check(Client(raise_request_exception=False).get(f"{PREFIX}/{name}?{asked}"), asked)
