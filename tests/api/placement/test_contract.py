"""The HTTP contract (spec placement, 2, 3, 7)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError
from pydantic import SecretStr

from journal.conf import AccessToken
from placement.api import allocations as allocations_api
from tests.placement.client import PlacementClient, placement_settings, uuid

pytestmark = pytest.mark.django_db

ALLOWED = [
    ("/", "GET"),
    ("", "GET"),
    ("/resource_classes", "GET, POST"),
    ("/resource_classes/VCPU", "GET, PUT, DELETE"),
    ("/resource_providers", "GET, POST"),
    ("/resource_providers/u", "GET, PUT, DELETE"),
    ("/resource_providers/u/inventories", "GET, POST, PUT, DELETE"),
    ("/resource_providers/u/inventories/VCPU", "GET, PUT, DELETE"),
    ("/resource_providers/u/usages", "GET"),
    ("/resource_providers/u/aggregates", "GET, PUT"),
    ("/resource_providers/u/allocations", "GET"),
    ("/resource_providers/u/traits", "GET, PUT, DELETE"),
    ("/allocations", "POST"),
    ("/allocations/c", "GET, PUT, DELETE"),
    ("/allocation_candidates", "GET"),
    ("/traits", "GET"),
    ("/traits/T", "GET, PUT, DELETE"),
    ("/usages", "GET"),
    ("/reshaper", "POST"),
]


@pytest.mark.parametrize(("path", "allowed"), ALLOWED, ids=[path or "bare" for path, _ in ALLOWED])
@pytest.mark.parametrize("method", ["PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_other_methods_are_not_allowed(
    placement: PlacementClient, path: str, allowed: str, method: str
) -> None:
    answer = placement.call(method, path)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == set(allowed.split(", "))
    if method == "HEAD":
        assert answer.content == b""
    else:
        assert f"The method {method} is not allowed for this resource." in answer.error["detail"]


@pytest.mark.parametrize("path", ["", "/"])
@pytest.mark.parametrize("accept", ["application/json", "text/html", "*/*"])
def test_version_document_needs_no_token(
    placement: PlacementClient, path: str, accept: str
) -> None:
    placement.token = ""
    answer = placement.get(path, Accept=accept)
    assert answer.status == 200
    assert answer.json == {
        "versions": [
            {
                "id": "v1.0",
                "max_version": "1.39",
                "min_version": "1.0",
                "status": "CURRENT",
                "links": [{"rel": "self", "href": ""}],
            }
        ]
    }


@pytest.mark.parametrize(
    "path", ["/resource_providers/", "/unknown", "/traits/T/x", "//", "/resource_providers/u/bogus"]
)
def test_unknown_paths_are_not_found_and_never_redirected(
    placement: PlacementClient, path: str
) -> None:
    answer = placement.get(path)
    assert answer.status == 404
    assert answer.error["title"] == "Not Found"


def test_every_answer_names_version_and_request(placement: PlacementClient) -> None:
    for path, status in (("/traits", 200), ("/unknown", 404), ("/resource_providers/u", 404)):
        answer = placement.get(path, version="1.20", X_OpenStack_Request_ID="req-mine")
        assert answer.status == status
        assert answer.headers["openstack-api-version"] == "placement 1.20"
        assert answer.headers["vary"] == "openstack-api-version"
        assert re.fullmatch(r"req-[0-9a-f-]{36}", answer.headers["x-openstack-request-id"])
        if status == 404:
            assert answer.error["request_id"] == answer.headers["x-openstack-request-id"]


def test_no_header_but_those_of_the_contract_is_sent(placement: PlacementClient) -> None:
    answer = placement.get("/traits")
    assert set(answer.headers) == {
        "content-type",
        "content-length",
        "last-modified",
        "cache-control",
        "openstack-api-version",
        "vary",
        "x-openstack-request-id",
    }
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["last-modified"].endswith(" GMT")


def test_answers_without_a_body_have_no_content_type(placement: PlacementClient) -> None:
    answer = placement.put("/traits/CUSTOM_A")
    assert answer.status == 201
    assert "content-type" not in answer.headers
    assert answer.headers["location"] == "http://testserver/placement/traits/CUSTOM_A"


def test_proxies_are_believed_when_trusted(placement: PlacementClient, settings: Any) -> None:
    sent = {"X_Forwarded_Proto": "https", "X_Forwarded_Host": "cloud"}
    answer = placement.put("/traits/CUSTOM_A", **sent)
    assert answer.headers["location"].startswith("http://testserver/")
    placement_settings(settings, trusted_proxy_headers=True)
    assert placement.put("/traits/CUSTOM_A", **sent).status == 400
    settings.ALLOWED_HOSTS = ["cloud"]
    answer = placement.put("/traits/CUSTOM_A", **sent)
    assert answer.headers["location"] == "https://cloud/placement/traits/CUSTOM_A"


@pytest.mark.parametrize("path", ["", "/", "/traits", "/nowhere"])
@pytest.mark.parametrize("host", ["evil.example", "testserver.evil.example:80", "a b", "a/b", "é"])
def test_other_hosts_are_not_served(placement: PlacementClient, path: str, host: str) -> None:
    assert placement.get(path, HOST="testserver:8000").status in {200, 404}

    answer = placement.get(path, HOST=host)

    assert answer.status == 400
    assert "Host header" in answer.error["detail"]


def test_a_version_out_of_range_names_the_range(placement: PlacementClient) -> None:
    answer = placement.get("/traits", version="1.99")
    assert answer.status == 406
    assert answer.error["max_version"] == "1.39"
    assert answer.error["min_version"] == "1.0"
    assert "code" not in answer.error
    assert not {"openstack-api-version", "vary"} & set(answer.headers)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("text/html;q=0.5, application/json", "application/json"),
        ("text/html", "text/html; charset=UTF-8"),
        ("text/plain", "text/plain; charset=UTF-8"),
        ("image/png", "application/json"),
    ],
)
@pytest.mark.parametrize("version", ["1.0", "1.99"])
def test_errors_come_in_the_form_that_is_accepted(
    placement: PlacementClient, accept: str, content_type: str, version: str
) -> None:
    answer = placement.get("/<bogus>", version=version, Accept=accept)
    assert answer.status == (404 if version == "1.0" else 406)
    assert answer.headers["content-type"] == content_type
    assert b"<bogus>" not in answer.content


def test_order_of_checks(placement: PlacementClient) -> None:
    body: dict[str, Any] = {"headers": {}}
    without_token = PlacementClient(token="", version="1.99")
    assert without_token.get("/unknown").status == 401
    assert placement.get("/unknown", version="1.99").status == 406
    nobody = PlacementClient(token="user:p", version="1.0")
    assert nobody.get("/traits").status == 404, "version before policy"
    assert nobody.get("/traits", version="1.6", Accept="text/html").status == 406
    assert nobody.put("/resource_providers/u/traits", b"x", version="1.6").status == 403
    assert (
        nobody.client.post(
            "/placement/resource_providers",
            "x",
            content_type="text/plain",
            headers={"X-Auth-Token": "u"},
        ).status_code
        == 415
    )
    assert placement.put("/resource_providers/u/traits", body, version="1.6").status == 400
    assert placement.put("/resource_providers/u/inventories", body).status == 404


def test_a_body_needs_a_media_type(placement: PlacementClient) -> None:
    arguments: dict[str, Any] = {"headers": {"X-Auth-Token": "admin"}}
    sent = placement.client.generic(
        "POST", "/placement/resource_providers", "{}", content_type="", **arguments
    )
    assert sent.status_code == 400
    assert b"content-type header required when content-length > 0" in sent.content
    sent = placement.client.generic("POST", "/placement/resource_providers", "", **arguments)
    assert sent.status_code == 415
    sent = placement.client.generic(
        "POST",
        "/placement/resource_providers",
        '{"name": "n"}',
        content_type="application/json; charset=utf-8",
        **arguments,
    )
    assert sent.status_code == 201


def test_bodies_have_a_limit(placement: PlacementClient, settings: Any) -> None:
    placement_settings(settings, max_body_mib=1)
    assert placement.post("/resource_providers", b" " * ((1 << 20) + 1)).status == 413


@pytest.mark.parametrize(
    ("method", "path", "since", "below"),
    [
        ("GET", "/resource_providers/u/aggregates", 1, 404),
        ("GET", "/resource_classes", 2, 404),
        ("GET", "/traits", 6, 404),
        ("GET", "/usages?project_id=p", 9, 404),
        ("GET", "/allocation_candidates?resources=VCPU:1", 10, 404),
        ("POST", "/allocations", 13, 404),
        ("POST", "/reshaper", 30, 404),
        ("DELETE", "/resource_providers/u/inventories", 5, 405),
    ],
)
def test_paths_appear_with_their_version(
    placement: PlacementClient, method: str, path: str, since: int, below: int
) -> None:
    body: object = {} if method == "POST" else None
    masked = placement.call(method, path, body, version=f"1.{since - 1}")
    assert masked.status == below
    shown = placement.call(method, path, body, version=f"1.{since}")
    assert shown.status in {200, 400, 403, 404}
    if shown.status == 404:
        assert "No resource provider with uuid u found" in shown.error["detail"]


CACHED = ("/traits", "/resource_classes", "/resource_providers", "/usages?project_id=p")


@pytest.mark.parametrize("path", CACHED)
def test_times_are_sent_since_1_15(placement: PlacementClient, path: str) -> None:
    headers = {"last-modified", "cache-control"}
    assert not headers & set(placement.get(path, version="1.14").headers)
    assert headers <= set(placement.get(path, version="1.15").headers)


@pytest.mark.parametrize(
    ("version", "is_dated"), [("1.14", False), ("1.15", False), ("1.19", False), ("1.20", True)]
)
def test_a_new_provider_has_a_time_when_the_answer_shows_it(
    placement: PlacementClient, version: str, is_dated: bool
) -> None:
    answer = placement.post("/resource_providers", {"name": version}, version=version)
    assert answer.status == (200 if is_dated else 201)
    assert {"last-modified", "cache-control"} <= set(answer.headers) or not is_dated
    assert not {"last-modified", "cache-control"} & set(answer.headers) or is_dated


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        pytest.param("admin", {}, 200, id="admin"),
        pytest.param("user", {}, 403, id="nobody"),
        pytest.param("user:p", {"X_Roles": "service"}, 200, id="service"),
        pytest.param("admin", {"X_Roles": "reader"}, 403, id="roles replace"),
        pytest.param("user", {"X_Roles": "member, Admin"}, 200, id="roles in any case"),
        pytest.param("admin", {"OpenStack_System_Scope": "all"}, 403, id="system scope"),
        pytest.param("", {}, 401, id="no token"),
    ],
)
def test_callers_of_an_open_server(
    placement: PlacementClient, token: str, headers: dict[str, str], status: int
) -> None:
    placement.token = token
    assert placement.get("/traits", **headers).status == status


@pytest.mark.parametrize(
    ("caller", "headers", "anything", "usages", "reshape"),
    [
        pytest.param("a", {"OpenStack_System_Scope": "all", "X_Roles": "admin,member,reader"},
                     403, 403, 403, id="admin of system"),
        pytest.param("a", {"OpenStack_System_Scope": "all", "X_Roles": "reader"},
                     403, 403, 403, id="system reader"),
        pytest.param("a:own", {"X_Roles": "admin,member,reader"}, 200, 200, 403, id="admin"),
        pytest.param("a:own", {"X_Roles": "member,reader"}, 403, 200, 403, id="member, own"),
        pytest.param("a:own", {"X_Roles": "reader"}, 403, 200, 403, id="reader, own"),
        pytest.param("a:other", {"X_Roles": "member,reader"}, 403, 403, 403, id="other project"),
        pytest.param("a:own", {"X_Roles": "service"}, 200, 200, 400, id="service"),
    ],
)  # fmt: skip
def test_secure_policy(  # noqa: PLR0917 - the columns of the table
    placement: PlacementClient,
    settings: Any,
    caller: str,
    headers: dict[str, str],
    anything: int,
    usages: int,
    reshape: int,
) -> None:
    client = PlacementClient(token=caller)
    assert client.get("/resource_providers", **headers).status == anything
    assert client.get("/usages?project_id=own", **headers).status == usages
    assert client.post("/reshaper", {}, **headers).status == reshape
    placement_settings(settings, enforce_new_defaults=False)
    is_admin = "admin" in headers["X_Roles"] and "OpenStack_System_Scope" not in headers
    legacy = 400 if is_admin else reshape
    assert client.post("/reshaper", {}, **headers).status == legacy


def test_a_refusal_names_the_rule(placement: PlacementClient) -> None:
    placement.token = "user"  # noqa: S105 - of an open server
    detail = placement.get("/traits").error["detail"]
    assert "Policy does not allow placement:traits:list to be performed." in detail
    assert detail.startswith("Access was denied to this resource.")


def test_an_operators_rules_replace_the_defaults(
    placement: PlacementClient, settings: Any, tmp_path: Path
) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text(
        '"placement:traits:list": "role:auditor or user_id:%(user_id)s and not role:banned"\n'
        '"placement:usages": "!"\n"admin_api": "role:boss"\n',
        encoding="utf-8",
    )
    placement_settings(settings, policy_file=str(rules))
    assert PlacementClient(token="someone").get("/traits").status == 200
    assert PlacementClient(token="x").get("/traits", X_Roles="banned").status == 403
    assert placement.get("/usages?project_id=p").status == 403
    assert placement.get("/resource_classes").status == 200


def test_static_tokens(placement: PlacementClient, settings: Any) -> None:
    known = AccessToken(
        token=SecretStr("t" * 20), name="nova", roles=("service",), project_id="service"
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "token", "tokens": (known,)})
    assert placement.get("/traits").status == 401
    assert placement.get("/").status == 200
    placement.token = "t" * 20
    assert placement.get("/traits", X_Roles="nothing").status == 200


ORIGIN = "http://valid.example.com"


def test_browsers_may_call_from_known_origins(placement: PlacementClient, settings: Any) -> None:
    placement_settings(settings, cors_allowed_origin=(ORIGIN,))
    asked = {"Access_Control_Request_Method": "GET"}
    known = placement.call("OPTIONS", "/traits", Origin=ORIGIN, **asked)
    assert known.status == 200
    assert known.headers["access-control-allow-origin"] == ORIGIN
    assert known.headers["access-control-allow-headers"] == "openstack-api-version"
    other = placement.call("OPTIONS", "/traits", Origin="http://evil.example.com", **asked)
    assert other.status == 200
    assert not [name for name in other.headers if name.startswith("access-control")]
    assert placement.get("/traits", Origin=ORIGIN).headers["access-control-allow-origin"] == ORIGIN


def test_without_origins_there_is_no_preflight(placement: PlacementClient) -> None:
    sent = {"Origin": ORIGIN, "Access_Control_Request_Method": "GET"}
    assert placement.call("OPTIONS", "/traits", **sent).status == 405


def test_failures_tell_nothing_of_their_inside(
    placement: PlacementClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("SELECT secret")

    monkeypatch.setattr(allocations_api, "get_consumer_allocations", broken)
    answer = placement.get(f"/allocations/{uuid()}")
    assert answer.status == 500
    assert b"secret" not in answer.content
    assert answer.error["request_id"] in answer.error["detail"]


def test_a_constraint_that_a_race_broke_is_a_conflict_without_its_text(
    placement: PlacementClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise IntegrityError("violates foreign key constraint secret")

    monkeypatch.setattr(allocations_api, "get_consumer_allocations", lost)
    answer = placement.get(f"/allocations/{uuid()}")
    assert (answer.status, answer.error["code"]) == (409, "placement.concurrent_update")
    assert b"secret" not in answer.content


def test_without_the_database_clients_are_told_when_to_come_back(
    placement: PlacementClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(allocations_api, "get_consumer_allocations", gone)
    answer = placement.get(f"/allocations/{uuid()}")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "5"
    assert b"server closed" not in answer.content


@pytest.mark.parametrize(
    "path", ["/resource_providers?name=%00", "/traits/%00", "/usages?project_id=%00"]
)
def test_nul_characters_are_refused_or_unknown(placement: PlacementClient, path: str) -> None:
    assert placement.get(path).status in {400, 404}
    body = {"name": "a\x00b"}
    assert placement.post("/resource_providers", body).status == 400
