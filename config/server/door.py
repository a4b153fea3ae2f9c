"""Who runs when: probes at once, requests while a thread is left, bodies when they are whole.

Granian has one thread more than requests may run at once. Whoever gets a request beyond that puts
it aside for the next thread that is done, and is free again; so there is always one to take a
request in, to take a block of a body, and to answer a probe.
"""

from __future__ import annotations

import io
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, NamedTuple, Protocol

import structlog

from config.server.board import Shown
from config.server.bodies import Bodies, BodyRules, UnreadInput, Whole
from config.server.environ import Environ, environ_of

log = structlog.get_logger(__name__)

Application = Callable[..., Any]  # Any: as WSGI has it
Probe = Callable[[Any], None]
PLAIN_TEXT = ("Content-Type", "text/plain; charset=utf-8")
CLOSE = ("Connection", "close")
NO_LENGTH = (411, "Length Required: send the body with a Content-Length")
TOO_LARGE = (413, "Content Too Large")
COME_AGAIN = 503
#: How long a refusal of a question is kept: a client that asks again at once asks once in it.
LATE_SECONDS = 1.0
#: How long a file is kept for granian to open, which takes it milliseconds.
FILE_SECONDS = 15.0
EVENTS = "text/event-stream"
#: Requests that take turns no longer do while none of them has ended for so long.
STILL_SECONDS = 0.005
MOST_LATE = 64  # each occupies a connection; more are answered at once


class Lender(Protocol):
    """Lends each request a database session (:mod:`core.sessions`)."""

    def lend(self) -> None:
        """Give this thread one."""

    def take_back(self) -> None:
        """Take that of this thread."""

    def close_idle(self, now: float) -> None:
        """End those that nobody needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorRules:
    """What the settings say.

    Attributes:
        most_running: Requests that run at once.
        most_of_kind: Those of one kind that run at once.
        kind_of: The kind of a path; few kinds, since each has a queue.
        limit_bytes: Longest body of a path.
        hands_on: Whether bodies of a path are handed on as they are: large ones lie in files.
        refuses_unread: Whether the application refuses bodies by their head, on a path.
        is_question: Whether a path answers questions that take long.
        takes_turn: Whether a request, by method and path, is one of those that run one after the
            other as long as each is quick.
        turns: How many of these run at once.
        bodies: How bodies may come.
        sessions: What requests run with; None where they need nothing.
    """

    most_running: int
    most_of_kind: int
    kind_of: Callable[[str], str]
    limit_bytes: Callable[[str], int]
    hands_on: Callable[[str], bool]
    refuses_unread: Callable[[str], bool]
    is_question: Callable[[str], bool]
    takes_turn: Callable[[str, str], bool]
    turns: int
    bodies: BodyRules
    sessions: Lender | None = None


def refuse(proto: Any, status: int, text: str) -> None:  # Any: granian's
    """Answer a request that does not run."""
    headers = [PLAIN_TEXT, CLOSE]
    if status == COME_AGAIN:
        headers.append(("Retry-After", "1"))
    proto.response_bytes(status, headers, text.encode())


class FileBody:
    """A body in a file, which an application may answer with: granian reads and sends it by itself.

    Granian opens it a little later, when this thread is long done with it; the file has no other
    name than the number that this process knows it by, so that nothing is left of it after a crash.
    """

    def __init__(self, file: Any, _block_bytes: int = 0) -> None:  # Any: whatever is open
        file.flush()
        self._file = file
        self.path = f"/proc/self/fd/{file.fileno()}"

    def close(self) -> None:
        """Forget it; who has it open still has it."""
        self._file.close()


def _is_stream(headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether what has come of an answer is of use before the rest."""
    for name, text in headers:  # noqa: SIM110 - an expression takes longer, for each answer
        if text.startswith(EVENTS) and name.lower() == "content-type":
            return True
    return False


def _stream(transport: Any, parts: Iterable[bytes]) -> None:  # Any: granian's
    """Send each part of an answer when it is there, until the client has gone."""
    for part in parts:
        try:
            transport.send_bytes(part)  # granian keeps it until it is taken
        except Exception:  # noqa: BLE001 - granian's own, without a type here
            return


class _Head:
    """What an application says of its answer before the answer."""

    __slots__ = ("headers", "status")

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[str, str]] = []

    def __call__(
        self, status: str, headers: list[tuple[str, str]], exc_info: object = None
    ) -> None:
        self.status = int(status[:3])
        self.headers = headers


class _Request(NamedTuple):
    """A request whose body is there.

    Attributes:
        takes_turn: Whether it is one of those that run one after the other.
        file: Has the body, if memory has not.
    """

    proto: Any  # granian's, without types
    environ: Environ
    body_bytes: int
    kind: str
    takes_turn: bool
    file: IO[bytes] | None


