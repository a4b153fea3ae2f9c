"""The stream of counters of a host's agent (spec hosts, B.8, D.6)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from hosts.agents import counters
from hosts.agents.models import HostAgent
from tests.api.liquid_client import VIEWER
from tests.hosts.agents.test_observed import stats
from tests.hosts.agents.test_orders import _tokens, refusal  # noqa: F401 - a fixture
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import enforcing, make_workload

pytestmark = pytest.mark.django_db


def stream(host: str = "h1") -> Any:
    return Client(raise_request_exception=False).get(
        f"/api/v1/hosts/{host}/counters", headers={"X-Auth-Token": VIEWER}
    )


def documents(chunks: list[bytes]) -> list[dict[str, Any]]:
    lines = b"".join(chunks).decode().splitlines()
    assert [line for line in lines if line.startswith("event")] == ["event: counters"] * len(chunks)
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let no pause take any time; return how long each should have been."""
    taken: list[float] = []
    pause = staticmethod(lambda _, seconds: taken.append(seconds))
    monkeypatch.setattr(counters.CountersView, "wait", pause)
    return taken


def test_what_was_made_is_told_every_two_seconds_until_the_end(pauses: list[float]) -> None:
    identity = enforcing()
    row = make_workload(cpus=8, memory_bytes=32)
    answer = stream()
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/event-stream")
    chunks = iter(answer.streaming_content)
    first = next(chunks)
    assert first.startswith(b"retry: 2000\n\n")

    tell(identity, row)
    stats(identity, 8, 16, 1)
    told = documents([first, *chunks])

    assert (len(told), pauses) == (counters.MOST_EVENTS, [2.0] * (counters.MOST_EVENTS - 1))
    nothing = {"units": {"cru": 0, "mru": 0, "disk": 0}, "workloads": {}}
    assert (told[0]["expected"], told[0]["said_at"], told[0]["drift"]) == (nothing, None, {})
    assert told[-1]["expected"] == {
        "units": {"cru": 8, "mru": 32, "disk": 0}, "workloads": {"accounting": 1},
    }  # fmt: skip
    assert told[-1]["said"]["units"]["mru"] == 16
    assert told[-1]["drift"] == {"mru": [32, 16]}


def test_the_stream_of_an_agent_that_is_gone_ends(pauses: list[float]) -> None:
    enforcing()
    chunks = iter(stream().streaming_content)
    next(chunks)
    HostAgent.objects.update(decommissioned_at="2026-01-01T00:00:00Z")
    assert list(chunks) == []
    for host in ("h1", "h9", "a%00b"):
        assert refusal(stream(host)) == (404, "unknown_agent")


def test_a_process_has_few_streams_and_takes_each_place_back(pauses: list[float]) -> None:
    enforcing()
    read, dropped = (stream() for _ in range(counters.MOST_STREAMS))
    busy = stream()
    assert refusal(busy) == (429, "too_many_streams")
    assert busy["Retry-After"] == "30"

    assert len(list(read.streaming_content)) == counters.MOST_EVENTS
    next(iter(dropped.streaming_content))
    dropped._iterator.close()  # as the test client ends it: the reader went away

    again = [stream() for _ in range(counters.MOST_STREAMS)]
    assert [one.status_code for one in again] == [200] * counters.MOST_STREAMS
    assert [len(list(one.streaming_content)) for one in again] == [counters.MOST_EVENTS] * 2
