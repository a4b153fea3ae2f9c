"""Probes that do not go through the application: they answer while every thread is busy."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from config.server.board import Board

PLAIN_TEXT = ("Content-Type", "text/plain; charset=utf-8")
JSON = ("Content-Type", "application/json")
NEVER_CACHE = ("Cache-Control", "max-age=0, no-cache, no-store, must-revalidate, private")
OK, UNAVAILABLE = 200, 503
READY_SECONDS, LOOK_SECONDS, KEPT_SECONDS = 0.5, 2.0, 5.0
Checks = Callable[[], tuple[bool, dict[str, Any]]]  # Any: JSON
NO_ANSWER = {
    "ready": False,
    "checks": {"database": {"ok": False, "detail": "does not answer in time"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What was found; ``began_at`` is monotonic time in seconds."""

    began_at: float
    is_ready: bool
    page: dict[str, Any]  # Any: JSON


class Liveness:
    """Answers ``/livez``: whether the supervisor is there and no worker stands still."""

    def __init__(self, board: Board, *, supervisor: int, stuck_seconds: float) -> None:
        self._board = board
        self._supervisor = supervisor
        self._stuck_seconds = stuck_seconds

    def troubles(self, now: float) -> list[str]:
        """Return what is wrong; nothing is good."""
        found = [row.trouble(now, self._stuck_seconds) for row in self._board.rows()]
        if not self.has_supervisor():
            found.append("the supervisor is gone")
        return [trouble for trouble in found if trouble]

    def has_supervisor(self) -> bool:
        """Return whether the process that started this one is still there."""
        return os.getppid() == self._supervisor

    def __call__(self, proto: Any) -> None:  # Any: granian's
        """Answer."""
        found = self.troubles(time.monotonic())
        text = "; ".join(found) or "ok"
        proto.response_bytes(UNAVAILABLE if found else OK, [PLAIN_TEXT, NEVER_CACHE], text.encode())


class Readiness:
    """Answers ``/readyz`` from a thread of its own: one look for all who ask meanwhile.

    It also looks while nobody asks, the first time when the process starts (reading the migrations
    takes a busy process a second). When a look takes longer than a probe waits, the answer is that
    of the last one, or no when that is too old.
    """

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._news = threading.Condition()
        self._waiting: list[tuple[float, Any]] = []
        self._kept: _Look | None = None
        threading.Thread(target=self._serve, name="readiness", daemon=True).start()

    def __call__(self, proto: Any) -> None:  # Any: granian's
        """Answer soon."""
        with self._news:
            self._waiting.append((time.monotonic(), proto))
            self._news.notify()

    def give_up_late(self, now: float) -> None:
        """Answer those who have waited long enough."""
        with self._news:
            late = [proto for asked_at, proto in self._waiting if now - asked_at > READY_SECONDS]
            self._waiting = [one for one in self._waiting if now - one[0] <= READY_SECONDS]
            kept = self._kept
        if kept is None or now - kept.began_at > KEPT_SECONDS:
            kept = _Look(began_at=now, is_ready=False, page=NO_ANSWER)
        for proto in late:
            _answer(proto, kept)

    def _serve(self) -> None:
        while True:
            look = self._looked()
            with self._news:
                self._kept = look
                answered = [proto for asked_at, proto in self._waiting if asked_at <= look.began_at]
                self._waiting = [one for one in self._waiting if one[0] > look.began_at]
            for proto in answered:
                _answer(proto, look)
            with self._news:
                self._news.wait_for(lambda: bool(self._waiting), LOOK_SECONDS)

    def _looked(self) -> _Look:
        began_at = time.monotonic()
        is_ready, page = self._checks()
        return _Look(began_at=began_at, is_ready=is_ready, page=page)


def _answer(proto: Any, look: _Look) -> None:  # Any: granian's
    status = OK if look.is_ready else UNAVAILABLE
    proto.response_bytes(status, [JSON, NEVER_CACHE], orjson.dumps(look.page))
