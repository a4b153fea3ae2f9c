"""What ``/readyz`` answers when a look at the database takes long."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from config.launcher.processes import wait_until
from config.server.probes import KEPT_SECONDS, READY_SECONDS, Readiness

PATIENCE_SECONDS = 20.0


@dataclass
class Asker:
    """Stands for a request: what it was answered."""

    statuses: list[int] = field(default_factory=list)

    def response_bytes(self, status: int, _headers: object, _body: bytes) -> None:
        self.statuses.append(status)

    def answered(self) -> int:
        assert wait_until(lambda: bool(self.statuses), PATIENCE_SECONDS)
        return self.statuses[0]


@dataclass
class Database:
    """Answers looks while it may; ``looks`` counts those that began."""

    is_ready: bool = True
    looks: int = 0
    may_answer: threading.Event = field(default_factory=threading.Event)

    def look(self) -> tuple[bool, dict[str, Any]]:
        self.looks += 1
        assert self.may_answer.wait(PATIENCE_SECONDS)
        return self.is_ready, {}


@pytest.fixture
def database() -> Database:
    return Database()


def late(readiness: Readiness, seconds: float) -> int:
    """Return what one is told that asks now and is given up after ``seconds``."""
    asker = Asker()
    readiness(asker)
    readiness.give_up_late(time.monotonic() + seconds)
    return asker.answered()


def test_the_first_look_is_made_when_the_process_starts(database: Database) -> None:
    Readiness(database.look)
    assert wait_until(lambda: database.looks == 1, PATIENCE_SECONDS)
    database.may_answer.set()


def test_without_a_look_the_answer_is_no(database: Database) -> None:
    assert late(Readiness(database.look), READY_SECONDS + 0.1) == 503
    database.may_answer.set()


@pytest.mark.parametrize(
    ("is_ready", "seconds", "status"),
    [
        (True, READY_SECONDS + 0.1, 200),
        (False, READY_SECONDS + 0.1, 503),
        (True, KEPT_SECONDS + 0.1, 503),
    ],
)
def test_a_late_look_leaves_the_last_one_for_a_while(
    database: Database, *, is_ready: bool, seconds: float, status: int
) -> None:
    database.is_ready = is_ready
    readiness = Readiness(database.look)
    database.may_answer.set()
    asker = Asker()
    readiness(asker)
    assert asker.answered() == (200 if is_ready else 503)
    database.may_answer.clear()
    assert late(readiness, seconds) == status
    database.may_answer.set()
