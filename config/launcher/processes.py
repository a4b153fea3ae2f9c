"""Starting, watching and stopping processes so that none outlives its owner; signals to us.

The first stop signal ends what runs, further ones must not disturb the cleaning up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_POLL_SECONDS = 0.05
_CLEAN_UP_SECONDS = 30.0
_FOREGROUND_POLL_SECONDS = 0.1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The unprivileged user that services run as when the launcher runs as root."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running process with the name people know it by and the file it logs to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


def die_with_parent(signum: int) -> Callable[[], None]:
    """Return a function that makes the new process get ``signum`` when its parent is gone.

    It runs between fork and exec (after a change of user, which would clear the setting). A shell
    lets its background jobs ignore some signals, and what is ignored stays so: ``signum`` is not.
    """
    parent = os.getpid()

    def bind() -> None:
        if signum != signal.SIGKILL:  # which nobody can ignore, nor set
            signal.signal(signum, signal.SIG_DFL)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return bind


def start_child(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    account: Account | None = None,
    death_signal: int = signal.SIGTERM,
) -> Child:
    """Start a process in its own process group, logging to ``log``, bound to this process's life.

    Args:
        name: What people call it.
        command: Program and arguments.
        log: File that its output is appended to.
        env: Its whole environment.
        cwd: Its working directory.
        account: The user it runs as; the present one when left out.
        death_signal: What it gets when this process dies without stopping it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            process_group=0,
            preexec_fn=die_with_parent(death_signal),  # noqa: PLW1509 - one prctl call, no threads
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        )
    return Child(name=name, process=process, log=log)


def stop_children(children: Iterable[Child], signals: Sequence[tuple[int, float]]) -> None:
    """Stop processes together: each signal in turn with its patience in seconds, then SIGKILL.

    Whatever is left of their process groups is killed as well.
    """
    pending = list(children)
    groups = [child.process.pid for child in pending]
    for signum, patience_seconds in signals:
        pending = [child for child in pending if child.process.poll() is None]
        for child in pending:
            child.process.send_signal(signum)
        wait_until(partial(_all_ended, pending), patience_seconds)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    for child in pending:
        child.process.wait()


def _all_ended(children: Sequence[Child]) -> bool:
    return all(child.process.poll() is not None for child in children)


def wait_until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    """Poll a condition; return whether it came true within the time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is more than a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def processes_in(directory: Path) -> tuple[int, ...]:
    """Return the processes whose working directory is ``directory``, in order of their ids.

    PostgreSQL and Redis work in their data directory, so this finds the servers that really use
    it, whatever a pid file says: its process may be gone, or its number taken by another program.
    """
    target = os.path.realpath(directory)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "cwd").readlink() == Path(target) and is_alive(int(entry.name)):
                found.append(int(entry.name))
        except OSError:  # gone meanwhile, or another user's
            continue
    return tuple(sorted(found))


def stop_processes_in(directory: Path, signals: Sequence[tuple[int, float]]) -> None:
    """Stop every process that works in ``directory``: the given signals, then SIGKILL."""
    for signum, patience_seconds in (*signals, (signal.SIGKILL, 5.0)):
        for pid in processes_in(directory):
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                continue
        if wait_until(lambda: not processes_in(directory), patience_seconds):
            return


class StopRequested(BaseException):
    """Somebody asked this process to stop.

    Attributes:
        signum: The signal that said so.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def listen_for_stop() -> None:
    """Turn the first stop signal into :class:`StopRequested`; ignore the ones after it."""

    def stop(signum: int, _frame: object) -> None:
        ignore_stop()
        raise StopRequested(signum)

    for signum in STOP_SIGNALS:
        signal.signal(signum, stop)


def ignore_stop() -> None:
    """Ignore stop signals from now on: everything left to do is bounded in time."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextmanager
def collected_stops() -> Iterator[list[int]]:
    """Collect stop signals in a list instead of raising, to pass them on to a child."""
    received: list[int] = []
    before = {
        signum: signal.signal(signum, lambda number, _: received.append(number))
        for signum in STOP_SIGNALS
    }
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


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
            time.sleep(_FOREGROUND_POLL_SECONDS)
        if process.poll() is None:
            _stop(process, received[0])
    code = process.wait()
    return 128 - code if code < 0 else code


def _stop(process: subprocess.Popen[bytes], signum: int) -> None:
    if signum != signal.SIGINT or not sys.stdin.isatty():  # a terminal told the child already
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_FOREGROUND_POLL_SECONDS)
    if process.poll() is None:
        process.kill()
