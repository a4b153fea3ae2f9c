"""``bench scale``: one region after the other, each piece of work in a process of its own.

A piece of work prints its figures as JSON; its peak memory, its CPU and that of PostgreSQL are seen
from outside. A piece that fails or does not end in time is told, and the others go on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
from django.db import connection
from rich.console import Console

from benchmarks.bench_region import empty_database
from benchmarks.feed_bench import CLOUD, manage
from benchmarks.feed_server import serving
from benchmarks.measures import ROOT, Measure, fitted_exponent, measure
from benchmarks.pages_region import VMS_PER_HOST

SIZES: Final = (10_000, 30_000, 100_000)
QUICK_SIZES: Final = (300, 600, 1200)
#: A region has a commitment for so many hosts in a hundred.
COMMITMENTS_PERCENT: Final = 40
BACKGROUND_EXPONENT: Final = 1.1
REQUEST_EXPONENT: Final = 0.2
CHANGE_P99_MS: Final = 300.0
CLAIM_P99_MS: Final = 30.0
WEB_GIB: Final = 1.0
#: Seconds that a piece of work may take for each 10,000 hosts, and at least.
SECONDS_PER_10_000_HOSTS: Final = 900
LEAST_SECONDS: Final = 600

#: Work in the background, in the order in which a new region needs it.
BACKGROUND: Final = (
    "capacity",
    "coverage",
    "steady",
    "usage",
    "usage_again",
    "drills",
    "history",
    "providers",
)
#: Of these, what other benchmarks need.
FILLING: Final = (("capacity",), ("coverage",), ("usage",), ("providers",))
#: Processes that answer; their figures are times of requests.
ANSWERING: Final = ("requests", "pages")
TARGETS: Final = {
    "change request of 100 slots, p99": CHANGE_P99_MS,
    "claim, p99": CLAIM_P99_MS,
    "memory of a web process": WEB_GIB,
}


def run(*, is_quick: bool, sizes: Sequence[int] = ()) -> list[Measure]:
    """Measure regions of three sizes, or of those given; the largest has the targets."""
    chosen = tuple(sizes) or (QUICK_SIZES if is_quick else SIZES)
    rows: list[Measure] = []
    for hosts in chosen:
        Console().print(f"region of {hosts} hosts and {hosts * VMS_PER_HOST} VMs")
        rows += _region(hosts, has_targets=hosts == SIZES[-1])
    if len(chosen) > 1:
        rows += _exponents(rows, chosen)
    return rows


def _region(hosts: int, *, has_targets: bool) -> list[Measure]:
    rows: list[Measure] = []
    label = _label(hosts)
    with tempfile.TemporaryDirectory() as folder:
        region = Path(folder) / "region.json"
        _generate(hosts, region)
        rows += _feed(hosts, region, Path(folder))
        rows += _work("import", hosts, str(region))
    for name in (*BACKGROUND, *ANSWERING):
        rows += _work(name, hosts)
    rows += _tables(label)
    return [_with_target(row) for row in rows] if has_targets else rows


def _feed(hosts: int, region: Path, folder: Path) -> list[Measure]:
    """Read the region from a pretended cloud into an empty database."""
    Console().print("  feed")
    label, metric = _label(hosts), "first feed passes"
    os.environ["OS_CLIENT_CONFIG_FILE"] = str(folder / "clouds.yaml")
    empty_database()
    with serving(region, folder):
        server = server_cpu_seconds()
        try:
            taken = manage("sync_nova", "--cloud", CLOUD)
        except RuntimeError as error:
            Console().print(f"  feed: {error}")
            return []
        spent = server_cpu_seconds() - server
    return [
        measure(metric, label, taken.seconds, "s"),
        measure(f"{metric}, CPU", label, taken.cpu_seconds, "s"),
        measure(f"{metric}: CPU of PostgreSQL", label, spent, "s"),
        measure(f"{metric}: peak memory", label, taken.peak_gib, "GiB"),
    ]


def fill(hosts: int, region: Path) -> None:
    """Make a region that claims are in, and all that is planned of it.

    Args:
        region: Where its file is written.
    """
    _generate(hosts, region)
    for name, *arguments in (("import", str(region)), *FILLING):
        _work(name, hosts, *arguments)


def _generate(hosts: int, region: Path) -> None:
    manage(
        *("generate_region", "--hosts", f"{hosts}", "--seed", "7"),
        *("--vms-per-host", f"{VMS_PER_HOST}", "--output", str(region)),
        *("--commitments", f"{hosts * COMMITMENTS_PERCENT // 100}"),
    )


def _work(name: str, hosts: int, *arguments: str) -> list[Measure]:
    """Run one piece of work in a process of its own; return what it told and what it took."""
    label = _label(hosts)
    Console().print(f"  {name}")
    environment = dict(os.environ)
    if name in ANSWERING:
        environment["HEADROOM_PROCESS"] = "web"
    deadline_seconds = max(LEAST_SECONDS, SECONDS_PER_10_000_HOSTS * hosts // 10_000)
    server = server_cpu_seconds()
    began = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "benchmarks.scale_work", name, *arguments],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
    )
    try:
        told, _ = process.communicate(timeout=deadline_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        Console().print(f"  {name}: not done after {deadline_seconds} s")
        return []
    seconds, words = time.perf_counter() - began, name.replace("_", " ")
    if process.returncode:
        Console().print(f"  {name}: failed")
        return []
    figures = json.loads(told)
    rows = [
        measure(figure["metric"], label, figure["value"], figure["unit"])
        for figure in figures["measures"]
    ]
    if name in ANSWERING:
        whose = "a web process" if name == "requests" else "a web process that draws pages"
        return [*rows, measure(f"memory of {whose}", label, figures["peak_gib"], "GiB")]
    return [
        *rows,
        measure(f"{words}: whole process", label, seconds, "s"),
        measure(f"{words}: CPU of PostgreSQL", label, server_cpu_seconds() - server, "s"),
        measure(f"{words}: peak memory", label, figures["peak_gib"], "GiB"),
    ]


def _label(hosts: int) -> str:
    return f"{hosts} hosts"


def _with_target(row: Measure) -> Measure:
    if row.metric not in TARGETS:
        return row
    return measure(row.metric, row.size, row.value, row.unit, at_most=TARGETS[row.metric])


def _exponents(rows: Sequence[Measure], sizes: Sequence[int]) -> list[Measure]:
    """Fit the growth of each figure that all sizes have."""
    by_metric: dict[str, list[Measure]] = {}
    for row in rows:
        by_metric.setdefault(row.metric, []).append(row)
    found = []
    for metric, measured in by_metric.items():
        if len(measured) != len(sizes) or min(row.value for row in measured) <= 0:
            continue
        most = None
        if measured[0].unit == "ms":
            most = REQUEST_EXPONENT
        elif metric.endswith(", CPU"):
            most = BACKGROUND_EXPONENT
        exponent = fitted_exponent(sizes, [row.value for row in measured])
        found.append(measure(f"{metric}: exponent", "all sizes", exponent, "", at_most=most))
    return found


def _tables(label: str) -> list[Measure]:
    """Return the size of the database and of each table that takes a hundredth of it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        (whole,) = cursor.fetchone() or (0,)
        cursor.execute(
            "SELECT relname, pg_total_relation_size(oid) AS bytes FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace "
            "AND pg_total_relation_size(oid) >= %s ORDER BY bytes DESC",
            [whole // 100],
        )
        tables = cursor.fetchall()
    mib = 1 << 20
    return [
        measure("size of the database", label, whole / mib, "MiB"),
        *(measure(f"size of {name}", label, size / mib, "MiB") for name, size in tables),
    ]


def server_cpu_seconds() -> float:
    """Return the CPU that PostgreSQL has used, ended backends included; 0 if it is not here."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone() or (0,)
    try:
        postmaster = psutil.Process(pid).parent()
        if postmaster is None:
            return 0.0
        spent = postmaster.cpu_times()
        whole = spent.user + spent.system + spent.children_user + spent.children_system
        for backend in postmaster.children():
            spent = backend.cpu_times()
            whole += spent.user + spent.system
    except psutil.NoSuchProcess:
        return 0.0
    return float(whole)
