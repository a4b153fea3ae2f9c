"""``bench hypervisors``: Hypervisor objects followed at a real API server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from django.db import connection
from rich.console import Console

from benchmarks.bench_region import empty_database
from benchmarks.change_bench import cpu_seconds
from benchmarks.feed_bench import manage
from benchmarks.measures import ROOT, Measure, measure
from capacity.models import HostCapacity
from config.launcher.processes import wait_until
from hosts.models import Host, Instance
from tests.bridge.hypervisor_objects import object_of
from tests.bridge.hypervisor_writer import Objects
from tests.kube.programs import built
from tests.kube.server import start_api_server

FIRST_SECONDS_TARGET = 20.0
SEEN_SECONDS_TARGET = 1.0
FULL = (1_800, 48_000)
QUICK = (150, 4_000)
CHANGES = 50
WRITERS = 4
PATIENCE_SECONDS = 60.0


def run(*, is_quick: bool) -> list[Measure]:
    """Measure the first list, the same again, and single changes; targets are of the full size."""
    hosts, vms = QUICK if is_quick else FULL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = start_api_server(built(), folder)
        objects = Objects(server)
        try:
            os.environ["HEADROOM_HYPERVISORS__SYNC"] = "import"
            os.environ["HEADROOM_HYPERVISORS__KUBECONFIG"] = str(server.kubeconfig)
            os.environ["HEADROOM_HYPERVISORS__METRICS_PORT"] = "0"
            os.environ["HEADROOM_ALLOCATION_SOURCE"] = "hypervisor"
            _write_objects(objects, folder / "region.json", hosts, vms)
            return _measure(objects, f"{hosts} hosts, {vms} VMs", is_full=not is_quick)
        finally:
            objects.close()
            server.stop()


def _write_objects(objects: Objects, region: Path, hosts: int, vms: int) -> None:
    """Write the objects of a generated region, whose hosts our database then forgets."""
    Console().print(f"writing {hosts} objects")
    empty_database()
    per_host = -(-vms // hosts)
    options = ["--hosts", f"{hosts}", "--seed", "1", "--vms-per-host", f"{per_host}"]
    manage("generate_region", *options, "--commitments", "0", "--output", str(region))
    manage("import_region", str(region))
    on_host: defaultdict[int | None, list[Instance]] = defaultdict(list)
    for vm in Instance.objects.exclude(host=None):
        on_host[vm.host_id].append(vm)
    bodies = [object_of(host, on_host[host.pk]) for host in Host.objects.order_by("name")]
    objects.define()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(objects.put, bodies))
    empty_database()


def _measure(objects: Objects, label: str, *, is_full: bool) -> list[Measure]:
    def row(metric: str, figure: float, unit: str, target: float | None = None) -> Measure:
        return measure(metric, label, figure, unit, at_most=target if is_full else None)

    Console().print("first list")
    first = manage("watch_hypervisors", "--once")
    Console().print("the same again")
    steady = manage("watch_hypervisors", "--once")
    Console().print("single changes")
    with _following() as follower:
        seconds = sorted(_seen(objects, number) for number in range(CHANGES))
        spent = cpu_seconds(follower.pid)
    return [
        row("first list, with the start", first.seconds, "s", FIRST_SECONDS_TARGET),
        row("first list, our CPU", first.cpu_seconds, "s"),
        row("first list, peak memory", first.peak_gib, "GiB"),
        row("list, nothing changed, with the start", steady.seconds, "s"),
        row("list, nothing changed, our CPU", steady.cpu_seconds, "s"),
        row("one change until it is in the ledger, p50", seconds[CHANGES // 2], "s"),
        row("one change, slowest", seconds[-1], "s", SEEN_SECONDS_TARGET),
        row(f"our CPU for start, list and {CHANGES} changes", spent, "s"),
    ]


@contextmanager
def _following() -> Iterator[subprocess.Popen[bytes]]:
    command: Sequence[str] = [sys.executable, str(ROOT / "manage.py"), "watch_hypervisors"]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE hosts_feedpass SET began_at = NULL, passes = 0")
    process = subprocess.Popen(command, env=dict(os.environ))  # noqa: S603 - our own command
    try:
        _await(lambda: _passes() > 0, "nobody lists")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)


def _passes() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(max(passes), 0) FROM hosts_feedpass")
        return int(cursor.fetchone()[0])


def _seen(objects: Objects, number: int) -> float:
    """Change one object; return after how many seconds the room of its host has changed."""
    room = HostCapacity.objects.select_related("host").order_by("host__name")[number]
    vcpus = room.allocated_vcpus + 1
    taken = {"cpu": str(vcpus), "memory": str(room.allocated_memory_bytes)}
    rooms = HostCapacity.objects.filter(pk=room.pk, allocated_vcpus=vcpus)
    began = time.perf_counter()
    objects.say(room.host.name, allocation=taken)
    _await(rooms.exists, "the change was not seen")
    return time.perf_counter() - began


def _await(is_true: Callable[[], bool], otherwise: str) -> None:
    if not wait_until(is_true, PATIENCE_SECONDS):
        raise RuntimeError(otherwise)
