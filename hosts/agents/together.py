"""Questions of many that are asked together, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Together(Generic[Key, Value]):
    """Asks for many at once: one question is under way, whoever comes meanwhile is in the next.

    Args:
        look: Answers a question, by key; a key may be without an answer.
        most: Keys of one question.
    """

    def __init__(
        self, look: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Value]]], *, most: int
    ) -> None:
        self._look, self._most = look, most
        self._asked: dict[Key, list[asyncio.Future[Value | None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def ask(self, key: Key) -> Value | None:
        """Return the answer, which was found after this was called.

        Raises:
            Exception: What the look raises.
        """
        future: asyncio.Future[Value | None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(key, []).append(future)
        if self._task is None:
            self._task = asyncio.create_task(self._ask_on())
        return await future

    async def _ask_on(self) -> None:
        while self._asked:
            keys = list(self._asked)[: self._most]
            asked = {key: self._asked.pop(key) for key in keys}
            try:
                found = await self._look(keys)
            except Exception as error:  # noqa: BLE001 - those who ask raise it
                _answer(asked, error, {})
            else:
                _answer(asked, None, found)
        self._task = None


def _answer(
    asked: Mapping[Key, Iterable[asyncio.Future[Value | None]]],
    error: Exception | None,
    found: Mapping[Key, Value],
) -> None:
    for key, futures in asked.items():
        for future in futures:
            if future.done():  # who asked has gone
                continue
            if error is None:
                future.set_result(found.get(key))
            else:
                future.set_exception(error)
