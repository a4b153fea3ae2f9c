"""Waking polls that are held, as soon as there is something for their hosts (spec hosts, D.7).

A message of the broker says "look at these hosts" and no more: what there is stands in the
database, where who waits looks again. One that is lost costs time and nothing else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Final
from uuid import UUID

import redis
import structlog
from django.conf import settings
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

log = structlog.get_logger(__name__)

CHANNEL: Final = "headroom.hosts.look"
BROKER_SECONDS: Final = 1.0
MOST_HOSTS: Final = 1000  # of a message


def wake(host_ids: Iterable[UUID]) -> None:
    """Have the polls of agents answered once the open transaction is committed, or now without one.

    Never waits and never fails: a broker that is away costs a line in the log.

    Args:
        host_ids: ``HostAgent.uuid`` of those whose number in the database has grown.
    """
    ids = frozenset(host_ids)
    if ids:
        transaction.on_commit(partial(_send, ids), robust=True)


def woken(message: bytes) -> Iterator[UUID]:
    """Yield the hosts that a message names; what is none is left out."""
    for word in message.split():
        try:
            yield UUID(word.decode("ascii"))
        except ValueError:
            continue


class _Sender:
    """One thread that sends; a host waits once, however often it is named."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[UUID] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="waking")

    def add(self, ids: Iterable[UUID]) -> None:
        with self._lock:
            is_sending = bool(self._waiting)
            self._waiting.update(ids)
        if not is_sending:
            self._pool.submit(self._send_all)

    def _send_all(self) -> None:
        with self._lock:
            ids, self._waiting = sorted(self._waiting), set()
        try:
            for start in range(0, len(ids), MOST_HOSTS):
                message = " ".join(map(str, ids[start : start + MOST_HOSTS]))
                _broker(settings.REDIS_URL).publish(CHANNEL, message)
        except (redis.RedisError, OSError, ValueError) as error:
            log.warning("hosts_not_woken", count=len(ids), error=str(error))
        except Exception:  # polls end by themselves all the same
            log.exception("waking_failed", count=len(ids))


_sender = _Sender()


def _send(ids: Iterable[UUID]) -> None:
    _sender.add(ids)


@lru_cache(maxsize=4)
def _broker(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=BROKER_SECONDS,
        socket_timeout=BROKER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


def _start_anew() -> None:
    """Have a thread and a connection in a forked process, too."""
    global _sender  # noqa: PLW0603 - threads do not outlive a fork
    _sender = _Sender()
    _broker.cache_clear()


os.register_at_fork(after_in_child=_start_anew)