class _Threads:
    """Which requests run; the others wait, the oldest of a kind that may run goes first.

    Requests of one kind never have all threads, so what one kind waits for, such as a locked
    table, does not hold up the others. Those that take turns run few at once (ADR 43), unless these
    stand still: one that waits for a lock holds up the others for a moment only.
    """

    def __init__(self, rules: DoorRules, shown: Shown) -> None:
        self._most, self._most_of_kind = rules.most_running, rules.most_of_kind
        self._turns = rules.turns
        self._shown = shown
        self._lock = threading.Lock()
        self._running = 0
        self._running_of: Counter[str] = Counter()
        self._turns_taken = 0
        self._moved_at = 0.0  # when a turn began or ended
        self._waiting: dict[tuple[str, bool], deque[tuple[int, _Request]]] = defaultdict(deque)
        self._number = 0
        self._awaits_turn = threading.Event()

    def take(self, request: _Request) -> bool:
        """Return whether a request runs now; else it is put aside."""
        kind = request.kind
        with self._lock:
            if not self._may_run(kind, takes_turn=request.takes_turn):
                self._number += 1
                self._waiting[kind, request.takes_turn].append((self._number, request))
                if request.takes_turn and not self._awaits_turn.is_set():
                    self._awaits_turn.set()
                return False
            self._running += 1
            self._begin(request)
            if self._running == self._most:
                self._shown.moved(self._running, time.monotonic())
            return True

    def done(self, request: _Request) -> _Request | None:
        """Return the request that runs next in a thread that is done with another."""
        with self._lock:
            now = time.monotonic()
            self._running_of[request.kind] -= 1
            if request.takes_turn:
                self._turns_taken -= 1
                self._moved_at = now
            found = self._oldest()
            if found is None:
                self._running -= 1
            else:
                self._begin(found)
            self._shown.moved(self._running, now)
            return found

    def overdue(self) -> list[_Request]:
        """Wait for requests that wait for a turn while none ends; return those that run now."""
        self._awaits_turn.wait()
        time.sleep(STILL_SECONDS)
        found = []
        with self._lock:
            waiting = [queue for (_, takes_turn), queue in self._waiting.items() if takes_turn]
            if not any(waiting):
                self._awaits_turn.clear()
            if self._stand_still():
                for queue in waiting:
                    while queue and self._has_room(queue[0][1].kind):
                        request = queue.popleft()[1]
                        self._running += 1
                        self._begin(request)
                        found.append(request)
        return found

    def _begin(self, request: _Request) -> None:
        self._running_of[request.kind] += 1
        if request.takes_turn:
            if self._turns_taken < self._turns:
                self._moved_at = time.monotonic()
            self._turns_taken += 1

    def _has_room(self, kind: str) -> bool:
        return self._running < self._most and self._running_of[kind] < self._most_of_kind

    def _may_run(self, kind: str, *, takes_turn: bool) -> bool:
        if not self._has_room(kind):
            return False
        return not takes_turn or self._turns_taken < self._turns or self._stand_still()

    def _stand_still(self) -> bool:
        return time.monotonic() - self._moved_at > STILL_SECONDS

    def _oldest(self) -> _Request | None:
        """Return the oldest request that may run in the place of one that is done."""
        queues = [
            queue
            for (kind, takes_turn), queue in self._waiting.items()
            if queue
            and self._running_of[kind] < self._most_of_kind
            and (not takes_turn or self._turns_taken < self._turns)
        ]
        if not queues:
            return None
        return min(queues, key=lambda queue: queue[0][0]).popleft()[1]


