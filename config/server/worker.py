"""One worker process: granian's HTTP in front of :class:`~config.server.door.Door`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from granian._granian import CallbackScheduler, RSGIWorker
from granian._signals import set_sync_signals
from granian.server.common import WORKERS_METHODS
from granian.server.mp import WorkerProcess
from granian.wsgi import _build_access_logger

from config.launcher.processes import die_with_parent
from config.server.beginnings import begin_all
from config.server.board import Board, Shown
from config.server.bodies import Inline
from config.server.door import Door, Probe
from config.server.environ import environ_of
from config.server.probes import Liveness, Readiness

log = structlog.get_logger(__name__)
TICK_SECONDS = 0.25
ORPHAN_SECONDS = 30.0  # for requests that run when the supervisor has died


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """What the supervisor gives a worker along.

    Attributes:
        board: Shared by all workers.
        number: The worker's row.
        supervisor: Its process.
        workers: How many there are.
    """

    board: Board
    number: int
    supervisor: int
    workers: int


def worker_main(berth: Berth) -> Callable[..., None]:
    """Return what granian starts in the new process, in place of its own WSGI worker."""
    bind_to_supervisor = die_with_parent(signal.SIGTERM)

    def main(*arguments: Any) -> None:  # Any: granian's
        bind_to_supervisor()
        WorkerProcess.wrap_target(partial(_serve, berth))(*arguments)

    return main


def _serve(  # noqa: PLR0917 - granian's order
    berth: Berth,
    worker_id: int,
    application: Any,
    sock: Any,
    ipc: Any,
    loop: Any,
    runtime_mode: Any,
    runtime_threads: int,
    runtime_blocking_threads: int | None,
    blocking_threads: int,
    *rest: Any,
) -> None:
    """Serve until a signal; all ``Any`` are granian's own, without types."""
    idle_timeout, backpressure, _task, http_mode, http1, http2, _websockets, *last = rest
    static_path, access_format, ssl_context, _scope_options, metrics = last
    loop.close()
    begin_all()
    stopped = threading.Event()
    shutdown = set_sync_signals()
    shutdown.add_cb(stopped.set)
    worker = RSGIWorker(
        worker_id,
        sock,
        ipc,
        runtime_threads,
        runtime_blocking_threads,
        2 * blocking_threads + 1,  # for two APIs, and one is always free: see door
        idle_timeout,
        backpressure,
        http_mode,
        http1,
        http2,
        False,  # noqa: FBT003 - websockets
        static_path,
        *ssl_context,
        metrics,
    )
    door = _opened(berth, application, blocking_threads)
    scheduler = _Scheduler(Inline(), None, None, None, None)
    scheduler._schedule_fn = _logged(door, access_format) if access_format else door  # noqa: SLF001
    serve = getattr(worker, WORKERS_METHODS[runtime_mode][(sock[0] or sock[1]).is_uds()])
    serve(scheduler, Inline(), shutdown)
    stopped.wait()


class _Scheduler(CallbackScheduler):  # type: ignore[misc]  # granian's stubs do not fit
    """Granian calls ``_schedule_fn`` with each request, in one of its threads."""

    def __init__(self, *_: object) -> None:
        super().__init__()


def _opened(berth: Berth, application: Any, threads: int) -> Door:  # Any: as WSGI has it
    """Return the door of this process, with its clock running."""
    from config.server import rules  # noqa: PLC0415 - needs Django

    chosen = rules.door_rules(threads, berth.workers)
    shown = Shown(
        berth.board,
        berth.number,
        pid=os.getpid(),
        threads=chosen.most_running,
        now=time.monotonic(),
    )
    liveness = Liveness(
        berth.board, supervisor=berth.supervisor, stuck_seconds=rules.stuck_seconds()
    )
    readiness = Readiness(rules.readiness_checks)
    probes: dict[str, Probe] = {"/livez": liveness, "/healthz": liveness, "/readyz": readiness}
    door = Door(application, chosen, shown, probes)
    clock = _Clock(door=door, shown=shown, liveness=liveness, readiness=readiness)
    threading.Thread(target=clock.run, name="clock", daemon=True).start()
    threading.Thread(target=door.run_overdue, name="overdue", daemon=True).start()
    return door


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """What happens four times a second, whatever the other threads do."""

    door: Door
    shown: Shown
    liveness: Liveness
    readiness: Readiness

    def run(self) -> None:
        """Tick until the process ends."""
        orphaned_at: float | None = None
        while True:
            now = time.monotonic()
            self.shown.ticked(now)
            self.readiness.give_up_late(now)
            self.door.answer_late(now)
            self.door.close_idle_sessions(now)
            slow = self.door.bodies.give_up_slow(now)
            if slow:
                log.warning("request_bodies_too_slow", count=slow)
            if not self.liveness.has_supervisor():
                orphaned_at = now if orphaned_at is None else orphaned_at
                if now - orphaned_at > ORPHAN_SECONDS:
                    os._exit(1)
            time.sleep(TICK_SECONDS)


def _logged(door: Door, access_format: str) -> Callable[[Any], None]:  # Any: granian's
    """Return a door that writes granian's access log, at the price of a second environment."""
    write = _build_access_logger(access_format)

    def serve(watcher: Any) -> None:  # Any: granian's
        door(_Watched(watcher, write))

    return serve


class _Watched:
    """A request whose answer is logged."""

    __slots__ = ("_at", "_inner", "_write", "proto", "scope")

    def __init__(self, watcher: Any, write: Callable[..., None]) -> None:  # Any: granian's
        self._at = (time.time(), time.perf_counter())
        self._inner = watcher.proto
        self._write = write
        self.scope = watcher.scope
        self.proto = self

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer, then log."""
        self._inner.response_bytes(status, headers, body)
        self._write(*self._at, environ_of(self.scope), status)

    def __aiter__(self) -> Any:  # Any: granian's
        return self._inner.__aiter__()

    def __anext__(self) -> Any:  # Any: granian's
        return self._inner.__anext__()
