"""``bench invariants``: everything at once on a large region, killed now and then, then all checks.

Processes claim, change commitments, plan failover, import lists of VMs and do what tasks do, all on
one database. What must hold at every instant is looked at before, meanwhile, and after all were
stopped wherever they were; then failover ends its work, and what it owes is looked at too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from benchmarks import scale_bench
from benchmarks.measures import ROOT, Measure, measure
from benchmarks.pages_region import VMS_PER_HOST

HOSTS: Final = 30_000
QUICK_HOSTS: Final = 300
SECONDS: Final = 300.0
QUICK_SECONDS: Final = 40.0
KILLS: Final = 6
#: Role to how many processes have it.
PROCESSES: Final = {"claim": 3, "change": 1, "cover": 1, "upkeep": 1, "list": 1}
#: No part of a run takes longer than this for each 10,000 hosts, and at least.
PATIENCE_PER_10_000_HOSTS: Final = 900
LEAST_PATIENCE: Final = 600.0


@dataclass(slots=True, kw_only=True)
class Crew:
    """The processes at work.

    Attributes:
        deaths: How many were killed.
        errors: Processes that ended by themselves with an error.
    """

    folder: Path
    region: Path
    ends_at: float
    running: dict[subprocess.Popen[bytes], str] = field(default_factory=dict)
    begun: int = 0
    deaths: int = 0
    errors: list[str] = field(default_factory=list)

    def begin(self, role: str) -> None:
        """Begin a process that works until the end."""
        self.begun += 1
        left = max(0.0, self.ends_at - time.monotonic())
        told = self.folder / f"{role}-{self.begun}.json"
        process = _started(role, f"{self.begun}", str(self.region), str(told), f"{left}")
        self.running[process] = role

    def kill_one(self, draw: Random) -> None:
        """Kill a process wherever it is, and begin another in its place."""
        alive = [one for one in self.running if one.poll() is None]
        if not alive:
            return
        chosen = draw.choice(alive)
        role = self.running.pop(chosen)
        chosen.send_signal(signal.SIGKILL)
        chosen.wait()
        self.deaths += 1
        self.begin(role)

    def wait(self, seconds: float) -> None:
        """Wait until all have ended; kill those that do not in time."""
        ends = time.monotonic() + seconds
        for process, role in self.running.items():
            try:
                process.wait(max(1.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self.errors.append(f"{role} did not end")
            if process.returncode:
                self.errors.append(f"{role} ended with {process.returncode}")

    def counts(self) -> Counter[str]:
        """Return what all processes did, those that were killed included."""
        done: Counter[str] = Counter()
        for path in self.folder.glob("*.json"):
            done.update(json.loads(path.read_bytes()))
        return done


def run(*, is_quick: bool, sizes: Sequence[int] = ()) -> list[Measure]:
    """Let everything happen at once in a region of 30,000 hosts, or in those of the sizes given."""
    rows: list[Measure] = []
    for hosts in tuple(sizes) or (QUICK_HOSTS if is_quick else HOSTS,):
        rows += _everything(hosts, QUICK_SECONDS if is_quick else SECONDS)
    return rows


def _everything(hosts: int, seconds: float) -> list[Measure]:
    label = f"{hosts} hosts, {hosts * VMS_PER_HOST} VMs"
    patience = max(LEAST_PATIENCE, PATIENCE_PER_10_000_HOSTS * hosts / 10_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        region = folder / "region.json"
        scale_bench.fill(hosts, region)
        _step("settle", patience)
        rows = list(_look("before", label, patience))
        counts = folder / "counts"
        counts.mkdir()
        crew = Crew(folder=counts, region=region, ends_at=time.monotonic() + seconds)
        for role, number in PROCESSES.items():
            for _ in range(number):
                crew.begin(role)
        meanwhile = _started("look", stdout=subprocess.PIPE)
        draw = Random(hosts)  # noqa: S311 - no secret
        for _ in range(KILLS):
            time.sleep(seconds / (KILLS + 1))
            crew.kill_one(draw)
        crew.wait(patience)
        rows += _read("meanwhile", label, meanwhile, patience)
        rows += _told(crew, label)
        rows += _look("after", label, patience)
        _step("finish", patience)
        rows += _look("settled", label, patience, "settled")
    return rows


def _started(*arguments: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "benchmarks.invariants_work", *arguments],
        cwd=ROOT,
        stdout=stdout,
        env=dict(os.environ),
    )


def _step(name: str, patience: float) -> None:
    Console().print(f"  {name}")
    process = _started(name)
    if process.wait(patience):
        raise RuntimeError(f"{name} failed")


def _look(when: str, label: str, patience: float, *arguments: str) -> Iterator[Measure]:
    process = _started("look", *arguments, stdout=subprocess.PIPE)
    yield from _read(when, label, process, patience)


def _read(
    when: str, label: str, process: subprocess.Popen[bytes], patience: float
) -> Iterator[Measure]:
    Console().print(f"  look: {when}")
    told, _ = process.communicate(timeout=patience)
    if process.returncode:
        raise RuntimeError(f"the look {when} failed")
    for one in json.loads(told):
        broken = 1 if one["problem"] else 0
        if broken:
            Console().print(f"    {one['name']}: {one['problem']}", markup=False)
        words = f"{when}: {one['name']}: broken"
        size = f"{label}, {one['looked_at']} looked at"
        yield measure(words, size, broken, "", at_most=0)


def _told(crew: Crew, label: str) -> Iterator[Measure]:
    for text in crew.errors:
        Console().print(f"    {text}", markup=False)
    yield measure("processes that ended with an error", label, len(crew.errors), "", at_most=0)
    yield measure("processes that were killed at work", label, crew.deaths, "")
    for what, number in sorted(crew.counts().items()):
        yield measure(f"done: {what}", label, number, "")
