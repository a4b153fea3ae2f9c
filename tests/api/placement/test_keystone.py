"""The Placement API behind a real Keystone (spec placement, 7.1, 7.2, 7.4)."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from oslo_policy import policy as oslo
from pydantic import SecretStr

from placement import policy
from tests.api.conftest import Configure
from tests.api.liquid_client import LiquidClient
from tests.peers.keystone import Keystone, Person
from tests.placement.client import Answer, PlacementClient, placement_settings, uuid

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("behind_keystone")]

REQUESTS = ("read", "write", "own usages", "others' usages", "reshaper")
EXPECTED = {
    "service": (200, 201, 200, 200, 400),
    "admin": (200, 201, 200, 200, 403),
    "member": (403, 403, 200, 403, 403),
    "reader": (403, 403, 200, 403, 403),
    "reader of another project": (403, 403, 403, 403, 403),
    "other role": (403, 403, 403, 403, 403),
    "admin of the system": (403, 403, 403, 403, 403),
    "reader of the system": (403, 403, 403, 403, 403),
    "admin of a domain": (403, 403, 403, 403, 403),
    "unscoped": (403, 403, 403, 403, 403),
}
OPERATORS = {
    "explain": "placement:allocation_candidates:list",
    "simulate": "placement:allocation_candidates:list",
    "providers": "placement:resource_providers:list",
    "history": "placement:resource_providers:allocations:list",
}
CLAIMS = {
    "X_Roles": "admin,service",
    "X_Role": "admin",
    "X_User_Id": "admin",
    "X_Project_Id": "claimed",
    "X_Tenant_Id": "claimed",
    "X_Identity_Status": "Confirmed",
    "X_Service_Roles": "service",
    "X_Is_Admin_Project": "True",
}
every_request = pytest.mark.parametrize("request_name", REQUESTS)
every_operator_path = pytest.mark.parametrize("path", OPERATORS)


@pytest.fixture
def rules(configure: Configure, settings: Any, tmp_path: Path) -> Callable[[str], None]:
    """Write a policy file of Placement's, and use it."""

    def write(text: str) -> None:
        path = tmp_path / f"{uuids.uuid4().hex}.yaml"
        path.write_text(text, encoding="utf-8")
        placement = settings.HEADROOM.placement.model_copy(update={"policy_file": str(path)})
        configure(placement=placement)

    return write


def granted(keystone: Keystone, target: str, person: Person, role_name: str) -> None:
    role = keystone.create("role", role_name)
    keystone.call("PUT", f"{target}/users/{person.user_id}/roles/{role}")


def token_of(keystone: Keystone, kind: str) -> str:
    """Return a token of somebody; whose project is ``operations`` but for the reader elsewhere."""
    if kind == "reader of another project":
        return keystone.token(keystone.person("placement-tenant", "reader", project="customer"))
    if kind in {"service", "admin", "member", "reader"}:
        return keystone.token(keystone.person(f"placement-{kind}", kind))
    if kind == "other role":
        return keystone.token(keystone.person("placement-viewer", "cloud_resource_viewer"))
    if kind == "unscoped":
        person = keystone.person("placement-admin", "admin")
        return keystone.new_token(person, scope={"unscoped": {}})
    if kind == "admin of a domain":
        person = keystone.person("placement-admin", "admin")
        granted(keystone, "domains/default", person, "admin")
        return keystone.new_token(person, scope={"domain": {"id": "default"}})
    role = kind.partition(" ")[0]
    person = keystone.person(f"placement-{role}", role)
    granted(keystone, "system", person, role)
    return keystone.new_token(person, scope={"system": {"all": True}})


def send(keystone: Keystone, request_name: str, token: str, **headers: str) -> Answer:
    client = PlacementClient(token=token)
    own = keystone.create("project", "operations", domain_id="default")
    if request_name == "read":
        return client.get("/traits", **headers)
    if request_name == "write":
        return client.put(f"/traits/CUSTOM_{uuids.uuid4().hex.upper()}", **headers)
    if request_name == "reshaper":
        return client.post("/reshaper", {}, **headers)
    project = own if request_name == "own usages" else "elsewhere"
    return client.get(f"/usages?project_id={project}", **headers)


def ask_operator(path: str, token: str | None) -> Any:
    headers = {"X-Auth-Token": token} if token else {}
    url = f"/api/v1/placement/{path}"
    if path == "simulate":
        body = b'{"query": "resources=VCPU:1"}'
        return Client().post(url, body, content_type="application/json", headers=headers)
    query = "?resources=VCPU:1" if path == "explain" else ""
    return Client().get(url + query, headers=headers)


def assert_unauthorized(answer: Answer, keystone: Keystone) -> None:
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == f'Keystone uri="{keystone.url}"'
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "error": {
            "code": 401,
            "title": "Unauthorized",
            "message": "The request you have made requires authentication.",
        }
    }


def assert_unavailable(answer: Answer) -> None:
    assert answer.status == 503
    assert "www-authenticate" not in answer.headers
    error = answer.error
    assert error["request_id"] == answer.headers["x-openstack-request-id"]
    assert (error["status"], error["title"]) == (503, "Service Unavailable")
    assert "Keystone cannot be asked" in error["detail"]