class Door:
    """Takes granian's requests of one process to the application."""

    def __init__(
        self,
        application: Application,
        rules: DoorRules,
        shown: Shown,
        probes: Mapping[str, Probe],
    ) -> None:
        self._application = application
        self._rules = rules
        self._threads = _Threads(rules, shown)
        self._probes = probes
        self._late: deque[tuple[float, Callable[[], None]]] = deque()
        self._files: deque[tuple[float, FileBody]] = deque()
        self.bodies = Bodies(rules.bodies, refuse)

    def __call__(self, watcher: Any) -> None:  # Any: granian's
        """Take a request in."""
        try:
            self._admit(watcher.scope, watcher.proto)
        except BaseException:  # whatever it is: granian leaves a client without an answer for ever
            log.exception("request_not_taken_in", method=watcher.scope.method)
            watcher.proto.response_bytes(500, [PLAIN_TEXT, CLOSE], b"Internal server error")

    def answer_late(self, now: float) -> None:
        """Send the answers that were kept long enough; one thread calls this."""
        while self._late and self._late[0][0] <= now:
            self._late.popleft()[1]()
        while self._files and self._files[0][0] <= now:
            self._files.popleft()[1].close()

    def close_idle_sessions(self, now: float) -> None:
        """End the database sessions that no request needed for long; one thread calls this."""
        if self._rules.sessions is not None:
            self._rules.sessions.close_idle(now)

    def _admit(self, scope: Any, proto: Any) -> None:  # Any: granian's
        probe = self._probes.get(scope.path)
        if probe is not None and scope.method in {"GET", "HEAD"}:
            probe(proto)
            return
        environ = environ_of(scope)
        environ["headroom.file_body"] = FileBody
        path = environ["PATH_INFO"]
        is_chunked = "HTTP_TRANSFER_ENCODING" in environ
        length_bytes = int(environ.get("CONTENT_LENGTH", "0"))
        if not is_chunked and not length_bytes:
            environ["wsgi.input"] = io.BytesIO()
        elif not is_chunked and length_bytes <= self._rules.limit_bytes(path):
            self._read(proto, environ, length_bytes)
            return
        elif self._rules.refuses_unread(path):  # each API in its own shape
            environ["wsgi.input"] = UnreadInput()
        else:
            refuse(proto, *(NO_LENGTH if is_chunked else TOO_LARGE))
            return
        self._run_or_wait(proto, environ, 0)

    def _read(self, proto: Any, environ: Environ, length_bytes: int) -> None:  # Any: granian's
        def complete(body: Whole) -> None:
            if isinstance(body, bytes):
                environ["wsgi.input"] = io.BytesIO(body)
                self._run_or_wait(proto, environ, len(body))
            else:
                environ["wsgi.input"] = environ["headroom.input_file"] = body
                self._run_or_wait(proto, environ, length_bytes, body)

        spools = self._rules.hands_on(environ["PATH_INFO"])
        self.bodies.read(proto, length_bytes, complete, spools=spools)

    def _run_or_wait(
        self,
        proto: Any,  # granian's, without types
        environ: Environ,
        body_bytes: int,
        file: IO[bytes] | None = None,
    ) -> None:
        request = _Request(
            proto=proto,
            environ=environ,
            body_bytes=body_bytes,
            kind=self._rules.kind_of(environ["PATH_INFO"]),
            takes_turn=self._rules.takes_turn(environ["REQUEST_METHOD"], environ["PATH_INFO"]),
            file=file,
        )
        if self._threads.take(request):
            self._run_on(request)

    def run_overdue(self) -> None:
        """Run what waits for a turn while none ends, for ever; one thread does this."""
        while True:
            for request in self._threads.overdue():
                threading.Thread(target=self._run_on, args=[request], daemon=True).start()

    def _run_on(self, request: _Request) -> None:
        """Run a request, then those that waited, as long as there are any."""
        running: _Request | None = request
        while running is not None:
            self._run_with_session(running.proto, running.environ)
            if running.body_bytes:
                self.bodies.release(running.body_bytes)
            if running.file is not None:
                running.file.close()
            running = self._threads.done(running)

    def _is_kept(self, path: str) -> bool:
        """Return whether a refusal waits, without a thread: it runs through all of Django."""
        return len(self._late) < MOST_LATE and self._rules.is_question(path)

    def _run_with_session(self, proto: Any, environ: Environ) -> None:  # Any: granian's
        sessions = self._rules.sessions
        if sessions is None:
            self._run(proto, environ)
            return
        sessions.lend()
        try:
            self._run(proto, environ)
        finally:
            sessions.take_back()

    def _run(self, proto: Any, environ: Environ) -> None:  # Any: granian's
        head = _Head()
        try:
            answer = self._application(environ, head)
            if isinstance(answer, FileBody):
                self._files.append((time.monotonic() + FILE_SECONDS, answer))
                proto.response_file(head.status, head.headers, answer.path)
                return
            try:
                if _is_stream(head.headers):
                    _stream(proto.response_stream(head.status, head.headers), answer)
                    return
                send = partial(proto.response_bytes, head.status, head.headers, b"".join(answer))
                if head.status == COME_AGAIN and self._is_kept(environ["PATH_INFO"]):
                    self._late.append((time.monotonic() + LATE_SECONDS, send))
                else:
                    send()
            finally:
                if hasattr(answer, "close"):
                    answer.close()
        except BaseException:  # SystemExit as well: the thread would be counted as busy for ever
            log.exception("request_crashed", method=environ["REQUEST_METHOD"])
            proto.response_bytes(500, [PLAIN_TEXT], b"Internal server error")
