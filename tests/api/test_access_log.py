"""One line in the log for each request of an API (style, 12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from django.test import Client

from commitments.api import views
from commitments.services.change import ChangeOutcome
from tests.api.liquid_client import ADMIN, PROJECT, LiquidClient
from tests.api.scheduler_client import NovaClient
from tests.api.test_change_endpoint import body
from tests.factories import make_group, make_host

pytestmark = pytest.mark.django_db

Line = dict[str, Any]  # Any: whatever a key holds


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as captured:
        yield captured  # type: ignore[misc]  # its type is a wider mapping


def of_requests(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["event"] == "api_request"]


def shown(line: Line, *keys: str) -> tuple[Any, ...]:
    return tuple(line[key] for key in keys)


def test_a_report_says_who_asked_about_which_project(
    liquid: LiquidClient, lines: list[Line]
) -> None:
    answer = liquid.send("POST", liquid.usage(), {"allAZs": ["az-a"]}, X_Request_ID="limes-7")
    (line,) = of_requests(lines)
    assert shown(line, "req", "api", "method", "status") == (
        "limes-7",
        "liquid",
        "POST",
        answer.status_code,
    )
    assert line["path"] == f"/commitments/{liquid.usage()}"
    assert line["actor"] == "limes"
    assert line["project_id"] == PROJECT
    assert line["duration_ms"] > 0


@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        (ChangeOutcome(), "accepted"),
        (ChangeOutcome(rejection_reason="no room"), "rejected"),
    ],
    ids=["accepted", "rejected"],
)
def test_a_change_says_what_was_decided_though_both_answers_are_200(
    liquid: LiquidClient,
    lines: list[Line],
    monkeypatch: pytest.MonkeyPatch,
    outcome: ChangeOutcome,
    decision: str,
) -> None:
    monkeypatch.setattr(views, "change_commitments", lambda *_, **__: outcome)
    assert liquid.send("POST", liquid.change, body()).status_code == 200
    (line,) = of_requests(lines)
    assert shown(line, "decision", "reason") == (decision, outcome.rejection_reason)


@pytest.mark.parametrize(
    ("token", "path", "told"),
    [
        (None, LiquidClient.info, ("forbidden", "unauthenticated")),
        (ADMIN, LiquidClient.quota(), ("rejected", "")),
        (ADMIN, "v1/nothing", ("rejected", "")),
    ],
    ids=["no token", "wrong method", "unknown path"],
)
def test_refusals_carry_the_code_of_the_error(
    liquid: LiquidClient, lines: list[Line], token: str | None, path: str, told: tuple[str, str]
) -> None:
    liquid.send("GET", path, token=token)
    (line,) = of_requests(lines)
    assert shown(line, "decision", "reason") == told


def test_a_call_of_nova_says_whether_a_host_was_found(nova: NovaClient, lines: list[Line]) -> None:
    make_group()
    assert nova.post().status_code == 200
    make_host("h1", zone="az-a", memory_gib=64, vcpus=16)
    assert nova.post(token=None).status_code == 401
    refused, forbidden = of_requests(lines)
    assert shown(refused, "api", "decision", "status") == ("scheduler", "rejected", 200)
    assert shown(forbidden, "decision", "reason") == ("forbidden", "unauthenticated")


def test_no_line_holds_a_token_or_a_query(lines: list[Line]) -> None:
    Client().get(f"/api/v1/commitments/what-if?secret={ADMIN}", headers={"X-Auth-Token": ADMIN})
    (line,) = of_requests(lines)
    assert line["api"] == "operator"
    assert ADMIN not in str(line)


def test_pages_and_probes_leave_no_line_and_a_setting_none_at_all(
    liquid: LiquidClient, lines: list[Line], settings: Any
) -> None:
    for path in ("/healthz", "/admin/login/"):
        Client().get(path)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"log_requests": False})
    liquid.send("GET", liquid.info)
    assert of_requests(lines) == []
