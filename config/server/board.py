"""What the workers of one web server show each other: a row each, in memory that they share."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ROW = struct.Struct("=qqqdd")
_BYTES = 64  # a cache line, so that rows of busy workers do not disturb each other
ROWS = 64  # workers alive at once, those of a reload included


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a worker last showed.

    Attributes:
        pid: Its process, 0 if the row is free.
        running: Requests that threads are busy with.
        threads: How many that can be.
        moved_at: When a thread last finished or was idle, monotonic seconds.
        ticked_at: When its clock last ticked, likewise; 0 before it serves.
    """

    pid: int
    running: int
    threads: int
    moved_at: float
    ticked_at: float

    def trouble(self, now: float, limit_seconds: float) -> str:
        """Say why this worker counts as stuck, or nothing. Busy alone is not stuck."""
        if not self.ticked_at:
            return ""
        if self.running >= self.threads and now - self.moved_at > limit_seconds:
            return f"worker {self.pid}: no thread has finished for {now - self.moved_at:.0f} s"
        if now - self.ticked_at > limit_seconds:
            return f"worker {self.pid}: stands still for {now - self.ticked_at:.0f} s"
        return ""


class Board:
    """The rows. Made before the first fork; each worker writes its own row only."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ROWS * _BYTES)

    def claim(self) -> int:
        """Return the number of a free row, for a worker about to start.

        Raises:
            RuntimeError: there are more workers than rows.
        """
        for number in range(ROWS):
            if not self.row(number).pid:
                self.write(number, Row(pid=-1, running=0, threads=0, moved_at=0, ticked_at=0))
                return number
        raise RuntimeError(f"more than {ROWS} workers")

    def free(self, number: int) -> None:
        """Take back the row of a worker that has ended."""
        self.write(number, Row(pid=0, running=0, threads=0, moved_at=0, ticked_at=0))

    def row(self, number: int) -> Row:
        """Return a row."""
        pid, running, threads, moved_at, ticked_at = _ROW.unpack_from(self._memory, number * _BYTES)
        return Row(
            pid=pid, running=running, threads=threads, moved_at=moved_at, ticked_at=ticked_at
        )

    def rows(self) -> Iterator[Row]:
        """Yield the rows that workers hold."""
        for number in range(ROWS):
            row = self.row(number)
            if row.pid:
                yield row

    def write(self, number: int, row: Row) -> None:
        """Write a whole row."""
        _ROW.pack_into(
            self._memory,
            number * _BYTES,
            row.pid,
            row.running,
            row.threads,
            row.moved_at,
            row.ticked_at,
        )

    def is_ready(self, number: int) -> bool:
        """Return whether the worker of a row serves."""
        return self.row(number).ticked_at > 0


class Shown:
    """A worker's own row, kept up to date at the price of one write a request."""

    __slots__ = ("_memory", "_offset")

    def __init__(self, board: Board, number: int, *, pid: int, threads: int, now: float) -> None:
        board.write(number, Row(pid=pid, running=0, threads=threads, moved_at=now, ticked_at=0))
        self._memory = board._memory  # noqa: SLF001 - its other half
        self._offset = number * _BYTES

    def moved(self, running: int, now: float) -> None:
        """Note that a thread has finished, or that one was idle until now."""
        _RUNNING.pack_into(self._memory, self._offset + 8, running)
        _MOMENT.pack_into(self._memory, self._offset + 24, now)

    def ticked(self, now: float) -> None:
        """Note that the process runs."""
        _MOMENT.pack_into(self._memory, self._offset + 32, now)


_RUNNING = struct.Struct("=q")
_MOMENT = struct.Struct("=d")
