"""The supervisor: granian's, with a listening socket for each place of a worker, calm reloads.

It holds the sockets and loads nothing. A generation (:mod:`config.server.generations`) loads the
application and keeps the workers, by granian's own means.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from granian._signals import set_main_signals
from granian.log import logger
from granian.net import SocketSpec
from granian.server.mp import MPServer, WorkerProcess

from config.server.beginnings import put_off_beginnings
from config.server.board import Board
from config.server.generations import POLL_SECONDS, READY_SECONDS, Succession
from config.server.worker import Berth, worker_main


class Supervisor(MPServer):  # type: ignore[misc]  # granian's stubs do not fit
    """Holds the sockets; in a generation, which is a fork of it, starts and replaces workers.

    Each accepts from a queue that the supervisor holds, between which the kernel divides: a worker
    that ends takes no connection with it, they wait for the one that comes. One queue for all
    would be simpler; whoever wakes first then takes a whole burst (of 16 connections, 15).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # Any: granian's
        super().__init__(*arguments, **options)
        self.board = Board()
        self._queues: list[Any] = []  # granian's sockets, one for each place of a worker
        self._rows: dict[int, int] = {}  # by id of the worker object

    def _serve(
        self,
        spawn_target: Callable[..., None],
        target_loader: Callable[[], Any],  # Any: as WSGI has it
    ) -> None:
        """Be the supervisor until a signal, or until a generation gives up."""
        self.pid = os.getpid()
        logger.info("Starting granian (main PID: %d)", self.pid)
        self._write_pidfile()
        self._init_shared_socket()
        logger.info("Listening at: %s", self._bind_addr_fmt)
        succession = Succession(
            partial(self._serve_generation, spawn_target, target_loader),
            workers=self.workers,
            patience_seconds=self.workers_kill_timeout,
        )
        status = succession.run()
        self._drop_shared_socket()
        self._unlink_pidfile()
        logger.info("Granian shutdown completed, see ya!")
        if status:
            sys.exit(status)

    def _serve_generation(
        self,
        spawn_target: Callable[..., None],
        target_loader: Callable[[], Any],  # Any: as WSGI has it
        board: Board,
    ) -> None:
        """Load the application, fork the workers, watch and replace them until a signal."""
        self.board = board
        self._env_loader(self.env_files)
        self._call_hooks(self.hooks_startup)
        put_off_beginnings()
        application = target_loader()
        set_main_signals(self.signal_handler_interrupt)
        self._start_ipc()
        self._spawn_workers(spawn_target, lambda: application)
        if self.workers_lifetime is not None:
            self._watch_workers_lifetime(self.workers_lifetime)
        if self.workers_rss is not None:
            self._watch_workers_rss()
        if self.metrics_enabled:
            self._start_metrics()
        self._serve_loop(spawn_target, lambda: application)
        if self.metrics_enabled:
            self._stop_metrics()
        self._stop_workers()
        self._stop_ipc()
        self._call_hooks(self.hooks_shutdown)
        if self.interrupt_children:
            sys.exit(1)

    def _init_shared_socket(self) -> None:
        if self.bind_uds:
            super()._init_shared_socket()
            return
        self._sso = None
        spec = SocketSpec(self.bind_addr, self.bind_port, self.backlog)
        self._queues = [spec.build() for _ in range(self.workers)]

    def _spawn_worker(
        self,
        idx: int,
        target: Callable[..., None],
        callback_loader: Any,  # Any: granian's
    ) -> WorkerProcess:
        number = self.board.claim()
        if not self.bind_uds:
            self._shd = self._queues[idx]
        berth = Berth(board=self.board, number=number, supervisor=os.getpid(), workers=self.workers)
        worker = super()._spawn_worker(
            idx=idx, target=worker_main(berth), callback_loader=callback_loader
        )
        self._rows[id(worker)] = number
        return worker

    def _respawn_workers(
        self,
        workers: Sequence[int],
        spawn_target: Callable[..., None],
        target_loader: Any,  # Any: granian's
        delay: float = 0,
    ) -> None:
        """Replace workers one by one: the new one serves before the old one is told to end."""
        for idx in workers:
            if self.interrupt_signal:
                return
            self.respawned_wrks[idx] = time.monotonic()
            old = self.wrks[idx]
            new = self._spawn_worker(idx=idx, target=spawn_target, callback_loader=target_loader)
            has_old = old.is_alive()
            new.interrupt_by_parent = has_old  # else its death would end the server
            new.start()
            if has_old and not self._comes_up(new):
                logger.error("worker-%d did not come up, the old one stays", idx + 1)
                self._end(new, patience_seconds=0)
                continue
            new.interrupt_by_parent = False
            self.wrks[idx] = new
            self._end(old, self.workers_kill_timeout)
        self._metrics.incr_spawn(len(workers))

    def _comes_up(self, worker: WorkerProcess) -> bool:
        deadline = time.monotonic() + READY_SECONDS
        number = self._rows[id(worker)]
        while not self.board.is_ready(number):
            if not worker.is_alive() or self.interrupt_signal or time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _end(self, worker: WorkerProcess, patience_seconds: float | None) -> None:
        worker.terminate()
        worker.join(patience_seconds)
        if worker.is_alive():
            logger.warning("Killing worker-%d: it did not end in time", worker.idx + 1)
            worker.kill()
            worker.join()
        self.board.free(self._rows.pop(id(worker)))


def main() -> None:
    """Run the server with granian's own options and variables."""
    import multiprocessing  # noqa: PLC0415 - before granian's command line looks at it

    import granian.cli  # noqa: PLC0415 - likewise

    multiprocessing.set_start_method("fork")
    granian.cli.Server = Supervisor
    sys.exit(granian.cli.entrypoint())
