"""Hearing which hosts there is something for, as long as the broker is there (spec hosts, D.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

import structlog
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from hosts.agents.waking import BROKER_SECONDS, CHANNEL, woken

log = structlog.get_logger(__name__)

#: A broker that answers nothing for so long is away.
QUIET_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 1.0


class Ear:
    """Follows the broker's channel, again and again.

    Args:
        wake: Is given the hosts that are named.
        opened: Is called once the channel is followed; what was said before is not known.

    Attributes:
        is_open: Whether messages are heard.
    """

    def __init__(
        self, url: str, *, wake: Callable[[Iterable[UUID]], None], opened: Callable[[], None]
    ) -> None:
        self._url, self._wake, self._opened = url, wake, opened
        self.is_open = False

    async def listen(self) -> None:
        """Listen until cancelled."""
        is_told = False
        while True:
            try:
                await self._follow()
            except (RedisError, OSError, ValueError) as error:
                if self.is_open or not is_told:
                    log.warning("hosts_not_heard", error=str(error))
                    is_told = True
            finally:
                self.is_open = False
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        client = Redis.from_url(
            self._url,
            socket_connect_timeout=BROKER_SECONDS,
            socket_timeout=2 * QUIET_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        channel = client.pubsub()
        try:
            await channel.subscribe(CHANNEL)
            is_asked = False
            while True:
                message = await channel.get_message(timeout=QUIET_SECONDS)
                if message is None:
                    if is_asked:
                        raise TimeoutError("the broker says nothing")
                    await channel.ping()
                is_asked = message is None
                self._take(message or {})
        finally:
            await channel.aclose()  # type: ignore[no-untyped-call]  # the library says no types
            await client.aclose()

    def _take(self, message: dict[str, Any]) -> None:  # Any: the library's
        if message.get("type") == "subscribe":
            self.is_open = True
            self._opened()
        elif message.get("type") == "message":
            self._wake(woken(message["data"]))
