"""``./run serve worker`` without a queue: a Celery worker for each queue, ended together.

One worker would let two tasks of an hour take both of its processes, and everything else wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from config.launcher.places import Checkout
from config.launcher.processes import collected_stops, die_with_parent
from config.launcher.terminal import complain
from config.queues import LONG, SOON, STEADY

#: Processes for the tasks of each queue, unless ``--concurrency`` says otherwise.
PROCESSES = {SOON: 1, STEADY: 2, LONG: 1}
#: One of them tells the metrics of all: they count in the same directory.
SILENT = {"HEADROOM_METRICS__WORKER_PORT": "0"}
_POLL_SECONDS = 0.2


def names_queues(extra: Sequence[str]) -> bool:
    """Return whether the arguments for Celery say which queues a worker takes."""
    return _has_option(extra, "--queues", "-Q")


def worker_commands(checkout: Checkout, extra: Sequence[str]) -> dict[str, list[str]]:
    """Return the command line of the worker of each queue."""
    celery = [str(checkout.python), "-m", "celery", "-A", "config.celery_app", "worker"]
    commands = {}
    for queue, processes in PROCESSES.items():
        line = [*celery, "--loglevel", "INFO", "--queues", queue, "--concurrency", str(processes)]
        if not _has_option(extra, "--hostname", "-n"):
            line += ["--hostname", f"{queue}@%h"]
        commands[queue] = [*line, *extra]  # of an option given twice the last counts
    return commands


def run_workers(checkout: Checkout, extra: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a worker for each queue until told to end, or until one ends; return the exit status.

    A stop signal is passed on as it came: Celery lets tasks end at SIGTERM.
    """
    with collected_stops() as received:
        workers = {
            queue: subprocess.Popen(
                command,
                env={**env, **({} if queue == STEADY else SILENT)},
                cwd=checkout.root,
                preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - one prctl call
            )
            for queue, command in worker_commands(checkout, extra).items()
        }
        while not received and all(worker.poll() is None for worker in workers.values()):
            time.sleep(_POLL_SECONDS)
        asked = bool(received)
        for queue, worker in workers.items():
            if worker.poll() is not None:
                if not asked:
                    complain(f"headroom: the worker of {queue} ended: {worker.returncode}")
            elif not asked or received[0] == signal.SIGTERM:
                worker.terminate()
            else:
                worker.send_signal(received[0])
        codes = [worker.wait() for worker in workers.values()]
    return os.EX_OK if asked and not any(codes) else 1


def _has_option(extra: Sequence[str], long: str, short: str) -> bool:
    return any(word == long or word.startswith((f"{long}=", short)) for word in extra)
