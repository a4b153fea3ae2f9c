"""The APIs behind a real Keystone (spec liquid, 3; spec placement, 7.2)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from journal.auth import authenticate
from tests.api.conftest import Configure
from tests.api.liquid_client import READS, REQUESTS, LiquidClient, assert_text
from tests.factories import make_group
from tests.peers.keystone import Keystone

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_refresh", "behind_keystone")]

INFO = REQUESTS["info"]
endpoints = pytest.mark.parametrize("endpoint", REQUESTS)
limes = LiquidClient()


@pytest.fixture
def admin(keystone: Keystone) -> str:
    return keystone.token(keystone.person("limes", "cloud_resource_admin"))


@pytest.fixture
def viewer(keystone: Keystone) -> str:
    return keystone.token(keystone.person("viewer", "cloud_resource_viewer"))


def assert_refused(response: Any, keystone: Keystone) -> None:
    assert_text(response, 401, "Unauthorized")
    assert response["WWW-Authenticate"] == f'Keystone uri="{keystone.url}"'


@endpoints
@pytest.mark.parametrize(
    "token", [None, "", "nonsense", "5f0d7a1be9c24d35a1c7fd2f9a3b6e84", "gAAAAABm" + "x" * 200]
)
def test_a_missing_or_unknown_token_is_unauthorized(
    keystone: Keystone, endpoint: str, token: str | None
) -> None:
    assert_refused(limes.send(*REQUESTS[endpoint], token=token), keystone)


@endpoints
def test_a_member_is_forbidden_everywhere(keystone: Keystone, endpoint: str) -> None:
    token = keystone.token(keystone.person("somebody", "member"))
    assert_text(limes.send(*REQUESTS[endpoint], token=token), 403, "Forbidden")


@endpoints
def test_a_viewer_reads_and_does_not_write(viewer: str, endpoint: str) -> None:
    make_group()
    response = limes.send(*REQUESTS[endpoint], token=viewer)
    if endpoint in READS:
        assert response.status_code == 200
    else:
        assert_text(response, 403, "Forbidden")


@endpoints
def test_an_admin_passes_everywhere(admin: str, endpoint: str) -> None:
    make_group()
    assert limes.send(*REQUESTS[endpoint], token=admin).status_code in {200, 204, 409}


def test_a_bearer_token_is_as_good(viewer: str) -> None:
    make_group()
    response = limes.send(*INFO, token=None, Authorization=f"Bearer {viewer}")
    assert response.status_code == 200


def test_an_expired_token_is_unauthorized(keystone: Keystone, viewer: str) -> None:
    assert_refused(limes.send(*INFO, token=keystone.aged(viewer, 7200)), keystone)


def test_an_expired_token_passes_when_a_service_vouches_for_it(
    keystone: Keystone, viewer: str
) -> None:
    make_group()
    expired = keystone.aged(viewer, 7200)
    nova = keystone.token(keystone.person("nova", "service", project="service"))
    member = keystone.token(keystone.person("somebody", "member"))
    vouched = {token: {"X-Service-Token": token} for token in (nova, member, "nonsense")}
    assert limes.send(*INFO, token=expired, **vouched[nova]).status_code == 200
    assert_refused(limes.send(*INFO, token=expired, **vouched[member]), keystone)
    assert_refused(limes.send(*INFO, token=viewer, **vouched["nonsense"]), keystone)


@pytest.mark.usefixtures("forgetful")
def test_a_revoked_token_is_unauthorized_as_soon_as_keystone_is_asked_again(
    keystone: Keystone,
) -> None:
    make_group()
    token = keystone.new_token(keystone.person("viewer", "cloud_resource_viewer"))
    assert limes.send(*INFO, token=token).status_code == 200
    keystone.revoke(token)
    assert_refused(limes.send(*INFO, token=token), keystone)


@pytest.mark.usefixtures("forgetful")
def test_a_disabled_user_is_unauthorized(keystone: Keystone) -> None:
    make_group()
    leaver = keystone.person("leaver", "cloud_resource_viewer")
    token = keystone.token(leaver)
    assert limes.send(*INFO, token=token).status_code == 200
    keystone.call("PATCH", f"users/{leaver.user_id}", {"user": {"enabled": False}})
    assert_refused(limes.send(*INFO, token=token), keystone)


def test_with_keystone_down_a_known_token_passes_and_others_get_503(
    keystone: Keystone, viewer: str
) -> None:
    make_group()
    new = keystone.new_token(keystone.person("limes", "cloud_resource_admin"))
    assert limes.send(*INFO, token=viewer).status_code == 200
    with keystone.stopped():
        assert limes.send(*INFO, token=viewer).status_code == 200
        for token in (new, "nonsense-too"):
            assert_text(limes.send(*INFO, token=token), 503, "Keystone cannot be asked")
        assert_refused(limes.send(*INFO, token=None), keystone)
    assert limes.send(*INFO, token=new).status_code == 200


def test_a_wrong_login_of_ours_is_our_failure_not_the_callers(
    configure: Configure, keystone: Keystone, admin: str
) -> None:
    configure(keystone=keystone.settings(username="nobody"))
    assert_text(limes.send(*INFO, token=admin), 503, "Keystone cannot be asked")


def test_claimed_identities_are_worth_nothing(keystone: Keystone, rf: Any) -> None:
    token = keystone.token(keystone.person("somebody", "member"))
    claims = {
        "X_Roles": "cloud_resource_admin",
        "X_User_Id": "admin",
        "X_Project_Id": "other",
        "X_Identity_Status": "Confirmed",
        "OpenStack_System_Scope": "all",
        "X_Is_Admin_Project": "True",
    }
    assert_refused(limes.send(*INFO, token=None, **claims), keystone)
    assert_text(limes.send(*INFO, token=token, **claims), 403)
    request = rf.get("/", headers={"X-Auth-Token": token, "X-Roles": "cloud_resource_admin"})
    assert authenticate(request).roles == frozenset({"member", "reader"})


def test_an_actor_is_what_keystone_says(keystone: Keystone, rf: Any) -> None:
    person = keystone.person("somebody", "member")
    actor = authenticate(rf.get("/", headers={"X-Auth-Token": keystone.token(person)}))
    assert (actor.user_id, actor.user_name, actor.user_domain_name) == (
        person.user_id,
        "somebody",
        "Default",
    )
    assert (actor.project_id, actor.project_name) == (person.project_id, "operations")
    assert (actor.domain_id, actor.system_scope, actor.service_roles) == (
        "",
        "",
        frozenset(),
    )
    assert actor.name == f"somebody@Default {person.user_id}"


def test_tokens_of_the_system_and_of_a_domain_say_so(keystone: Keystone, rf: Any) -> None:
    person = keystone.person("operator", "cloud_resource_viewer")
    role = keystone.create("role", "cloud_resource_viewer")
    keystone.call("PUT", f"system/users/{person.user_id}/roles/{role}")
    keystone.call("PUT", f"domains/default/users/{person.user_id}/roles/{role}")
    of_system = keystone.new_token(person, scope={"system": {"all": True}})
    of_domain = keystone.new_token(person, scope={"domain": {"id": "default"}})
    actor = authenticate(rf.get("/", headers={"X-Auth-Token": of_system}))
    assert (actor.system_scope, actor.project_id) == ("all", "")
    actor = authenticate(rf.get("/", headers={"X-Auth-Token": of_domain}))
    assert (actor.domain_id, actor.domain_name, actor.project_id) == ("default", "Default", "")


def test_an_operator_replaces_a_rule(
    configure: Configure, keystone: Keystone, tmp_path: Path, viewer: str
) -> None:
    make_group()
    person = keystone.person("reader", "reader", project="customer")
    own, other = limes.usage(person.project_id), limes.usage()
    token = keystone.token(person)
    assert limes.send("POST", own, {}, token=token).status_code == 403
    path = tmp_path / "policy.yaml"
    path.write_text(
        '"liquid:get_usage": "rule:readonly or (role:reader and project_id:%(project_id)s)"\n'
    )
    configure(policy_file=path)
    assert limes.send("POST", own, {}, token=token).status_code == 200
    assert_text(limes.send("POST", other, {}, token=token), 403)
    assert limes.send("POST", other, {}, token=viewer).status_code == 200
    assert_text(limes.send(*INFO, token=token), 403)


def test_an_application_credential_is_a_login_too(configure: Configure, keystone: Keystone) -> None:
    make_group()
    service = keystone.person("headroom-app", "service", "admin", project="service")
    body = {"application_credential": {"name": os.urandom(4).hex()}}
    made = keystone.call(
        "POST",
        f"users/{service.user_id}/application_credentials",
        body,
        token=keystone.new_token(service),
    )["application_credential"]
    configure(
        keystone=keystone.settings(
            username="",
            password=None,
            application_credential_id=made["id"],
            application_credential_secret=made["secret"],
        )
    )
    viewer = keystone.token(keystone.person("viewer", "cloud_resource_viewer"))
    assert limes.send(*INFO, token=viewer).status_code == 200


def scheduler(token: str | None, path: str = "/scheduler/nova/external") -> Any:
    headers = {} if token is None else {"X-Auth-Token": token}
    return Client().post(path, b"{}", content_type="application/json", headers=headers)


@pytest.mark.parametrize("path", ["/scheduler/nova/external", "/api/v1/scheduling/explain"])
def test_the_scheduler_asks_keystone_too(keystone: Keystone, path: str) -> None:
    nova = keystone.token(keystone.person("nova-scheduler", "cloud_resource_scheduler"))
    member = keystone.token(keystone.person("somebody", "member"))
    assert scheduler(nova, path).status_code == 400  # let through, and the body is no request
    assert scheduler(member, path).status_code == 403
    refusal = scheduler(None, path)
    assert refusal.status_code == 401
    assert refusal["WWW-Authenticate"] == f'Keystone uri="{keystone.url}"'


def test_a_viewer_may_explain_and_not_schedule(viewer: str) -> None:
    assert scheduler(viewer).status_code == 403
    assert scheduler(viewer, "/api/v1/scheduling/explain").status_code == 400
