"""Whatever an application raises, its client gets an answer and its thread serves on."""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event
from types import SimpleNamespace
from typing import IO, Any

import pytest
from structlog.testing import capture_logs

from config.launcher.processes import wait_until
from config.server import bodies
from config.server import door as door_module
from config.server.board import Board, Shown
from config.server.bodies import BodyRules
from config.server.door import FILE_SECONDS, LATE_SECONDS, Door, DoorRules

PATIENCE_SECONDS = 30.0
RULES = DoorRules(
    most_running=2,
    most_of_kind=1,
    kind_of=lambda path: path.partition("/")[2].partition("/")[0],
    limit_bytes=lambda _path: 1 << 30,
    hands_on=lambda path: path.startswith("/on/"),
    refuses_unread=lambda _path: False,
    is_question=lambda path: path == "/question",
    takes_turn=lambda method, path: method == "PUT" and path.startswith("/a/"),
    turns=1,
    bodies=BodyRules(grace_seconds=1, bytes_per_second=1, most_bytes=8 << 20),
)


@dataclass(slots=True)
class Answers:
    """Granian's side of a request: what it is told."""

    told: list[tuple[int, bytes]] = field(default_factory=list)
    files: list[tuple[int, str]] = field(default_factory=list)

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        del headers
        self.told.append((status, body))

    def response_file(self, status: int, headers: list[tuple[str, str]], file: str) -> None:
        del headers
        self.files.append((status, file))


class Streaming(Answers):
    """Granian's side of a request that is answered part by part, by a client that may go away."""

    def __init__(self, *, takes: int) -> None:
        super().__init__()
        self.takes = takes
        self.parts: list[bytes] = []

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> Streaming:
        del headers
        self.told.append((status, b""))
        return self

    def send_bytes(self, part: bytes) -> None:
        if len(self.parts) == self.takes:
            raise RuntimeError("closed")
        self.parts.append(part)


