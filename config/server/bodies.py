"""Reading bodies without holding a thread: each is with granian until its last byte is there.

A body that comes slower than the rate, or announces more than its path may have, never reaches a
thread. All bodies on their way in have one bound; when it is reached, the oldest goes. A large one
that is only handed on lies in a file, so that it is never whole in memory.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any

import structlog

log = structlog.get_logger(__name__)

#: A body that announces more than this goes to a file, on paths that hand bodies on.
SPOOLED_BEYOND_BYTES = 1 << 20
#: Answers a request that never reaches a thread: granian's end of it, status, text.
Refuse = Callable[[Any, int, str], None]
TIMEOUT = (408, "Request Timeout: the body came too slowly")
TOO_MANY = (503, "Service Unavailable: too many bodies at once")
NO_ROOM = (503, "Service Unavailable: no room for the body")
#: A body that is there: in memory, or in a file at its beginning, which its last user closes.
Whole = bytes | IO[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRules:
    """How bodies may come.

    Attributes:
        grace_seconds: Time that is given whatever the size.
        bytes_per_second: Rate below which a body is given up after that.
        most_bytes: Room for all bodies that are read or wait for a thread, in files as well.
    """

    grace_seconds: float
    bytes_per_second: float
    most_bytes: int


class Inline:
    """What granian takes for its event loop: what is called soon is called at once.

    A block of a body that has come is delivered by one of granian's threads, which goes on with
    it. There is no event loop in between.
    """

    def call_soon(
        self, callback: Callable[..., object], *arguments: object, context: object = None
    ) -> None:
        """Call it."""
        callback(*arguments)

    call_soon_threadsafe = call_soon


class UnreadInput(io.RawIOBase):
    """The input of a request whose body is not read: too large, or of unknown length.

    Views refuse such a request by its headers, each family in its own shape.
    """

    def readable(self) -> bool:
        """Say yes; the attempt tells."""
        return True

    def readinto(self, buffer: Any) -> int:  # Any: a writable buffer
        """Refuse.

        Raises:
            OSError: always.
        """
        raise OSError("the body was not read")


@dataclass(eq=False, slots=True, kw_only=True)
class Body:
    """A body on its way in.

    Attributes:
        proto: Granian's end of the request.
        length_bytes: What was announced.
        started_at: Monotonic seconds.
        complete: Called with the body, in one of granian's threads.
        file: Takes the body instead of memory.
        is_written: Whether a thread writes to the file, and closes it if the body is over by then.
    """

    proto: Any  # granian's, without types
    length_bytes: int
    started_at: float
    complete: Callable[[Whole], None]
    file: IO[bytes] | None = None
    is_written: bool = False
    received_bytes: int = 0
    blocks: list[bytes] = field(default_factory=list)
    pending: Any = None  # granian's future of the next block
    is_over: bool = False


class Bodies:
    """The bodies on their way into one process."""

    def __init__(self, rules: BodyRules, refuse: Refuse) -> None:
        self._rules = rules
        self._refuse = refuse
        self._lock = threading.Lock()
        self._open: dict[Body, None] = {}  # oldest first
        self._held_bytes = 0

    def read(
        self,
        proto: Any,  # granian's, without types
        length_bytes: int,
        complete: Callable[[Whole], None],
        *,
        spools: bool = False,
    ) -> None:
        """Read a body and call ``complete``, or refuse it; returns at once.

        Args:
            proto: Granian's end of the request.
            length_bytes: What the request announced, more than 0.
            complete: Takes the body; it must call :meth:`release` once it is done with it.
            spools: Whether a large one goes to a file.
        """
        body = Body(
            proto=proto,
            length_bytes=length_bytes,
            started_at=time.monotonic(),
            complete=complete,
            file=_file() if spools and length_bytes > SPOOLED_BEYOND_BYTES else None,
        )
        with self._lock:
            self._open[body] = None
        proto.__aiter__()
        self._await_block(body)

    def release(self, body_bytes: int) -> None:
        """Give back the room of a body."""
        with self._lock:
            self._held_bytes -= body_bytes

    def give_up_slow(self, now: float) -> int:
        """Refuse every body that comes too slowly; return how many."""
        rules = self._rules
        with self._lock:
            slow = [
                body
                for body in self._open
                if now - body.started_at
                > rules.grace_seconds + body.received_bytes / rules.bytes_per_second
            ]
        return sum(self._end(body, TIMEOUT) for body in slow)

    def _await_block(self, body: Body) -> None:
        while not body.is_over:
            pending = body.proto.__anext__()
            if not pending.done():
                body.pending = pending
                pending.add_done_callback(lambda future: self._on_block(body, future))
                if body.is_over:  # given up meanwhile, by one who did not see what is pending
                    pending.cancel()
                return
            if not self._take(body, pending):
                return

    def _on_block(self, body: Body, future: Any) -> None:  # Any: granian's
        body.pending = None  # a circle through granian's object would never be collected
        if not future.cancelled() and self._take(body, future):
            self._await_block(body)

    def _take(self, body: Body, future: Any) -> bool:  # Any: granian's
        """Take a block; return whether more is to come."""
        block = future.result()
        if not block:  # the end, or the client has gone: granian does not tell which
            self._end(body, None)
            return False
        if body.file is not None and not self._write(body, body.file, block):
            return False
        with self._lock:
            if body.is_over:
                return False
            if body.file is None:
                body.blocks.append(block)
            body.received_bytes += len(block)
            self._held_bytes += len(block)
            is_whole = body.received_bytes >= body.length_bytes
            if is_whole:
                body.is_over = True
                del self._open[body]
            oldest = None
            if self._held_bytes > self._rules.most_bytes:
                oldest = next(iter(self._open), None)
        if oldest is not None:
            self._end(oldest, TOO_MANY)
        if is_whole:
            body.complete(_whole(body))
        return not body.is_over

    def _write(self, body: Body, file: IO[bytes], block: bytes) -> bool:
        """Write a block to the file of a body; return whether the body goes on."""
        with self._lock:
            if body.is_over:
                return False
            body.is_written = True
        left = memoryview(block)
        try:
            while left:
                left = left[file.write(left) :]  # a disk that is nearly full takes a part
        except OSError as error:
            log.warning("request_body_not_written", error=str(error))
            self._end(body, NO_ROOM)
        with self._lock:
            body.is_written = False
            if body.is_over:
                file.close()
            return not body.is_over

    def _end(self, body: Body, answer: tuple[int, str] | None) -> bool:
        """Stop reading; return whether it was this call that did."""
        with self._lock:
            if body.is_over:
                return False
            body.is_over = True
            del self._open[body]
            self._held_bytes -= body.received_bytes
            body.blocks.clear()
            if body.file is not None and not body.is_written:
                body.file.close()
        if answer is not None:
            self._refuse(body.proto, *answer)
        pending, body.pending = body.pending, None
        if pending is not None:
            pending.cancel()
        return True


def _file() -> IO[bytes] | None:
    """Return a file without a name; nothing where none can be made."""
    try:
        return TemporaryFile(buffering=0)
    except OSError as error:
        log.warning("request_body_in_memory", error=str(error))
        return None


def _whole(body: Body) -> Whole:
    if body.file is not None:
        body.file.seek(0)
        return body.file
    return body.blocks[0] if len(body.blocks) == 1 else b"".join(body.blocks)
