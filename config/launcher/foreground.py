"""Running a command in the terminal of ``./run`` (pytest, manage.py) and passing signals on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from config.launcher.interrupts import collected_stops
from config.launcher.processes import die_with_parent

_CLEAN_UP_SECONDS = 30.0
_POLL_SECONDS = 0.1


def run_in_foreground(command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> int:
    """Run a command to its end and return its exit status, shell style for signals (128 + n).

    It shares our terminal, so Ctrl-C reaches it directly. A stop signal meant for us is passed on
    as SIGINT, which Python programs answer by cleaning up; then it has half a minute.

    Args:
        command: Program and arguments.
        env: Its whole environment.
        cwd: Its working directory.
    """
    with collected_stops() as received:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            preexec_fn=die_with_parent(signal.SIGINT),  # noqa: PLW1509 - one prctl call, no threads
        )
        while not received and process.poll() is None:
            time.sleep(_POLL_SECONDS)
        if process.poll() is None:
            _stop(process, received[0])
    code = process.wait()
    return 128 - code if code < 0 else code


def _stop(process: subprocess.Popen[bytes], signum: int) -> None:
    if signum != signal.SIGINT or not sys.stdin.isatty():  # a terminal told the child already
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if process.poll() is None:
        process.kill()
