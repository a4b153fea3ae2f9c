"""``bench feed``: reading a live cloud, served by a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks.bench_region import empty_database
from benchmarks.feed_server import serving
from benchmarks.measures import ROOT, Measure, measure
from hosts.models import Instance

FIRST_SECONDS_TARGET = 180.0
FIRST_GIB_TARGET = 1.0
STEADY_CPU_TARGET = 15.0
SEEN_SECONDS_TARGET = 5.0
VMS_PER_HOST = 20
CLOUD = "bench"


class Taken(NamedTuple):
    """What a command took.

    Attributes:
        cpu_seconds: Its own, without the database and the cloud.
    """

    seconds: float
    cpu_seconds: float
    peak_gib: float


def run(*, is_quick: bool) -> list[Measure]:
    """Measure the first passes, the same again, and a change; targets are of the full size."""
    size = 300 if is_quick else 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        region = folder / "region.json"
        Console().print(f"generating {size} hosts")
        options = ["--hosts", f"{size}", "--seed", "1", "--vms-per-host", f"{VMS_PER_HOST}"]
        _manage("generate_region", *options, "--commitments", "0", "--output", str(region))
        os.environ["OS_CLIENT_CONFIG_FILE"] = str(folder / "clouds.yaml")
        with serving(region, folder) as cloud:
            return _measure(cloud, size, is_full=not is_quick)


def _measure(cloud: subprocess.Popen[str], size: int, *, is_full: bool) -> list[Measure]:
    label = f"{size} hosts, {size * VMS_PER_HOST} VMs"

    def row(metric: str, figure: float, unit: str, target: float | None = None) -> Measure:
        return measure(metric, label, figure, unit, at_most=target if is_full else None)

    empty_database()
    Console().print("first passes")
    first = _manage("sync_nova", "--cloud", CLOUD)
    Console().print("passes over the same again")
    steady = _manage("sync_nova", "--cloud", CLOUD)
    Console().print("one server moves")
    moved = Instance.objects.exclude(host=None).order_by("pk")[0]
    _tell(cloud, moved.openstack_id)
    changes = _manage("sync_nova", "--cloud", CLOUD, "--kind", "changes")
    before, moved_to = moved.host_id, Instance.objects.get(pk=moved.pk).host_id
    if before == moved_to:
        message = "the move was not seen"
        raise RuntimeError(message)
    return [
        row("first passes", first.seconds, "s", FIRST_SECONDS_TARGET),
        row("first passes, our CPU", first.cpu_seconds, "s"),
        row("first passes, peak memory", first.peak_gib, "GiB", FIRST_GIB_TARGET),
        row("full passes, nothing changed", steady.seconds, "s"),
        row("full passes, nothing changed, our CPU", steady.cpu_seconds, "s", STEADY_CPU_TARGET),
        row("full passes, nothing changed, peak memory", steady.peak_gib, "GiB"),
        row("one changed server, with the start", changes.seconds, "s", SEEN_SECONDS_TARGET),
    ]


def _tell(cloud: subprocess.Popen[str], server_id: str) -> None:
    if cloud.stdin is None or cloud.stdout is None:
        message = "the cloud cannot be told"
        raise RuntimeError(message)
    cloud.stdin.write(f"{server_id}\n")
    cloud.stdin.flush()
    cloud.stdout.readline()


def _manage(*arguments: str) -> Taken:
    """Run a management command; return what it took."""
    before = time.perf_counter()
    command: Sequence[str] = [sys.executable, str(ROOT / "manage.py"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ))  # noqa: S603 - our own command
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        message = f"manage.py {' '.join(arguments)} failed"
        raise RuntimeError(message)
    seconds = time.perf_counter() - before
    return Taken(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 20))
