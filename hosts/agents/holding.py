"""Polls that are held until there is something for their hosts (spec hosts, D.7).

It knows neither HTTP nor the database: a *look* says how hosts stand now, and a poll is held while
its host stands as it did when nothing was found for it. A wake makes it look at once. Because a
wake may be lost, all are looked at again and again, in one question for all of them.

Everything runs in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

from hosts.agents.together import Together

#: Hosts of one question.
MOST_ASKED: Final = 2000
#: For how long it is known that a host was woken; no first look at a poll takes longer.
WOKEN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a host stands; whatever changes here ends its poll."""

    change_seq: int
    fence_epoch: int
    timeline: UUID
    is_taken: bool


#: What is asked by the name of a key: a key that is revoked is another standing.
Look = Callable[[Sequence[str]], Awaitable[Mapping[str, Standing]]]


class Ended(Enum):
    """Why a poll is not held any longer."""

    NEWS = "news"
    QUIET = "quiet"
    FULL = "full"
    REPLACED = "replaced"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPoll:
    """A poll for whose host there was nothing.

    Attributes:
        kid: The key that signed it.
        before: How the host stood before that was found out.
        began_at: The loop's time before it was found out.
        seconds: How long it may be held.
    """

    host_id: UUID
    kid: str
    before: Standing
    began_at: float
    seconds: float


class _Waiter:
    """A held poll between two looks."""

    __slots__ = ("future", "held")

    def __init__(self, held: HeldPoll, future: asyncio.Future[Ended | None]) -> None:
        self.held, self.future = held, future

    def end(self, ended: Ended | None) -> None:
        """Let it go on; None lets it look first."""
        if not self.future.done():
            self.future.set_result(ended)


class Holder:
    """The polls that one process holds, one of each host.

    Args:
        look: Says how hosts stand.
        most: Polls that are held at once.
    """

    def __init__(self, look: Look, *, most: int) -> None:
        self._look, self._most = look, most
        self._questions = Together(look, most=MOST_ASKED)
        self._waiters: dict[UUID, _Waiter] = {}
        self._woken_at: dict[UUID, float] = {}
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._waiters)

    async def hold(self, held: HeldPoll) -> Ended:
        """Return once the host stands otherwise, or one of the other things has happened.

        Raises:
            Exception: What a look raises.
        """
        loop = asyncio.get_running_loop()
        until, known_at = loop.time() + held.seconds, held.began_at
        while True:
            ended = self._refused(held.host_id)
            if ended is None and self._woken_at.get(held.host_id, known_at - 1) < known_at:
                ended = await self._wait(held, until)
            if ended is not None and ended is not Ended.QUIET:
                return ended
            known_at = loop.time()
            if await self._questions.ask(held.kid) != held.before:
                return Ended.NEWS
            if ended is Ended.QUIET or loop.time() >= until:
                return Ended.QUIET

    def wake(self, hosts: Iterable[UUID]) -> None:
        """Have the polls of hosts look."""
        now = asyncio.get_running_loop().time()
        for host_id in hosts:
            self._woken_at[host_id] = now
            waiter = self._waiters.get(host_id)
            if waiter is not None:
                waiter.end(None)

    async def look_at_all(self) -> None:
        """Have those look whose hosts stand otherwise by now.

        Raises:
            Exception: What a look raises.
        """
        self._forget(asyncio.get_running_loop().time() - WOKEN_SECONDS)
        waiting = list(self._waiters.values())
        for start in range(0, len(waiting), MOST_ASKED):
            part = waiting[start : start + MOST_ASKED]
            found = await self._look([one.held.kid for one in part])
            for one in part:
                if found.get(one.held.kid) != one.held.before:
                    one.end(Ended.NEWS)

    def stop(self) -> None:
        """End all, and hold none from now on."""
        self._is_stopping = True
        for waiter in self._waiters.values():
            waiter.end(Ended.STOPPED)

    def _refused(self, host_id: UUID) -> Ended | None:
        if self._is_stopping:
            return Ended.STOPPED
        if len(self._waiters) >= self._most and host_id not in self._waiters:
            return Ended.FULL
        return None

    async def _wait(self, held: HeldPoll, until: float) -> Ended | None:
        loop = asyncio.get_running_loop()
        former = self._waiters.get(held.host_id)
        if former is not None:
            former.end(Ended.REPLACED)
        waiter = _Waiter(held, loop.create_future())
        self._waiters[held.host_id] = waiter
        timer = loop.call_at(until, waiter.end, Ended.QUIET)
        try:
            return await waiter.future
        finally:
            timer.cancel()
            if self._waiters.get(held.host_id) is waiter:
                del self._waiters[held.host_id]

    def _forget(self, before: float) -> None:
        self._woken_at = {host: at for host, at in self._woken_at.items() if at >= before}
