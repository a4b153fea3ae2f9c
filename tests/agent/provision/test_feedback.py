"""Telling the server what became of jobs (spec hosts, B.6, D.8)."""

from __future__ import annotations

import threading
from pathlib import Path

from headroom_host_agent.provision.feedback import (
    RETRYABLE_STATUSES,
    NotToldError,
    RefusedError,
    Sender,
)
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.stored import Message

PATIENCE_SECONDS = 30


class Told:
    """Answers as it is told; remembers the keys that came."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.keys: list[str] = []

    def tell(self, message: Message) -> None:
        self.keys.append(message.key)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer


class Steady:
    """Draws the middle, and remembers between what."""

    def uniform(self, low: float, high: float) -> float:
        assert (low, high) == (0.5, 1.5)
        return 1.0


def with_messages(folder: Path, *keys: str) -> SqliteStore:
    store = SqliteStore(folder / "agent.sqlite")
    for key in keys:
        store.post(Message(key=key, body=b"{}"))
    return store


def test_what_is_answered_is_forgotten(tmp_path: Path) -> None:
    store = with_messages(tmp_path, "1-1:1:result", "2-1:1:result")
    told = Told(None, RefusedError("409 attempt_superseded"))

    assert Sender(store, told).flush()

    assert told.keys == ["1-1:1:result", "2-1:1:result"]
    assert store.outbox_depth() == 0


def test_what_is_not_told_stays_and_lets_others_by(tmp_path: Path) -> None:
    store = with_messages(tmp_path, "1-1:1:result", "1-1:1:deleted", "2-1:1:result")
    told = Told(NotToldError("cut"), None, NotToldError("500"))
    sender = Sender(store, told)

    assert [sender.deliver() for _ in range(3)] == [False, True, False]

    assert told.keys == ["1-1:1:result", "2-1:1:result", "1-1:1:result"]
    assert store.outbox_depth() == 2
    assert sender.flush()
    assert told.keys[3:] == ["1-1:1:result", "1-1:1:deleted"]


def test_pauses_grow_to_a_limit(tmp_path: Path) -> None:
    store = with_messages(tmp_path, "1-1:1:result")
    told = Told(*[NotToldError("cut")] * 12)
    sender = Sender(store, told, chance=Steady())  # type: ignore[arg-type]  # draws the middle
    pauses = []
    for _ in range(12):
        assert not sender.deliver()
        pauses.append(round(sender._pause_seconds(), 3))

    assert pauses[:4] == [0.5, 0.75, 1.125, 1.688]
    assert pauses[-2:] == [15.0, 15.0]
    assert sender.deliver()
    assert store.outbox_depth() == 0


def test_a_message_that_comes_wakes_the_sender(tmp_path: Path) -> None:
    store = with_messages(tmp_path)
    stop, came = threading.Event(), threading.Event()

    class Feedback:
        def tell(self, message: Message) -> None:
            came.set()

    thread = threading.Thread(target=Sender(store, Feedback()).run, args=(stop,))
    thread.start()
    store.post(Message(key="1-1:1:result", body=b"{}"))

    assert came.wait(PATIENCE_SECONDS)
    stop.set()
    store.posted.set()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_which_answers_are_not_final() -> None:
    assert {408, 425, 429, 500, 503} <= RETRYABLE_STATUSES
    assert not {200, 201, 400, 401, 404, 409, 410} & RETRYABLE_STATUSES
