"""``POST /api/v1/hosts/NAME/onboard`` and the list of life cycles (spec hosts, C.3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from config.sections import FeedSettings
from hosts.models import HostLifecycle
from tests.api.liquid_client import VIEWER
from tests.factories import make_host
from tests.hosts.agents.test_orders import _tokens, order, refusal, told

pytestmark = pytest.mark.django_db
__all__ = ["_tokens"]
BODY = {"reason": "new", "aggregates": ["az-a"], "traits": ["CUSTOM_A"], "skip_tests": True}


@pytest.fixture(autouse=True)
def _onboards(_tokens: None, settings: Any) -> None:
    feed = FeedSettings(cloud="mini", onboards_hosts=True)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})


def test_a_host_is_ordered_in_once_and_may_be_aborted() -> None:
    make_host("h1")
    found = told(order("onboard", BODY), "OnboardedHost", status=202)
    assert found["phase"] == "initial"
    again = told(order("onboard", {"reason": "new"}), "OnboardedHost", status=202)
    assert again["lifecycle"] == found["lifecycle"]
    row = HostLifecycle.objects.get()
    assert row.wanted == {
        "aggregates": ["az-a"],
        "traits": ["CUSTOM_A"],
        "skips_tests": True,
        "test_aggregate": "",
        "high_availability": True,
    }
    ended = told(order("onboard", {"reason": "no", "abort": True}), "OnboardedHost", status=202)
    assert ended["phase"] == "aborting"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_input"),
        ({"reason": "x", "aggregates": "az"}, 400, "invalid_input"),
        ({"reason": "x", "aggregates": [1]}, 400, "invalid_input"),
        ({"reason": "x", "traits": ["a" * 300]}, 400, "invalid_input"),
        ({"reason": "x", "skip_tests": "yes"}, 400, "invalid_input"),
        ({"reason": "x"}, 409, "onboarding_refused"),
        ({"reason": "x", "abort": True}, 409, "onboarding_refused"),
    ],
)
def test_what_is_refused(body: dict[str, Any], status: int, code: str) -> None:
    make_host("h1")
    assert refusal(order("onboard", body)) == (status, code)
    assert not HostLifecycle.objects.exists()


def test_who_may_not_and_what_is_not_there() -> None:
    assert refusal(order("onboard", BODY)) == (404, "host_unknown")
    assert order("onboard", BODY, token=VIEWER).status_code == 403
    assert json.loads(order("onboard", BODY, host="%00").content)
