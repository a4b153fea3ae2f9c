"""Generations of workers: each is a process that has loaded the application and forks them from it.

Workers share the memory of what was loaded before the fork as long as none of them writes to it,
which for modules and models is most of it (ADR 41). A generation that is told to reload would keep
its code and its settings, so it is followed by another one, which loads all of that anew.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Collection
from typing import Final

from granian.log import logger

from config.launcher.processes import die_with_parent
from config.server.board import Board

READY_SECONDS: Final = 120.0
#: For a generation to end after the last of its workers did.
END_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 60.0
_ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM})
_HEARD: Final = _ENDING | {signal.SIGHUP, signal.SIGCHLD}
#: Serves with workers that are on a board, until it is told to end.
Serve = Callable[[Board], None]


class Generation:
    """One of them. It begins at once.

    Args:
        serve: What it does; it begins with signals as the operating system treats them.
        mask: Signals that it blocks.
    """

    def __init__(self, serve: Serve, mask: Collection[int]) -> None:
        self._board = Board()
        bind_to_supervisor = die_with_parent(signal.SIGTERM)

        def run() -> None:
            for signum in _ENDING:
                signal.signal(signum, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            bind_to_supervisor()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            serve(self._board)

        self._process = multiprocessing.get_context("fork").Process(name="generation", target=run)
        self._process.start()

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return self._process.is_alive()

    def serves_with(self, workers: int) -> bool:
        """Return whether so many of its workers serve."""
        return sum(row.ticked_at > 0 for row in self._board.rows()) >= workers

    def end(self, patience_seconds: float | None) -> int:
        """Have it end; return its exit status, 1 where a signal ended it.

        Args:
            patience_seconds: What its workers have for requests that run; None for ever.
        """
        self._process.terminate()
        self._process.join(None if patience_seconds is None else patience_seconds + END_SECONDS)
        if self._process.is_alive():
            logger.warning("Killing workers that did not end in time")
            self._process.kill()
            self._process.join()
        return max(0, self._process.exitcode or 0)

    def status(self) -> int:
        """Return the exit status of one that ended by itself, 1 where a signal ended it."""
        code = self._process.exitcode or 0
        return 1 if code < 0 else code


class Succession:
    """One generation after the other: at SIGHUP the next one, which serves before the last ends.

    Args:
        serve: What each generation does.
        workers: How many of its workers have to serve before the last generation is told to end.
        patience_seconds: See :meth:`Generation.end`.
    """

    def __init__(self, serve: Serve, *, workers: int, patience_seconds: float | None) -> None:
        self._serve = serve
        self._workers = workers
        self._patience_seconds = patience_seconds
        self._told: set[int] = set()
        self._mask: Collection[int] = ()

    def run(self) -> int:
        """Serve until a signal to end, or until a generation ends by itself; return the status."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        serving = self._next()
        while serving.is_alive() and not self._told & _ENDING:
            if signal.SIGHUP in self._told:
                self._told.discard(signal.SIGHUP)
                serving = self._successor(serving)
            else:
                self._hear(LOOK_SECONDS)
        if self._told & _ENDING:
            return serving.end(self._patience_seconds)
        return serving.status()

    def _next(self) -> Generation:
        return Generation(self._serve, self._mask)

    def _successor(self, old: Generation) -> Generation:
        """Return the next generation; the old one if the next does not come up."""
        logger.info("HUP signal received, starting new workers..")
        new = self._next()
        deadline = time.monotonic() + READY_SECONDS
        while not new.serves_with(self._workers):
            if self._told & _ENDING or not new.is_alive() or time.monotonic() > deadline:
                logger.error("the new workers did not come up, the old ones stay")
                new.end(0)
                return old
            self._hear(POLL_SECONDS)
        old.end(self._patience_seconds)
        return new

    def _hear(self, seconds: float) -> None:
        told = signal.sigtimedwait(_HEARD, seconds)
        if told is not None:
            self._told.add(told.si_signo)
