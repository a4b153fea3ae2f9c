"""``bench change``: a batch of 10 commitments and 100 slots, decided and written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
from django.db import connection
from django.test import Client
from django.test.utils import setup_test_environment
from rich.console import Console
from rich.progress import track

from benchmarks.bench_region import GROUP, TOKEN, ZONES, fill_region, with_token
from benchmarks.measures import Measure, fitted_exponent, measure, percentile
from capacity.models import Reservation
from commitments.models import Commitment
from journal.collector import spare_what_is_loaded
from scheduling.engine import SLOT_PIPELINE, schedule_many
from scheduling.request import PlacementRequest
from scheduling.resources import GIB
from scheduling.table import HostTable
from scheduling.table_rows import HostRow
from tests.domain.scheduling.worlds import SlowScheduler
from tests.process_tables import load_host_table, reset_host_table

COMMITMENTS = 10
SLOTS_PER_COMMITMENT = 10
SLOT_GIB = 64
P99_TARGET_MS = 300.0
ENGINE_RATIO_TARGET = 20.0
URL = "/commitments/v1/change-commitments"
RESOURCE = f"hw_version_{GROUP}_ram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Cost of one request.

    Attributes:
        wall_seconds: From request to answer.
        cpu_seconds: CPU of this process.
        database_cpu_seconds: CPU of its database backend; 0 where it cannot be read.
    """

    wall_seconds: float
    cpu_seconds: float
    database_cpu_seconds: float


def run(*, is_quick: bool) -> list[Measure]:
    """Measure accepted batches over three region sizes."""
    sizes = (300, 1000, 3000) if is_quick else (1000, 3000, 10000)
    repeats = 20 if is_quick else 150
    setup_test_environment()
    spare_what_is_loaded()  # as web processes do once they have loaded all
    rows: list[Measure] = []
    medians: list[float] = []
    for size in sizes:
        Console().print(f"region of {size} hosts")
        fill_region(size)
        reset_host_table()
        samples = _samples(repeats)
        label = f"{size} hosts"
        walls = [sample.wall_seconds * 1000 for sample in samples]
        medians.append(percentile(walls, 0.5))
        rows += [
            measure("request p50", label, medians[-1], "ms"),
            measure("request p99", label, percentile(walls, 0.99), "ms", at_most=P99_TARGET_MS),
            measure("CPU per request", label, _mean_ms([s.cpu_seconds for s in samples]), "ms"),
            measure(
                "database CPU per request",
                label,
                _mean_ms([s.database_cpu_seconds for s in samples]),
                "ms",
            ),
            _placing(label),
        ]
    exponent = fitted_exponent(sizes, medians)
    rows.append(measure("fitted exponent of p50", "all sizes", exponent, "", at_most=1.0))
    return rows


def _samples(repeats: int) -> list[Sample]:
    client = Client(headers={"X-Auth-Token": TOKEN})
    with with_token():
        version = orjson.loads(client.get("/commitments/v1/info").content)["version"]
        samples = []
        for number in track(range(-3, repeats), description="requests"):
            body = change_body(version, number + 3, is_new=True)
            sample = timed_change(client, body)
            if number >= 0:  # the first requests load tables that every later one only refreshes
                samples.append(sample)
            timed_change(client, change_body(version, number + 3, is_new=False))
    if Commitment.objects.exists() or Reservation.objects.exists():
        message = "the benchmark left commitments behind"
        raise RuntimeError(message)
    return samples


def timed_change(client: Client, body: bytes) -> Sample:
    """Send a batch, which has to be accepted; return what it cost."""
    database_before = database_cpu_seconds()
    cpu_before, before = time.process_time(), time.perf_counter()
    response = client.post(URL, body, content_type="application/json")
    wall, cpu = time.perf_counter() - before, time.process_time() - cpu_before
    if response.status_code != 200 or response.content != b"{}":  # noqa: PLR2004 - HTTP OK
        message = f"not accepted: {response.status_code} {response.content[:200]!r}"
        raise RuntimeError(message)
    return Sample(
        wall_seconds=wall,
        cpu_seconds=cpu,
        database_cpu_seconds=database_cpu_seconds() - database_before,
    )


