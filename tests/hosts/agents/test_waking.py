"""Held polls are woken over the broker, after the commit, whatever state the broker is in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis
from django.conf import settings as django_settings
from django.db import connection, transaction
from structlog.testing import capture_logs

from config.launcher.processes import wait_until
from hosts.agents import waking
from hosts.agents.waking import CHANNEL, MOST_HOSTS, wake, woken

PATIENCE_SECONDS = 30.0
pytestmark = pytest.mark.django_db(transaction=True)


class Ear:
    """Who listens for what is woken; others of the same broker are not heard."""

    def __init__(self) -> None:
        self._heard = redis.Redis.from_url(django_settings.REDIS_URL).pubsub()  # type: ignore[no-untyped-call]
        self._heard.subscribe(CHANNEL)
        assert self._heard.get_message(timeout=PATIENCE_SECONDS)

    def until(self, *wanted: UUID) -> list[UUID]:
        """Return those of the wanted that were named, in their order, once the last one is."""
        found: list[UUID] = []
        while not set(wanted) <= set(found):
            message = self._heard.get_message(timeout=PATIENCE_SECONDS)
            assert message, "nobody was woken"
            found += [one for one in woken(message["data"]) if one in wanted]
        return found

    def close(self) -> None:
        self._heard.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    made = Ear()
    yield made
    made.close()


def test_nobody_is_woken_before_the_commit_and_after_a_rollback(ear: Ear) -> None:
    written, other, undone = uuid4(), uuid4(), uuid4()

    def meanwhile() -> None:
        wake([other])
        connection.close()

    with transaction.atomic():
        wake([written])
        beside = threading.Thread(target=meanwhile)
        beside.start()
        beside.join()
        assert ear.until(other) == [other]
    with transaction.atomic():
        wake([undone])
        transaction.set_rollback(True)
    assert ear.until(written) == [written]
    wake([other])
    assert undone not in ear.until(other)


def test_many_hosts_are_woken_in_messages_of_a_bounded_length(ear: Ear) -> None:
    ids = [UUID(int=number) for number in range(1, MOST_HOSTS + 2)]

    wake(ids)

    assert ear.until(*ids) == ids


def test_a_broker_that_is_away_is_a_line_in_the_log(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    monkeypatch.setattr(waking, "_sender", waking._Sender())
    with capture_logs() as lines:
        wake([uuid4()])
        assert wait_until(lambda: bool(lines), PATIENCE_SECONDS)
    assert [line["event"] for line in lines] == ["hosts_not_woken"]


def test_what_is_no_host_wakes_nobody() -> None:
    known = uuid4()

    assert list(woken(b"\xff nobody " + str(known).encode())) == [known]