@pytest.mark.parametrize(
    ("kind", "request_name", "status"),
    [
        pytest.param(kind, name, status, id=f"{kind}: {name}")
        for kind, statuses in EXPECTED.items()
        for name, status in zip(REQUESTS, statuses, strict=True)
    ],
)
def test_secure_policy(keystone: Keystone, kind: str, request_name: str, status: int) -> None:
    answer = send(keystone, request_name, token_of(keystone, kind))
    assert answer.status == status, answer.content
    if status == 403:
        assert "Policy does not allow placement:" in answer.error["detail"]


@pytest.mark.parametrize("kind", ["admin", "admin of the system", "admin of a domain", "member"])
def test_legacy_policy_lets_project_admins_reshape(
    keystone: Keystone, configure: Configure, settings: Any, kind: str
) -> None:
    legacy = settings.HEADROOM.placement.model_copy(update={"enforce_new_defaults": False})
    configure(placement=legacy)
    answer = send(keystone, "reshaper", token_of(keystone, kind))
    assert answer.status == (400 if kind == "admin" else 403)


@every_request
@pytest.mark.parametrize(
    "token", ["", "nonsense", "5f0d7a1be9c24d35a1c7fd2f9a3b6e84", "gAAAAABm" + "x" * 200]
)
def test_a_missing_or_unknown_token_is_unauthorized(
    keystone: Keystone, request_name: str, token: str
) -> None:
    assert_unauthorized(send(keystone, request_name, token), keystone)


@every_request
def test_an_expired_token_is_unauthorized(keystone: Keystone, request_name: str) -> None:
    expired = keystone.aged(token_of(keystone, "service"), 7200)
    assert_unauthorized(send(keystone, request_name, expired), keystone)


@pytest.mark.usefixtures("forgetful")
def test_a_revoked_token_is_unauthorized(keystone: Keystone) -> None:
    token = keystone.new_token(keystone.person("placement-service", "service"))
    assert send(keystone, "read", token).status == 200
    keystone.revoke(token)
    for name in REQUESTS:
        assert_unauthorized(send(keystone, name, token), keystone)


def test_an_expired_token_passes_when_a_service_vouches_for_it(keystone: Keystone) -> None:
    service = token_of(keystone, "service")
    expired = keystone.aged(token_of(keystone, "admin"), 7200)
    assert send(keystone, "read", expired, X_Service_Token=service).status == 200
    member = token_of(keystone, "member")
    assert_unauthorized(send(keystone, "read", expired, X_Service_Token=member), keystone)


def test_with_keystone_down_a_known_token_passes_and_others_get_503(keystone: Keystone) -> None:
    known = token_of(keystone, "service")
    new = keystone.new_token(keystone.person("placement-service", "service"))
    assert send(keystone, "read", known).status == 200
    with keystone.stopped():
        for name, status in zip(REQUESTS, EXPECTED["service"], strict=True):
            assert send(keystone, name, known).status == status
            assert_unavailable(send(keystone, name, new))
            assert_unauthorized(send(keystone, name, ""), keystone)
        for path in OPERATORS:
            refusal = ask_operator(path, new)
            assert refusal.status_code == 503
            assert refusal["Content-Type"] == "application/problem+json"
        assert PlacementClient(token=new).get("/").status == 200
    assert send(keystone, "read", new).status == 200


def test_a_wrong_login_of_ours_is_our_failure_not_the_callers(
    keystone: Keystone, configure: Configure
) -> None:
    configure(keystone=keystone.settings(password=SecretStr("wrong")))
    assert_unavailable(send(keystone, "read", token_of(keystone, "service")))


@pytest.mark.parametrize("path", ["", "/"])
@pytest.mark.parametrize("token", ["", "nonsense"])
def test_the_version_document_asks_nobody(
    keystone: Keystone, configure: Configure, path: str, token: str
) -> None:
    configure(keystone=keystone.settings(auth_url="http://127.0.0.1:1/v3"))
    answer = PlacementClient(token=token).get(path)
    assert answer.status == 200
    assert answer.json["versions"][0]["max_version"] == "1.39"


@every_request
def test_claimed_identities_are_worth_nothing(keystone: Keystone, request_name: str) -> None:
    assert_unauthorized(send(keystone, request_name, "", **CLAIMS), keystone)
    for kind in ("reader of another project", "other role"):
        own = keystone.create("project", "operations", domain_id="default")
        claims = CLAIMS | {"X_Project_Id": own, "X_Tenant_Id": own}
        assert send(keystone, request_name, token_of(keystone, kind), **claims).status == 403


def test_claims_take_nothing_away_either(keystone: Keystone) -> None:
    claims = {"X_Roles": "nothing", "OpenStack_System_Scope": "all", "X_Project_Id": "claimed"}
    statuses = [
        send(keystone, name, token_of(keystone, "service"), **claims).status for name in REQUESTS
    ]
    assert tuple(statuses) == EXPECTED["service"]


