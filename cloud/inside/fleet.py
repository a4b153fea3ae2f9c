"""Run many nova-compute: fleet.py ETC LOG HOST... imports Nova once and forks a process per host.

The ids of the processes are in ``LOG/compute-HOST.pid``; all of them end with this one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_STAGGER_SECONDS = 1.0
_MOST_RETRIES = 5


def main() -> None:
    """Fork, wait, and start again what could not start."""
    etc, logs, *hosts = sys.argv[1:]
    common = ["nova-compute", "--config-file", f"{etc}/nova.conf"]
    sys.argv = list(common)
    from nova.cmd import compute  # noqa: PLC0415 - reads sys.argv, patches threading first

    children: dict[int, str] = {}
    retries = dict.fromkeys(hosts, 0)
    stopping: list[int] = []

    def spawn(host: str) -> None:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            out = os.open(
                f"{logs}/compute-{host}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
            )
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.argv = [*common, "--config-file", f"{etc}/hosts/{host}.conf"]
            os._exit(_run(compute.main))
        children[pid] = host
        Path(f"{logs}/compute-{host}.pid").write_text(str(pid), encoding="utf-8")

    def stop(_signum: int, _frame: object) -> None:
        stopping.append(1)
        for pid in list(children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    for host in hosts:
        spawn(host)
        time.sleep(_STAGGER_SECONDS)
    while children:
        pid, status = os.wait()
        host = children.pop(pid, "")
        # When all start at once the conductor may answer the first call with an error, and the
        # compute gives up. One that was stopped by a signal stays down.
        failed = os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
        if failed and not stopping and retries.get(host, _MOST_RETRIES) < _MOST_RETRIES:
            retries[host] += 1
            time.sleep(2)
            spawn(host)


def _run(service: object) -> int:
    try:
        service()  # type: ignore[operator]  # Nova has no types
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


if __name__ == "__main__":
    main()
