from __future__ import annotations

import pytest

from tests.api.conftest import Configure
from tests.api.liquid_client import (
    ADMIN,
    MEMBER,
    READS,
    REQUESTS,
    VIEWER,
    LiquidClient,
    assert_text,
)
from tests.factories import make_group

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_refresh")]

endpoints = pytest.mark.parametrize("endpoint", REQUESTS)


@endpoints
def test_request_without_token_is_unauthorized(liquid: LiquidClient, endpoint: str) -> None:
    response = liquid.send(*REQUESTS[endpoint], token=None)
    assert_text(response, 401, "Unauthorized")


@endpoints
@pytest.mark.parametrize("token", ["", "unknown-token-0123456789", ADMIN[:-1], ADMIN + "x", "ä"])
def test_request_with_unknown_token_is_unauthorized(
    liquid: LiquidClient, endpoint: str, token: str
) -> None:
    assert_text(liquid.send(*REQUESTS[endpoint], token=token), 401, "Unauthorized")


@endpoints
def test_role_member_is_forbidden_everywhere(liquid: LiquidClient, endpoint: str) -> None:
    assert_text(liquid.send(*REQUESTS[endpoint], token=MEMBER), 403, "Forbidden")


@endpoints
def test_viewer_reads_and_does_not_write(liquid: LiquidClient, endpoint: str) -> None:
    make_group()
    response = liquid.send(*REQUESTS[endpoint], token=VIEWER)
    if endpoint in READS:
        assert response.status_code == 200
    else:
        assert_text(response, 403, "Forbidden")


@endpoints
def test_admin_passes_everywhere(liquid: LiquidClient, endpoint: str) -> None:
    make_group()
    assert liquid.send(*REQUESTS[endpoint]).status_code in {200, 204, 409}


@endpoints
def test_noauth_lets_everybody_pass(
    liquid: LiquidClient, configure: Configure, endpoint: str
) -> None:
    make_group()
    configure(auth="noauth")
    assert liquid.send(*REQUESTS[endpoint], token=None).status_code in {200, 204, 409}


def test_bearer_token_in_authorization_header_is_accepted(liquid: LiquidClient) -> None:
    make_group()
    response = liquid.send("GET", "v1/info", token=None, Authorization=f"Bearer {VIEWER}")
    assert response.status_code == 200


@pytest.mark.parametrize("header", [f"Basic {ADMIN}", ADMIN, "Bearer", "Bearer "])
def test_authorization_header_of_another_form_is_unauthorized(
    liquid: LiquidClient, header: str
) -> None:
    assert_text(liquid.send("GET", "v1/info", token=None, Authorization=header), 401)


def test_no_configured_token_lets_nobody_in(liquid: LiquidClient, configure: Configure) -> None:
    configure(tokens=())
    assert_text(liquid.send("GET", "v1/info", token=""), 401)
    assert_text(liquid.send("GET", "v1/info", token=ADMIN), 401)
