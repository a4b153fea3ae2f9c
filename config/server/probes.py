"""Probes that do not go through the application: they answer while every thread is busy."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson

from config.server.board import Board

PLAIN_TEXT = ("Content-Type", "text/plain; charset=utf-8")
JSON = ("Content-Type", "application/json")
NEVER_CACHE = ("Cache-Control", "max-age=0, no-cache, no-store, must-revalidate, private")
OK, UNAVAILABLE = 200, 503
READY_SECONDS = 0.8
Checks = Callable[[], tuple[bool, dict[str, Any]]]  # Any: JSON


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

    When the look takes longer than a probe waits, the answer is no.
    """

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._news = threading.Condition()
        self._waiting: list[tuple[float, Any]] = []
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
        page = {
            "ready": False,
            "checks": {"database": {"ok": False, "detail": "does not answer in time"}},
        }
        for proto in late:
            _answer(proto, is_ready=False, page=page)

    def _serve(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: bool(self._waiting))
                asked = [proto for _, proto in self._waiting]
            is_ready, page = self._checks()
            with self._news:
                mine = {id(proto) for proto in asked}
                answered = [one for one in self._waiting if id(one[1]) in mine]
                self._waiting = [one for one in self._waiting if id(one[1]) not in mine]
            for _, proto in answered:
                _answer(proto, is_ready=is_ready, page=page)


def _answer(proto: Any, *, is_ready: bool, page: dict[str, Any]) -> None:  # Any: granian's; JSON
    proto.response_bytes(OK if is_ready else UNAVAILABLE, [JSON, NEVER_CACHE], orjson.dumps(page))
