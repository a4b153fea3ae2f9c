"""``bench feed``: reading a live cloud, served by a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import orjson
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import setup_test_environment
from rich.console import Console

from benchmarks.bench_region import TOKEN, empty_database, make_group, with_token
from benchmarks.change_bench import change_body, cpu_seconds, timed_change
from benchmarks.feed_server import serving
from benchmarks.measures import ROOT, Measure, measure, percentile
from capacity.models import FlavorGroupSnapshot, HostCapacity
from hosts.clients.cloud import OpenStackCloud
from hosts.domain.notifications import Hint
from hosts.feed.hints import note_hints
from hosts.feed.lists import PassKind
from hosts.feed.passes import run_pass
from hosts.models import Host, Instance
from journal.actors import Actor
from journal.statements import fetch_value
from tests.process_tables import reset_host_table

FIRST_SECONDS_TARGET = 180.0
FIRST_GIB_TARGET = 1.0
STEADY_CPU_TARGET = 15.0
POLLED_SECONDS_TARGET = 5.0
HINTED_SECONDS_TARGET = 1.0
WAIT_MS_TARGET = 100.0
LOOKS = 10
SAMPLE_SECONDS = 0.002
VMS_PER_HOST = 20
#: How long the listener gathers hints, before a worker is asked to look.
GATHER_SECONDS = 0.1
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
        manage("generate_region", *options, "--commitments", "0", "--output", str(region))
        os.environ["OS_CLIENT_CONFIG_FILE"] = str(folder / "clouds.yaml")
        with serving(region, folder) as cloud:
            return _measure(cloud, size, is_full=not is_quick)


def _measure(cloud: subprocess.Popen[str], size: int, *, is_full: bool) -> list[Measure]:
    label = f"{size} hosts, {size * VMS_PER_HOST} VMs"

    def row(metric: str, figure: float, unit: str, target: float | None = None) -> Measure:
        return measure(metric, label, figure, unit, at_most=target if is_full else None)

    empty_database()
    Console().print("first passes")
    served_before = cpu_seconds(cloud.pid)
    first = manage("sync_nova", "--cloud", CLOUD)
    served = cpu_seconds(cloud.pid) - served_before
    Console().print("passes over the same again")
    steady = manage("sync_nova", "--cloud", CLOUD)
    Console().print("servers move")
    polled, hinted = _looks(cloud)
    Console().print("commitments beside a first pass over servers")
    waits, answers = _changes_beside()
    interval = settings.HEADROOM.feed.changes_interval_seconds
    return [
        row("first passes", first.seconds, "s", FIRST_SECONDS_TARGET),
        row("first passes, our CPU", first.cpu_seconds, "s"),
        row("first passes, CPU of the pretended cloud", served, "s"),
        row("first passes, peak memory", first.peak_gib, "GiB", FIRST_GIB_TARGET),
        row("full passes, nothing changed", steady.seconds, "s"),
        row("full passes, nothing changed, our CPU", steady.cpu_seconds, "s", STEADY_CPU_TARGET),
        row("full passes, nothing changed, peak memory", steady.peak_gib, "GiB"),
        row("one changed server in the ledger, a look", percentile(polled, 0.5), "s"),
        row(
            "one changed server in the ledger, by polling, at most",
            interval + max(polled),
            "s",
            POLLED_SECONDS_TARGET,
        ),
        row(
            "one changed server in the ledger, by a hint",
            GATHER_SECONDS + max(hinted),
            "s",
            HINTED_SECONDS_TARGET,
        ),
        row("batch of commitments beside it, wait for locks p99", waits, "ms", WAIT_MS_TARGET),
        row("batch of commitments beside it, answer p50", answers, "ms"),
    ]


def _looks(cloud: subprocess.Popen[str]) -> tuple[list[float], list[float]]:
    """Return the seconds from a change until rooms follow, of looks without and with a hint."""
    reader = OpenStackCloud(CLOUD, timeout_seconds=settings.HEADROOM.feed.timeout_seconds)
    taken: tuple[list[float], list[float]] = ([], [])
    vms = Instance.objects.exclude(host=None).order_by("pk")[: 2 * LOOKS + 1]
    for number, vm in enumerate(vms):
        left = Host.objects.get(instances=vm)
        _tell(cloud, vm.openstack_id)
        allocated = HostCapacity.objects.values_list("allocated_memory_bytes", flat=True)
        before = allocated.get(host=left)
        began = time.perf_counter()
        if number % 2:
            note_hints([Hint(kind=PassKind.SERVERS, object_id=vm.openstack_id)])
        run_pass(PassKind.CHANGES, cloud=reader, actor=Actor(name="bench"), request_id="req-bench")
        if number:  # the first opens connections
            taken[number % 2].append(time.perf_counter() - began)
        if allocated.get(host=left) != before - vm.memory_bytes:
            message = "the move was not seen"
            raise RuntimeError(message)
    return taken


def _changes_beside() -> tuple[float, float]:
    """Change commitments while VMs are read for the first time.

    Returns:
        The 99th percentile of what a request waits for locks, the median of answers; milliseconds.
    """
    empty_database()
    for kind in ("identity", "flavors", "images", "hosts"):
        manage("sync_nova", "--cloud", CLOUD, "--kind", kind)
    FlavorGroupSnapshot.objects.all().delete()
    make_group()
    reset_host_table()
    setup_test_environment()
    client = Client(headers={"X-Auth-Token": TOKEN})
    waits, answers = [], []
    with with_token(), _waiting_for_locks() as waited_seconds:
        version = orjson.loads(client.get("/commitments/v1/info").content)["version"]
        number = 0
        reading = _start("sync_nova", "--cloud", CLOUD, "--kind", "servers")
        while reading.poll() is None:
            for is_new in (True, False):
                before = waited_seconds()
                sample = timed_change(client, change_body(version, number, is_new=is_new))
                waits.append((waited_seconds() - before) * 1000)
                answers.append(sample.wall_seconds * 1000)
            number += 1
    if reading.returncode:
        message = "the pass beside the requests failed"
        raise RuntimeError(message)
    return percentile(waits, 0.99), percentile(answers, 0.5)


@contextmanager
def _waiting_for_locks() -> Iterator[Callable[[], float]]:
    """Watch how long the connection of this thread has waited for locks; yields what tells it."""
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    waited, is_over = [0.0], threading.Event()
    query = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"

    def watch() -> None:
        before = time.perf_counter()
        while not is_over.wait(SAMPLE_SECONDS):
            is_waiting, now = fetch_value(query, [pid]), time.perf_counter()
            waited[0] += (now - before) * is_waiting
            before = now
        connection.close()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: waited[0]
    finally:
        is_over.set()
        thread.join()


def _tell(cloud: subprocess.Popen[str], server_id: str) -> None:
    if cloud.stdin is None or cloud.stdout is None:
        message = "the cloud cannot be told"
        raise RuntimeError(message)
    cloud.stdin.write(f"{server_id}\n")
    cloud.stdin.flush()
    cloud.stdout.readline()


def manage(*arguments: str) -> Taken:
    """Run a management command; return what it took."""
    before = time.perf_counter()
    process = _start(*arguments)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        message = f"manage.py {' '.join(arguments)} failed"
        raise RuntimeError(message)
    seconds = time.perf_counter() - before
    return Taken(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 20))


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    command: Sequence[str] = [sys.executable, str(ROOT / "manage.py"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ))  # noqa: S603 - our own command