def change_body(
    version: int,
    number: int,
    *,
    is_new: bool,
    amount: int = SLOT_GIB * SLOTS_PER_COMMITMENT,
    resource: str = RESOURCE,
    zones: Sequence[str] = ZONES,
) -> bytes:
    """Return a batch over two projects in one zone, or the deletion of that batch.

    Args:
        version: Of ``/info``.
        number: Of the batch: names its commitments and chooses its zone.
        is_new: Not the deletion.
        amount: Of each commitment, in units of the resource.
        resource: What is committed.
        zones: Batches go to these in turn.
    """
    expires_at = (datetime.now(tz=UTC) + timedelta(days=365)).isoformat()
    by_project: dict[str, object] = {}
    half = COMMITMENTS // 2
    for project in range(2):
        total = amount * half
        by_project[f"project-{project}"] = {
            "byResource": {
                resource: {
                    "totalConfirmedBefore": 0 if is_new else total,
                    "totalConfirmedAfter": total if is_new else 0,
                    "totalGuaranteedBefore": 0,
                    "totalGuaranteedAfter": 0,
                    "commitments": [
                        {
                            "uuid": f"{number:08d}-{project:04d}-{index:04d}",
                            "oldStatus": None if is_new else "confirmed",
                            "newStatus": "confirmed" if is_new else None,
                            "amount": amount,
                            "expiresAt": expires_at,
                        }
                        for index in range(half)
                    ],
                }
            }
        }
    zone = zones[number % len(zones)]
    return orjson.dumps(
        {"az": zone, "dryRun": False, "infoVersion": version, "byProject": by_project}
    )


def _placing(label: str) -> Measure:
    """Compare placing 100 slots with the slow oracle of the tests on the same hosts."""
    table = load_host_table()
    requests = [
        PlacementRequest(
            request_key=f"slot-{number}", memory_bytes=SLOT_GIB * GIB, vcpus=16, zone=ZONES[0]
        )
        for number in range(COMMITMENTS * SLOTS_PER_COMMITMENT)
    ]
    schedule_many(table, requests)
    before = time.perf_counter()
    schedule_many(table, requests)
    fast = time.perf_counter() - before
    oracle = SlowScheduler(
        rows=host_rows(table),
        steps=[step.name for step in SLOT_PIPELINE.filters],
        weights={"memory": 1.0},
        multiplier=1.0,
    )
    before = time.perf_counter()
    for request in requests[:10]:
        oracle.decide(request)
    slow = (time.perf_counter() - before) * len(requests) / 10
    return measure(
        "placing 100 slots against the per-host oracle",
        label,
        fast * 1000,
        "ms",
        baseline=slow * 1000,
        at_least_ratio=ENGINE_RATIO_TARGET,
    )


def host_rows(table: HostTable) -> list[HostRow]:
    """Return the hosts of a table as plain rows, as far as the slow oracle looks at them."""
    from scheduling.resources import ResourceVector  # noqa: PLC0415 - only the oracle needs rows

    return [
        HostRow(
            name=name,
            host_id=int(table.host_ids[row]),
            zone=table.zones[table.zone[row]],
            is_ready=bool(table.state_ok[row]),
            hypervisor_type=table.hypervisor_types[table.hypervisor_type[row]],
            effective=ResourceVector(
                memory_bytes=int(table.eff_memory_bytes[row]), vcpus=int(table.eff_vcpus[row])
            ),
            allocated=ResourceVector(
                memory_bytes=int(table.alloc_memory_bytes[row]), vcpus=int(table.alloc_vcpus[row])
            ),
        )
        for name, row in table.row_of.items()
    ]


def database_cpu_seconds() -> float:
    """Return CPU seconds of this connection's backend and of every backend that has ended.

    0 when they are not on this machine; backends that ended may be those of autovacuum.
    """
    raw = connection.connection
    if raw is None:
        return 0.0
    try:
        backend = _stat_of(raw.info.backend_pid)
        postmaster = _stat_of(int(backend[_PARENT]))
    except OSError:
        return 0.0
    return (sum(map(int, backend[_OWN_TICKS])) + sum(map(int, postmaster[_CHILDREN_TICKS]))) / 100


def cpu_seconds(pid: int) -> float:
    """Return CPU seconds of a process on this machine."""
    return sum(map(int, _stat_of(pid)[_OWN_TICKS])) / 100


_PARENT, _OWN_TICKS, _CHILDREN_TICKS = 1, slice(11, 13), slice(13, 15)
"""Places in what /proc/PID/stat says after the name of the program."""


def _stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def _mean_ms(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds) * 1000