class Sending(Answers):
    """Granian's side of a request whose body comes when the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited: Future[bytes] | None = None

    def __aiter__(self) -> None:
        """As granian has it: nothing comes of it."""

    def __anext__(self) -> Future[bytes]:
        self.awaited = Future()
        return self.awaited

    def comes(self, block: bytes) -> None:
        assert self.awaited is not None
        self.awaited.set_result(block)


def watcher(**fields: Any) -> Any:  # Any: granian's, without types
    scope = {
        "method": "GET", "path": "/x", "query_string": "", "http_version": "1.1", "scheme": "http",
        "client": "127.0.0.1:1", "server": "127.0.0.1:2", "headers": {}, "authority": "h", **fields,
    }  # fmt: skip
    return SimpleNamespace(scope=SimpleNamespace(**scope), proto=Answers())


def door_of(application: Any) -> tuple[Door, Board]:
    board = Board()
    shown = Shown(board, board.claim(), pid=1, threads=1, now=0.0)
    return Door(application, RULES, shown, {}), board


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_application_that_raises_is_answered_logged_and_leaves_its_thread_free(
    error: BaseException,
) -> None:
    def application(environ: Any, start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/bad":
            raise error
        start("200 OK", [])
        return [b"fine"]

    door, board = door_of(application)
    bad, good = watcher(path="/bad"), watcher(path="/good")
    with capture_logs() as logged:
        door(bad)
    door(good)

    assert bad.proto.told == [(500, b"Internal server error")]
    assert good.proto.told == [(200, b"fine")]
    assert next(board.rows()).running == 0
    assert [(line["event"], line["exc_info"]) for line in logged] == [("request_crashed", True)]


@pytest.mark.parametrize(("takes", "made"), [(9, 3), (1, 2)])
def test_events_are_sent_one_by_one_until_nobody_takes_them(takes: int, made: int) -> None:
    seen: list[int] = []
    proto = Streaming(takes=takes)

    def application(environ: Any, start: Any) -> Iterable[bytes]:
        del environ
        start("200 OK", [("Content-Type", "text/event-stream")])

        def events() -> Iterable[bytes]:
            for number in range(3):
                seen.append(len(proto.parts))  # those before it have gone
                yield str(number).encode()

        return events()

    door, board = door_of(application)
    asked = watcher()
    asked.proto = proto
    door(asked)

    assert proto.told == [(200, b"")]
    assert proto.parts == [b"0", b"1", b"2"][:takes]
    assert seen == list(range(made))
    assert next(board.rows()).running == 0


@dataclass(slots=True)
class Lending:
    """Notes who has a session."""

    lent: int = 0
    most: int = 0
    closed_at: list[float] = field(default_factory=list)

    def lend(self) -> None:
        self.lent += 1
        self.most = max(self.most, self.lent)

    def take_back(self) -> None:
        self.lent -= 1

    def close_idle(self, now: float) -> None:
        self.closed_at.append(now)


def test_each_request_has_a_session_until_it_is_answered() -> None:
    sessions, seen = Lending(), list[int]()

    def application(environ: Any, start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/bad":
            raise SystemExit
        start("200 OK", [])

        def pieces() -> Iterable[bytes]:  # as long as there are pieces, something may be read
            seen.append(sessions.lent)
            yield b"fine"

        return pieces()

    shown = Shown(board := Board(), board.claim(), pid=1, threads=1, now=0.0)
    door = Door(application, replace(RULES, sessions=sessions), shown, {})
    for path in ("/bad", "/good", "/bad"):
        door(watcher(path=path))
    door.close_idle_sessions(5.0)
    assert (seen, sessions.lent, sessions.most, sessions.closed_at) == ([1], 0, 1, [5.0])


def test_refusal_of_a_question_is_kept_and_its_thread_is_free() -> None:
    def application(environ: Any, start: Any) -> Iterable[bytes]:
        del environ
        start("503 Service Unavailable", [])
        return [b"come again"]

    door, board = door_of(application)
    question, other = watcher(path="/question"), watcher(path="/other")
    begun = time.monotonic()
    door(question)
    door(other)

    assert (question.proto.told, other.proto.told) == ([], [(503, b"come again")])
    assert next(board.rows()).running == 0
    door.answer_late(begun)
    assert question.proto.told == []
    door.answer_late(time.monotonic() + LATE_SECONDS)
    assert question.proto.told == [(503, b"come again")]


def test_body_in_a_file_is_there_until_granian_has_opened_it() -> None:
    files: list[IO[bytes]] = []

    def application(environ: Any, start: Any) -> Any:
        file = TemporaryFile()  # noqa: SIM115 - closed by the door
        files.append(file)
        file.write(b"large")
        start("200 OK", [])
        return environ["headroom.file_body"](file)

    door, board = door_of(application)
    begun, asked = time.monotonic(), watcher()
    door(asked)

    ((status, path),) = asked.proto.files
    door.answer_late(begun + FILE_SECONDS / 2)
    assert (status, Path(path).read_bytes(), asked.proto.told) == (200, b"large", [])
    assert next(board.rows()).running == 0
    door.answer_late(time.monotonic() + FILE_SECONDS)
    assert files[0].closed


def test_one_kind_never_has_all_threads_and_runs_in_its_order() -> None:
    held, order = Event(), list[str]()

    def application(environ: Any, start: Any) -> Iterable[bytes]:
        order.append(environ["PATH_INFO"])
        if environ["PATH_INFO"] == "/a/stuck":
            assert held.wait(PATIENCE_SECONDS)
        start("200 OK", [])
        return [b"fine"]

    door, board = door_of(application)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(door, watcher(path="/a/stuck"))
        assert wait_until(lambda: order == ["/a/stuck"], PATIENCE_SECONDS)
        for path in ("/a/first", "/b/other", "/a/second"):
            door(watcher(path=path))
        assert order == ["/a/stuck", "/b/other"]
        held.set()
        stuck.result(PATIENCE_SECONDS)
    assert order == ["/a/stuck", "/b/other", "/a/first", "/a/second"]
    assert next(board.rows()).running == 0


@dataclass(slots=True)
class Turns:
    """An application that keeps requests to paths with ``stuck`` until it is told."""

    door: Door
    board: Board
    held: Event
    order: list[str]

    def ask(self, path: str, method: str = "PUT") -> Any:  # Any: granian's
        asked = watcher(path=path, method=method)
        self.door(asked)
        return asked

    def stuck(self, pool: ThreadPoolExecutor, path: str) -> Future[Any]:
        done = pool.submit(self.ask, path)
        assert wait_until(lambda: path in self.order, PATIENCE_SECONDS)
        return done


@pytest.fixture
def turns() -> Turns:
    held, order = Event(), list[str]()

    def application(environ: Any, start: Any) -> Iterable[bytes]:
        order.append(environ["PATH_INFO"])
        if "stuck" in environ["PATH_INFO"]:
            assert held.wait(PATIENCE_SECONDS)
        start("200 OK", [])
        return [b"fine"]

    board = Board()
    shown = Shown(board, board.claim(), pid=1, threads=1, now=0.0)
    door = Door(application, replace(RULES, most_running=4, most_of_kind=3), shown, {})
    return Turns(door, board, held, order)


def test_requests_that_take_turns_wait_for_a_quick_one_and_others_do_not(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "STILL_SECONDS", PATIENCE_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        stuck = turns.stuck(pool, "/a/stuck")
        first, second = turns.ask("/a/first"), turns.ask("/a/second")
        turns.ask("/a/read", "GET")
        turns.ask("/b/other")
        assert turns.order == ["/a/stuck", "/a/read", "/b/other"]
        assert first.proto.told == []
        turns.held.set()
        stuck.result(PATIENCE_SECONDS)
    assert turns.order[3:] == ["/a/first", "/a/second"]
    assert first.proto.told == second.proto.told == [(200, b"fine")]
    assert next(turns.board.rows()).running == 0


def test_one_that_stands_still_does_not_hold_up_those_that_take_turns(turns: Turns) -> None:
    threading.Thread(target=turns.door.run_overdue, daemon=True).start()
    with ThreadPoolExecutor(1) as pool:
        stuck = turns.stuck(pool, "/a/stuck")
        asked = [turns.ask(f"/a/{number}") for number in range(5)]  # some before it is known
        assert wait_until(
            lambda: all(one.proto.told == [(200, b"fine")] for one in asked), PATIENCE_SECONDS
        )
        assert turns.order[0] == "/a/stuck"
        assert not stuck.done()
        turns.held.set()
        stuck.result(PATIENCE_SECONDS)
    assert wait_until(lambda: next(turns.board.rows()).running == 0, PATIENCE_SECONDS)
    turns.ask("/a/last")
    assert turns.order[-1] == "/a/last"


def test_those_that_stand_still_never_have_more_threads_than_their_kind(turns: Turns) -> None:
    threading.Thread(target=turns.door.run_overdue, daemon=True).start()
    with ThreadPoolExecutor(5) as pool:
        stuck = [pool.submit(turns.ask, f"/a/stuck/{number}") for number in range(5)]
        assert wait_until(lambda: len(turns.order) == 3, PATIENCE_SECONDS)
        turns.ask("/b/other")
        assert len(turns.order) == 4
        turns.held.set()
        answered = [one.result(PATIENCE_SECONDS) for one in stuck]
    assert wait_until(
        lambda: all(one.proto.told == [(200, b"fine")] for one in answered), PATIENCE_SECONDS
    )
    assert wait_until(lambda: next(turns.board.rows()).running == 0, PATIENCE_SECONDS)


MIB = 1 << 20


def begun(door: Door, path: str, length: int) -> Sending:
    """Have a client announce a body."""
    asked = watcher(path=path, method="PUT", headers={"content-length": str(length)})
    asked.proto = Sending()
    door(asked)
    return asked.proto  # type: ignore[no-any-return]


def reading_door() -> tuple[Door, list[tuple[Any, bytes]]]:
    """Return a door whose application reads bodies, and what it read."""
    seen: list[tuple[Any, bytes]] = []

    def application(environ: Any, start: Any) -> Iterable[bytes]:
        seen.append((environ.get("headroom.input_file"), environ["wsgi.input"].read()))
        start("200 OK", [])
        return [b"fine"]

    return door_of(application)[0], seen


@pytest.mark.parametrize(
    ("path", "mib", "is_file"), [("/on/x", 3, True), ("/on/x", 1, False), ("/x", 3, False)]
)
def test_large_body_that_is_handed_on_comes_in_a_file(path: str, mib: int, is_file: bool) -> None:
    door, seen = reading_door()
    client = begun(door, path, mib * MIB)
    for number in range(mib):
        client.comes(bytes([number]) * MIB)

    ((file, body),) = seen
    assert client.told == [(200, b"fine")]
    assert body == b"".join(bytes([number]) * MIB for number in range(mib))
    assert (file is not None) == is_file
    assert file is None or file.closed
    assert door.bodies._held_bytes == 0


def test_file_of_a_body_that_ends_early_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[IO[bytes]] = []

    def made(**options: Any) -> IO[bytes]:
        files.append(TemporaryFile(**options))  # noqa: SIM115 - closed by the door
        return files[-1]

    monkeypatch.setattr(bodies, "TemporaryFile", made)
    door, seen = reading_door()
    for ending in (lambda one: one.comes(b""), lambda _: door.bodies.give_up_slow(math.inf)):
        client = begun(door, "/on/x", 3 * MIB)
        client.comes(b"x" * MIB)
        ending(client)
        assert files[-1].closed
        assert door.bodies._held_bytes == 0
    assert (len(files), seen) == (2, [])


def test_body_that_a_file_takes_in_parts_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(io.BytesIO):
        def write(self, block: Any) -> int:
            return super().write(block[:300_000])

    monkeypatch.setattr(bodies, "TemporaryFile", lambda **_: Narrow())
    door, seen = reading_door()
    client = begun(door, "/on/x", 2 * MIB)
    client.comes(b"x" * MIB)
    client.comes(b"y" * MIB)
    assert [body for _, body in seen] == [b"x" * MIB + b"y" * MIB]


def test_body_for_which_the_disk_has_no_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError("No space left on device")

    monkeypatch.setattr(bodies, "TemporaryFile", lambda **_: Full())
    door, seen = reading_door()
    client = begun(door, "/on/x", 3 * MIB)
    with capture_logs() as logged:
        client.comes(b"x" * MIB)

    assert ([status for status, _ in client.told], seen) == ([503], [])
    assert [line["event"] for line in logged] == ["request_body_not_written"]
    assert door.bodies._held_bytes == 0


def test_bodies_beyond_the_room_for_them_are_refused_oldest_first() -> None:
    door, seen = reading_door()
    clients = [begun(door, path, 6 * MIB) for path in ("/x", "/on/x", "/x", "/on/x")]
    for client in clients:
        client.comes(b"x" * (3 * MIB))

    assert [[status for status, _ in client.told] for client in clients] == [[503], [503], [], []]
    clients[2].comes(b"x" * (2 * MIB))
    assert door.bodies._held_bytes == 8 * MIB
    clients[3].comes(b"x" * (3 * MIB))  # whole, but too much: the oldest that is not goes
    assert [status for status, _ in clients[2].told] == [503]
    assert clients[3].told == [(200, b"fine")]
    assert [len(body) for _, body in seen] == [6 * MIB]
    assert door.bodies._held_bytes == 0


def test_request_that_cannot_be_read_is_answered_and_logged() -> None:
    door, _ = door_of(None)
    broken = watcher(client="no address", headers={"content-length": "x"})
    with capture_logs() as logged:
        door(broken)

    assert [status for status, _ in broken.proto.told] == [500]
    assert [line["event"] for line in logged] == ["request_not_taken_in"]
