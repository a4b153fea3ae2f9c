from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from journal.conf import AccessToken, KeystoneSettings
from tests.api.liquid_client import ADMIN, MEMBER, VIEWER, LiquidClient
from tests.api.scheduler_client import SCHEDULER, NovaClient
from tests.peers.keystone import Keystone

Configure = Callable[..., None]


@pytest.fixture
def configure(settings: Any) -> Configure:
    """Change settings: ``configure(auth="token", liquid={"enable_quota": False})``."""

    def change(*, liquid: dict[str, Any] | None = None, **fields: Any) -> None:
        current = settings.HEADROOM
        if liquid:
            fields["liquid"] = current.liquid.model_copy(update=liquid)
        settings.HEADROOM = current.model_copy(update=fields)

    return change


@pytest.fixture
def liquid(configure: Configure) -> LiquidClient:
    """Limes, with a token of every kind known and nothing else configured."""
    configure(
        auth="token",
        tokens=(
            AccessToken(token=SecretStr(ADMIN), name="limes", roles=("cloud_resource_admin",)),
            AccessToken(token=SecretStr(VIEWER), name="viewer", roles=("cloud_resource_viewer",)),
            AccessToken(token=SecretStr(MEMBER), name="member", roles=("member",)),
        ),
    )
    return LiquidClient()


@pytest.fixture
def no_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take capacity rows as the test wrote them, without computing them anew."""
    monkeypatch.setattr("commitments.services.reports.ensure_fresh", lambda zones: None)


@pytest.fixture
def nova(configure: Configure) -> NovaClient:
    tokens = (
        (SCHEDULER, "nova", "cloud_resource_scheduler"),
        (ADMIN, "limes", "cloud_resource_admin"),
        (VIEWER, "viewer", "cloud_resource_viewer"),
        (MEMBER, "member", "member"),
    )
    configure(
        auth="token",
        tokens=tuple(
            AccessToken(token=SecretStr(token), name=name, roles=(role,))
            for token, name, role in tokens
        ),
    )
    return NovaClient()


@pytest.fixture
def scheduler_settings(settings: Any) -> Any:
    def change(**fields: Any) -> None:
        current = settings.HEADROOM
        scheduler = current.scheduler.model_copy(update=fields)
        settings.HEADROOM = current.model_copy(update={"scheduler": scheduler})

    return change


@pytest.fixture(scope="module")
def login(keystone: Keystone) -> KeystoneSettings:
    return keystone.settings()


@pytest.fixture
def behind_keystone(configure: Configure, login: KeystoneSettings) -> None:
    """Ask the real Keystone, and remember what it says from test to test."""
    configure(auth="keystone", keystone=login, policy_file=None)


@pytest.fixture
def forgetful(behind_keystone: None, configure: Configure, keystone: Keystone) -> None:
    """Ask it every time."""
    del behind_keystone
    configure(keystone=keystone.settings(token_cache_seconds=0))
