"""By whose token the other Placement is asked, while Keystone is away."""

from __future__ import annotations

import threading
from typing import Any

import openstack
import pytest

from config.sections_gateway import GatewaySettings
from placement.cutover import mirroring, soon
from placement.domain.errors import ServiceUnavailable
from placement.gateway.asking import NoAccountError, token_of
from tests.placement.gateway.accounts import Keystone

PATIENCE_SECONDS = 30.0


@pytest.fixture
def keystone(monkeypatch: pytest.MonkeyPatch) -> Keystone:
    made = Keystone()
    monkeypatch.setattr(openstack, "connect", made.connect)
    return made


def section(**fields: Any) -> GatewaySettings:
    return GatewaySettings(upstream_url="http://127.0.0.1:1/placement", **fields)


def test_a_keystone_that_is_away_is_told_as_such(keystone: Keystone) -> None:
    token = token_of(section(cloud="known", timeout_seconds=7))
    assert keystone.timeouts == [7]
    keystone.is_away = True
    for is_refused in (False, True):
        with pytest.raises(ServiceUnavailable) as caught:
            token(is_refused)
        assert (caught.value.status, "Retry-After" in caught.value.headers) == (503, True)
    keystone.is_away = False
    assert token(False) == "admin"
    assert keystone.invalidated == 1
    with pytest.raises(NoAccountError, match="unknown"):
        token_of(section(cloud="unknown"))


def test_mirroring_begins_anew_after_anything_has_gone_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = threading.Semaphore(0)

    def fail(_: object) -> None:
        began.release()
        raise KeyError("generation")

    monkeypatch.setattr(soon, "shared_peer", lambda: None)
    monkeypatch.setattr(mirroring, "mirror", fail)
    mirror = soon._Soon()
    for _ in range(3):
        mirror.ask()
        assert began.acquire(timeout=PATIENCE_SECONDS)
        for thread in threading.enumerate():
            if thread.name == "mirror":
                thread.join(PATIENCE_SECONDS)
