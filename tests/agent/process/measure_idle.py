"""Measures what an idle agent costs.

``PYTHONPATH=clients/agent python -m tests.agent.process.measure_idle [SECONDS]``

The agent is a process of its own on this host, with heartbeats, held polls and reports as they are
by default, against a server of its wire in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.agent.process.served import Headroom, Run, served, until

AGENT = Path(__file__).resolve().parents[3] / "clients/agent"
MAIN = "import sys; from headroom_host_agent.cli import main; sys.exit(main())"
WARM_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a process took; the share is of one core."""

    core_share: float
    peak_mib: float
    now_mib: float


def cost_of(pid: int, seconds: float) -> Cost:
    """Return what a process takes in so many seconds, by the kernel's counters."""
    began, before = time.monotonic(), _cpu_seconds(pid)
    time.sleep(seconds)
    share = (_cpu_seconds(pid) - before) / (time.monotonic() - began)
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    peak, now = (int(status[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS"))
    return Cost(core_share=share, peak_mib=peak, now_mib=now)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(seconds: float) -> Cost:
    """Return the cost of an agent that has nothing to do."""
    headroom = Headroom()
    headroom.heartbeat_seconds = 10.0
    with tempfile.TemporaryDirectory() as folder, served(headroom) as url:
        run = Run(Path(folder), url, headroom)
        run.agent.parts.store.close()
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-c", MAIN, "run"],
            env={
                "PYTHONPATH": str(AGENT),
                "MALLOC_ARENA_MAX": "1",  # as the unit has it
                "PYTHONOPTIMIZE": "2",
                "HEADROOM_AGENT__SERVER__URL": url,
                "HEADROOM_AGENT__DATA_DIR": str(run.folder),
                "HEADROOM_AGENT__CAPACITY__NETWORK": "10Gbps",
            },
        )
        try:
            until(lambda: headroom.kept.get("/resources"), "a report")
            time.sleep(WARM_SECONDS)
            return cost_of(process.pid, seconds)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    found = measure(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0)
    sys.stdout.write(
        f"{found.core_share:.3%} of a core, {found.now_mib:.1f} MiB, at most {found.peak_mib:.1f}\n"
    )
