"""No setting lets a probe end processes that only wait as long as they may."""

from __future__ import annotations

import pytest

from config.environment import ConfigurationError, load_environment

DEBUG = {"HEADROOM_DEBUG": "true"}
DEADLINES = sorted(load_environment(DEBUG).web_deadlines())
OIDC = {
    "HEADROOM_OIDC__CLIENT_ID": "us",
    "HEADROOM_OIDC__CLIENT_SECRET": "x",
    "HEADROOM_OIDC__ISSUER": "https://id",
    "HEADROOM_OIDC__AUTHORIZATION_URL": "https://id/a",
    "HEADROOM_OIDC__TOKEN_URL": "https://id/t",
    "HEADROOM_OIDC__USERINFO_URL": "https://id/u",
    "HEADROOM_OIDC__JWKS_URL": "https://id/j",
}


def variable(name: str) -> str:
    return f"HEADROOM_{name.upper().replace('.', '__')}"


def test_default_is_twice_the_longest_deadline() -> None:
    assert load_environment(DEBUG).stuck_seconds == 120


@pytest.mark.parametrize("name", [name for name in DEADLINES if "." in name])
def test_default_grows_with_every_deadline_of_a_request(name: str) -> None:
    assert load_environment({**DEBUG, variable(name): "90"}).stuck_seconds == 180


@pytest.mark.parametrize("seconds", ["1", "59", "60"])
def test_probe_that_is_not_above_the_longest_deadline_is_refused(seconds: str) -> None:
    with pytest.raises(ConfigurationError, match=r"web_idle_transaction_seconds.*60") as raised:
        load_environment({**DEBUG, "HEADROOM_WEB__STUCK_SECONDS": seconds})
    assert "\n" not in str(raised.value)
    assert "STUCK_SECONDS" in str(raised.value)


def test_probe_above_the_longest_deadline_is_taken() -> None:
    given = load_environment({**DEBUG, "HEADROOM_WEB__STUCK_SECONDS": "61"})
    assert given.stuck_seconds == 61


def test_deadline_raised_above_a_given_probe_is_refused() -> None:
    given = {"HEADROOM_WEB__STUCK_SECONDS": "100", "HEADROOM_HEAVY__DEADLINE_SECONDS": "100"}
    with pytest.raises(ConfigurationError, match=r"heavy\.deadline_seconds"):
        load_environment({**DEBUG, **given})


def test_provider_of_logins_counts_where_there_is_one() -> None:
    slow = {"HEADROOM_OIDC__TIMEOUT_SECONDS": "60"}
    assert "oidc.timeout_seconds" not in load_environment({**DEBUG, **slow}).web_deadlines()
    assert load_environment({**DEBUG, **OIDC, **slow}).web_deadlines()["oidc.timeout_seconds"] == 60