def test_the_history_names_the_caller(keystone: Keystone) -> None:
    person = keystone.person("placement-service", "service")
    token = keystone.token(person)
    client = PlacementClient(token=token, **{"X-User-Id": "claimed", "X-User-Name": "claimed"})
    consumer = uuid()
    provider = client.make_provider(VCPU=8)
    assert client.allocate(consumer, {provider: {"VCPU": 1}}).status == 204
    (event,) = ask_operator(f"history?consumer={consumer}", token).json()["events"]
    assert event["actor"] == f"placement-service@Default {person.user_id}"


def test_an_operators_rules_see_what_keystone_says(
    keystone: Keystone, rules: Callable[[str], None]
) -> None:
    member = keystone.person("placement-member", "member")
    rules(
        '"placement:traits:list": "user_name:placement-member and user_domain_id:default"\n'
        f'"placement:traits:update": "user_id:{member.user_id} and project_name:operations"\n'
        '"placement:usages": "!"\n'
        '"placement:reshaper:reshape": "rule:admin_api"\n'
    )
    token = token_of(keystone, "member")
    statuses = [send(keystone, name, token).status for name in REQUESTS]
    assert statuses == [200, 201, 403, 403, 403]
    statuses = [send(keystone, name, token_of(keystone, "admin")).status for name in REQUESTS]
    assert statuses == [403, 403, 403, 403, 400]


def test_no_rule_is_for_the_system_or_a_domain(
    keystone: Keystone, rules: Callable[[str], None]
) -> None:
    rules('"placement:traits:list": "@"\n')
    for kind in ("admin of the system", "admin of a domain"):
        assert send(keystone, "read", token_of(keystone, kind)).status == 403
    assert send(keystone, "read", token_of(keystone, "other role")).status == 200


def test_each_policy_file_has_the_rules_of_its_own_apis(
    keystone: Keystone, configure: Configure, rules: Callable[[str], None], tmp_path: Path
) -> None:
    viewer, service = (token_of(keystone, kind) for kind in ("other role", "service"))
    limes = LiquidClient()
    ours = tmp_path / "headroom.yaml"
    ours.write_text('"placement:traits:list": "!"\n"liquid:get_info": "role:service"\n')
    configure(policy_file=ours)
    assert send(keystone, "read", service).status == 200
    assert limes.send("GET", "v1/info", None, token=viewer).status_code == 403
    rules('"placement:traits:list": "!"\n"liquid:get_info": "!"\n')
    assert send(keystone, "read", service).status == 403
    configure(policy_file=None)
    assert limes.send("GET", "v1/info", None, token=viewer).status_code != 403


@every_operator_path
def test_operators_paths_need_a_token(keystone: Keystone, path: str) -> None:
    for token in (None, "nonsense"):
        refusal = ask_operator(path, token)
        assert refusal.status_code == 401
        assert refusal["WWW-Authenticate"] == f'Keystone uri="{keystone.url}"'
        assert refusal["Content-Type"] == "application/problem+json"
        assert refusal.json()["code"]


@every_operator_path
@pytest.mark.parametrize(
    "kind", ["member", "reader", "other role", "admin of the system", "admin of a domain"]
)
def test_operators_paths_are_for_services_and_admins(
    keystone: Keystone, path: str, kind: str
) -> None:
    refusal = ask_operator(path, token_of(keystone, kind))
    assert refusal.status_code == 403
    assert refusal["Content-Type"] == "application/problem+json"
    assert f"Policy does not allow {OPERATORS[path]}" in refusal.json()["detail"]


@every_operator_path
def test_operators_paths_follow_their_rule(
    keystone: Keystone, rules: Callable[[str], None], path: str
) -> None:
    PlacementClient(token=token_of(keystone, "service")).make_provider(VCPU=1)
    assert ask_operator(path, token_of(keystone, "service")).status_code == 200
    assert ask_operator(path, token_of(keystone, "admin")).status_code == 200
    rules(f'"{OPERATORS[path]}": "role:member"\n')
    assert ask_operator(path, token_of(keystone, "service")).status_code == 403
    assert ask_operator(path, token_of(keystone, "member")).status_code == 200


def test_a_known_token_costs_no_statement_and_no_rule_is_parsed_again(
    keystone: Keystone, configure: Configure, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = token_of(keystone, "service")
    client, path = PlacementClient(token=token), f"/resource_providers/{uuid()}/usages"
    with_keystone = settings.HEADROOM
    placement_settings(settings)
    with CaptureQueriesContext(connection) as alone:
        assert PlacementClient().get(path).status == 404
    settings.HEADROOM = with_keystone
    assert client.get(path).status == 404

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(oslo.Rules, "from_dict", never)
    monkeypatch.setattr(oslo.Enforcer, "__init__", never)
    monkeypatch.setattr(policy._Rules, "_decide", never)
    monkeypatch.setattr("journal.keystone.MiddlewareValidator.validate", never)
    with CaptureQueriesContext(connection) as known:
        assert client.get(path).status == 404
    assert [query["sql"] for query in known] == [
        query["sql"].replace("admin", "service") for query in alone
    ]
