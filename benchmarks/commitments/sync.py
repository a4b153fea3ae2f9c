"""The syncer: a run over commitments that are all new, then one that finds nothing changed."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

from rich.console import Console

from benchmarks.bench_region import GROUP, ZONES, fill_region
from benchmarks.cloud_server import serving
from benchmarks.measures import Measure, fitted_exponent, measure
from commitments.clients.http_cloud import HTTPCloud
from commitments.conf import SyncSettings
from commitments.models import Commitment, SyncOutcome
from commitments.services.sync import sync_commitments
from journal.actors import Actor
from journal.conf import KeystoneSettings
from tests.peers.fake_cloud import PASSWORD, PROJECT, USER

COMMITMENTS_PER_PROJECT = 50
UNCHANGED_TARGET_SECONDS = 20.0
HOSTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    seconds: float
    cpu_seconds: float


def run(*, is_quick: bool) -> list[Measure]:
    """Measure three sizes, HTTP included; serving has a process of its own."""
    sizes = (1000, 3000, 10_000) if is_quick else (10_000, 30_000, 100_000)
    rows: list[Measure] = []
    cold, unchanged = [], []
    for size in sizes:
        Console().print(f"{size} commitments")
        fill_region(HOSTS)
        projects = size // COMMITMENTS_PER_PROJECT
        with serving(commitments=size, projects=projects, group=GROUP, zones=ZONES) as url:
            cold.append(_timed(url, "created", size))
            unchanged.append(_timed(url, "unchanged", size))
        label = f"{size} commitments, {projects} projects"
        target = UNCHANGED_TARGET_SECONDS if size == max(sizes) else None
        rows += [
            measure("sync, all new", label, cold[-1].seconds, "s"),
            measure("CPU of it", label, cold[-1].cpu_seconds, "s"),
            measure("sync, nothing changed", label, unchanged[-1].seconds, "s", at_most=target),
            measure("CPU of it", label, unchanged[-1].cpu_seconds, "s"),
            measure("peak memory so far", label, _peak_gib(), "GiB"),
        ]
    for name, costs in (("sync, all new", cold), ("sync, nothing changed", unchanged)):
        exponent = fitted_exponent(sizes, [cost.seconds for cost in costs])
        rows.append(measure(f"fitted exponent of {name}", "all sizes", exponent, "", at_most=1.1))
    return rows


def _timed(url: str, expected: str, size: int) -> _Cost:
    keystone = KeystoneSettings.model_validate(
        {
            "auth_url": f"{url}/v3",
            "username": USER,
            "password": PASSWORD,
            "project_name": PROJECT,
        }
    )
    cloud = HTTPCloud(keystone, SyncSettings())
    before, cpu_before = time.perf_counter(), time.process_time()
    report = sync_commitments(cloud, actor=Actor(name="bench"), request_id="bench")
    seconds, cpu_seconds = time.perf_counter() - before, time.process_time() - cpu_before
    is_right = report.outcome == SyncOutcome.SUCCESS and report.counts[expected] == size
    if not is_right or Commitment.objects.count() != size:
        message = f"the run ended as {report.outcome} {report.message}: {dict(report.counts)}"
        raise RuntimeError(message)
    return _Cost(seconds=seconds, cpu_seconds=cpu_seconds)


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
