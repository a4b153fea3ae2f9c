"""Reports that a standby could not answer are answered by the primary as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from journal.standby import reads
from journal.standby.watch import Known, StandbyWatch
from tests.api.liquid_client import LiquidClient
from tests.factories import make_group, make_host

pytestmark = pytest.mark.django_db


@pytest.fixture
def watch(liquid: LiquidClient, monkeypatch: pytest.MonkeyPatch) -> StandbyWatch:
    """Have a standby that was fresh at the last look and is gone now."""
    make_group()
    make_host("h1", zone="az-a")
    here = connections.settings["default"]
    monkeypatch.setitem(connections.settings, "gone", {**here, "HOST": "127.0.0.1", "PORT": "1"})
    made = StandbyWatch(["gone"], most_lag_seconds=5, look_seconds=1, clock=lambda: 10.0)
    monkeypatch.setattr(StandbyWatch, "_ensure_thread", lambda self: None)
    monkeypatch.setattr(reads, "current_watch", lambda: made)
    made._known = {"gone": Known(fresh_as_of=9.0, reason="")}
    return made


@pytest.mark.parametrize("path", [LiquidClient.capacity, LiquidClient.usage()])
@pytest.mark.usefixtures("no_refresh")
def test_a_report_that_is_asked_again_keeps_its_body(
    liquid: LiquidClient, watch: StandbyWatch, path: str
) -> None:
    body = {"allAZs": ["az-a", "az-b"]}
    again = liquid.send("POST", path, body)
    assert watch.choose() is None, "no standby was asked"
    assert again.status_code == 200, again.content
    assert again.json() == liquid.send("POST", path, body).json()
    assert b"az-b" in again.content


@pytest.mark.parametrize("path", [LiquidClient.capacity, LiquidClient.usage()])
def test_a_body_that_is_too_large_is_refused_as_without_standbys(
    liquid: LiquidClient, watch: StandbyWatch, settings: Any, path: str
) -> None:
    most = settings.HEADROOM.liquid.max_body_mib << 20
    answer = liquid.send("POST", path, b" " * (most + 1))
    assert (answer.status_code, answer["Content-Type"]) == (413, "text/plain; charset=utf-8")
    assert watch.choose() == "gone", "it was asked"
    watch.leave_out("gone")
    alone = liquid.send("POST", path, b" " * (most + 1))
    assert (alone.status_code, alone.content) == (413, answer.content)
