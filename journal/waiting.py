"""Tasks that wait for a worker: how many in each queue, and for how long the oldest has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings

from journal.health import broker_client
from journal.tracing import SENT_HEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queue of the broker.

    Attributes:
        count: Tasks that no worker has taken.
        oldest: Name of the one that is taken next; empty where none waits.
        sent_at: When it was sent, by the clock of who sent it; None when it does not say.
    """

    queue: str
    count: int
    oldest: str = ""
    sent_at: datetime | None = None


def waiting_tasks(queues: Sequence[str]) -> list[Waiting]:
    """Return what waits in each queue: one exchange with the broker.

    Raises:
        redis.RedisError: it does not answer.
    """
    asked = broker_client(settings.REDIS_URL).pipeline(transaction=False)
    for queue in queues:
        asked.llen(queue)
        asked.lindex(queue, -1)
    told: list[Any] = asked.execute()  # Any: numbers and texts in turn
    pairs = zip(told[::2], told[1::2], strict=True)
    return [_read(queue, *pair) for queue, pair in zip(queues, pairs, strict=True)]


def _read(queue: str, count: int, message: bytes | None) -> Waiting:
    headers: dict[str, Any] = {}
    if message is not None:
        headers = json.loads(message).get("headers", {})
    sent = headers.get(SENT_HEADER)
    return Waiting(
        queue=queue,
        count=count,
        oldest=headers.get("task", ""),
        sent_at=None if sent is None else datetime.fromtimestamp(sent, UTC),
    )
