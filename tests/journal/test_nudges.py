"""Nudges leave the thread that gives them; a broker that hangs or is gone delays nobody."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError as BrokerError

from config.launcher.processes import wait_until
from journal.nudges import EXPIRES_SECONDS, hand_to_worker, hint_worker
from journal.outages import BrokerUnavailable
from journal.tracing import current_global_request_id, with_global_request_id

PATIENCE_SECONDS = 30.0


class Broker:
    """A broker that hangs until told to go on."""

    def __init__(self) -> None:
        self.goes_on = Event()
        self.began = Event()
        self.taken: list[tuple[str, str]] = []
        self.options: list[dict[str, Any]] = []

    def take(self, name: str, **options: Any) -> None:
        self.began.set()
        self.goes_on.wait(PATIENCE_SECONDS)
        self.taken.append((name, current_global_request_id()))
        self.options.append(options)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    broker = Broker()
    monkeypatch.setattr(Celery, "send_task", broker.take)
    yield broker
    broker.goes_on.set()


def test_hints_wait_for_a_hung_broker_elsewhere_each_once(broker: Broker) -> None:
    with with_global_request_id("req-first"):
        hint_worker("first")
    assert broker.began.wait(PATIENCE_SECONDS)
    for _ in range(100):
        hint_worker("second")
    assert broker.taken == []
    broker.goes_on.set()
    assert wait_until(lambda: len(broker.taken) == 2, PATIENCE_SECONDS)
    assert [name for name, _ in broker.taken] == ["first", "second"]
    assert broker.taken[0][1] == "req-first"
    assert all(options["expires"] == EXPIRES_SECONDS for options in broker.options)


def test_a_hint_during_the_sending_of_the_same_is_sent_as_well(broker: Broker) -> None:
    hint_worker("first")
    assert broker.began.wait(PATIENCE_SECONDS)
    hint_worker("first")
    broker.goes_on.set()
    assert wait_until(lambda: len(broker.taken) == 2, PATIENCE_SECONDS)


def test_who_has_to_know_is_told_that_the_broker_hangs(broker: Broker) -> None:
    with pytest.raises(BrokerUnavailable):
        hand_to_worker("asked for", ["az-a", None])
    broker.goes_on.set()
    hand_to_worker("asked for", ["az-b", 3])
    assert broker.options[-1]["args"] == ["az-b", 3]


def test_a_broker_that_is_gone_is_no_error_of_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Event()

    def refuse(*_: Any, **__: Any) -> None:
        refused.set()
        raise BrokerError

    monkeypatch.setattr(Celery, "send_task", refuse)
    hint_worker("nobody hears")
    assert refused.wait(PATIENCE_SECONDS)
    with pytest.raises(BrokerUnavailable):
        hand_to_worker("nobody hears", [])
