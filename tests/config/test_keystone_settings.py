from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config.environment import ConfigurationError, load_environment

BASE = {"HEADROOM_SECRET_KEY": "s" * 40, "HEADROOM_AUTH": "keystone"}
URL = {"HEADROOM_KEYSTONE__AUTH_URL": "http://keystone:5000/v3"}
PASSWORD = {
    "HEADROOM_KEYSTONE__USERNAME": "headroom",
    "HEADROOM_KEYSTONE__PASSWORD": "secret",
    "HEADROOM_KEYSTONE__PROJECT_NAME": "service",
}
CREDENTIAL = {
    "HEADROOM_KEYSTONE__APPLICATION_CREDENTIAL_ID": "id",
    "HEADROOM_KEYSTONE__APPLICATION_CREDENTIAL_SECRET": "secret",
}


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param(URL | PASSWORD, id="password"),
        pytest.param(URL | CREDENTIAL, id="application credential"),
    ],
)
def test_a_login_is_enough(variables: dict[str, str]) -> None:
    settings = load_environment(BASE | variables)
    assert settings.keystone.is_complete
    assert settings.keystone.token_cache_seconds == 300


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, id="nothing"),
        pytest.param(URL, id="no login"),
        pytest.param(PASSWORD, id="no address"),
        pytest.param(URL | {"HEADROOM_KEYSTONE__USERNAME": "headroom"}, id="no password"),
        pytest.param(URL | {"HEADROOM_KEYSTONE__APPLICATION_CREDENTIAL_ID": "id"}, id="no secret"),
    ],
)
def test_an_incomplete_login_stops_the_start(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="HEADROOM_AUTH: keystone needs KEYSTONE__"):
        load_environment(BASE | variables)


def test_the_password_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("from a file\n")
    variables = {**BASE, **URL, **PASSWORD, "HEADROOM_KEYSTONE__PASSWORD_FILE": str(path)}
    password = load_environment(variables).keystone.password
    assert password is not None
    assert password.get_secret_value() == "from a file"
    assert "from a file" not in repr(load_environment(variables))


def test_files_that_are_named_and_not_read_stay_names(tmp_path: Path) -> None:
    policy, certificate = tmp_path / "policy.yaml", tmp_path / "ca.pem"
    policy.write_text("{}")
    certificate.write_text("-----BEGIN CERTIFICATE-----")
    settings = load_environment(
        {
            **BASE,
            **URL,
            **PASSWORD,
            "HEADROOM_POLICY_FILE": str(policy),
            "HEADROOM_KEYSTONE__CA_FILE": str(certificate),
        }
    )
    assert settings.policy_file == policy
    assert settings.keystone.ca_file == str(certificate)


def test_a_policy_file_that_cannot_be_used_stops_the_start(tmp_path: Path, settings: Any) -> None:
    from config.apps import WiringConfig  # noqa: PLC0415 - settings first

    settings.HEADROOM = settings.HEADROOM.model_copy(update={"policy_file": tmp_path / "none"})
    wiring = WiringConfig.create("config")
    with pytest.raises(SystemExit, match=r"HEADROOM_POLICY_FILE: .*none"):
        wiring.ready()


@pytest.mark.parametrize(("threads", "is_allowed"), [("4", False), ("5", True), ("", True)])
def test_some_threads_of_a_web_process_must_never_wait(threads: str, *, is_allowed: bool) -> None:
    variables = BASE | URL | PASSWORD | {"GRANIAN_BLOCKING_THREADS": threads}
    if is_allowed:
        assert load_environment(variables).keystone.most_waiting == 4
        return
    with pytest.raises(ConfigurationError, match="KEYSTONE__MOST_WAITING: 4 must be below"):
        load_environment(variables)
    load_environment(variables | {"HEADROOM_AUTH": "token"})
