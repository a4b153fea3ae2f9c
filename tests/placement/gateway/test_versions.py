"""Which versions both speak, while the other Placement does not say it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from config.sections_gateway import GatewaySettings
from placement.domain.errors import UpstreamTooSlow
from placement.domain.merging import OURS
from placement.gateway import versions
from placement.gateway.upstream import UpstreamAnswer
from placement.gateway.versions import common_versions

PATIENCE_SECONDS = 30.0
TO_1_36 = UpstreamAnswer(
    status=200,
    reason="OK",
    headers=(),
    body=b'{"versions": [{"min_version": "1.0", "max_version": "1.36"}]}',
)


class Other:
    """The other side.

    Attributes:
        asked: Until when each question may take.
        answer: Makes the answer to one; told its end.
    """

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.answer: Callable[[float], UpstreamAnswer] = lambda _: TO_1_36

    def send(
        self, method: str, target: str, *, headers: Any, until: float = math.inf
    ) -> UpstreamAnswer:
        assert (method, target, len(headers)) == ("GET", "/", 1)
        self.asked.append(until)
        return self.answer(until)


class Clock:
    """Monotonic seconds that go on when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(versions, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture
def other(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Other:
    section = GatewaySettings(upstream_url="http://127.0.0.1:1/placement")
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"gateway": section})
    made = Other()
    monkeypatch.setattr(versions, "current_upstream", lambda: made)
    return made


def test_a_side_that_is_silent_holds_one_request_for_a_moment(other: Other, clock: Clock) -> None:
    def silent(until: float) -> UpstreamAnswer:
        clock.now = until
        raise UpstreamTooSlow("nothing")

    other.answer = silent
    began_at = clock.now
    assert common_versions() == OURS
    assert clock.now - began_at <= versions.ASK_SECONDS

    # It may take longer, such as to look up its name: the next one does not ask again at once.
    clock.now += versions.KNOWN_SECONDS
    other.asked.clear()

    def silent_for_long(until: float) -> UpstreamAnswer:
        clock.now = until + versions.KNOWN_SECONDS
        raise UpstreamTooSlow("nothing")

    other.answer = silent_for_long
    assert [common_versions() for _ in range(3)] == [OURS] * 3
    assert len(other.asked) == 1

    clock.now += versions.KNOWN_SECONDS
    other.answer = lambda _: TO_1_36
    assert common_versions().high == 36


def test_others_go_by_what_was_known_while_one_asks(other: Other, clock: Clock) -> None:
    assert common_versions().high == 36
    clock.now += versions.KNOWN_SECONDS
    is_asked, goes_on = threading.Event(), threading.Event()

    def late(_: float) -> UpstreamAnswer:
        is_asked.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        return TO_1_36

    other.answer = late
    with ThreadPoolExecutor(2) as pool:
        try:
            asking = pool.submit(common_versions)
            assert is_asked.wait(PATIENCE_SECONDS)
            assert pool.submit(common_versions).result(PATIENCE_SECONDS / 2).high == 36
            assert not asking.done()
        finally:
            goes_on.set()
        assert asking.result(PATIENCE_SECONDS).high == 36
    assert len(other.asked) == 2
