"""What waits in the queues, read from a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings

from config.celery_app import app
from config.queues import QUEUES, SOON, STEADY
from journal.clock import database_now
from journal.health import broker_client
from journal.waiting import waiting_tasks

NAME = "journal.beat_queue"


@pytest.fixture(autouse=True)
def queues() -> Iterator[redis.Redis]:
    client = broker_client(django_settings.REDIS_URL)
    client.delete(*QUEUES)
    yield client
    client.delete(*QUEUES)


@pytest.mark.django_db
def test_the_oldest_task_of_a_queue_says_since_when_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long_ago = database_now() - timedelta(minutes=20)
    with monkeypatch.context() as patch:
        patch.setattr("journal.tracing.time.time", long_ago.timestamp)
        app.send_task("journal.beat", queue=SOON)
    app.send_task(NAME, args=["soon"], queue=SOON)

    soon, steady = waiting_tasks([SOON, STEADY])
    assert (soon.count, soon.oldest, soon.sent_at) == (2, "journal.beat", long_ago)
    assert (steady.count, steady.oldest, steady.sent_at) == (0, "", None)


def test_a_task_of_an_older_release_says_no_time(queues: redis.Redis) -> None:
    queues.lpush(STEADY, '{"headers": {"task": "old"}}')
    (steady,) = waiting_tasks([STEADY])
    assert (steady.count, steady.oldest, steady.sent_at) == (1, "old", None)


def test_no_broker_is_an_error(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    with pytest.raises(redis.RedisError):
        waiting_tasks([SOON])
