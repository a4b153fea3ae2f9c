"""``bench schedule``: choosing hosts, the whole request of Nova, and keeping the table fresh."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from wsgiref.util import setup_testing_defaults

import numpy as np
import orjson
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.test.utils import CaptureQueriesContext, setup_test_environment
from rich.console import Console

from benchmarks.bench_region import TOKEN, with_token
from benchmarks.change_bench import host_rows
from benchmarks.measures import Measure, fitted_exponent, measure, percentile
from benchmarks.schedule_region import (
    GROUPS,
    PROJECTS,
    SLOT_GIB,
    SLOT_VCPUS,
    ZONES,
    fill_schedule_region,
)
from capacity.host_table import current_host_table, table_differences
from capacity.models import HostCapacity, Reservation, ReservationKind
from hosts.models import Host
from scheduling.engine import SLOT_PIPELINE, schedule
from scheduling.intents import CallOptions
from scheduling.pipelines import compile_pipeline
from scheduling.record import record_run
from scheduling.request import PlacementRequest
from scheduling.resources import GIB, MIB
from scheduling.shipped_pipelines import SHIPPED
from scheduling.table import HostTable
from tests.domain.scheduling.worlds import SlowScheduler
from tests.process_tables import load_host_table, reset_host_table

PIPELINE = "kvm-general-purpose-load-balancing"
URL = "/scheduler/nova/external"
TARGET_HOSTS = 10_000
SMALLEST_TARGET_HOSTS = 1000
ENGINE_P50_TARGET_MS = 2.0
ENGINE_P99_TARGET_MS = 5.0
REQUEST_TARGET_MS = 12.0
ORACLE_RATIO_TARGET = 20.0
VM_SIZES_GIB = (4, 16, 64)
ORDERS = ("", ", another order each time", ", nine of ten hosts in another order")
"""How a request lists the hosts: by name, or as a Nova does that weighs and filters them."""
_SHUFFLER = Random(11)  # noqa: S311 - the same orders in each run


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured.

    Attributes:
        sizes: Numbers of hosts.
        reservations: Reservations in each region.
        engine_requests: Requests to the engine.
        http_requests: Requests to the endpoint.
        refreshes: Changes of each kind that are followed by a refresh.
        oracle_requests: Requests to the slow oracle.
    """

    sizes: tuple[int, ...]
    reservations: int
    engine_requests: int
    http_requests: int
    refreshes: int
    oracle_requests: int


QUICK = Scale(
    sizes=(300, 1000, 3000),
    reservations=6000,
    engine_requests=300,
    http_requests=30,
    refreshes=20,
    oracle_requests=3,
)
FULL = Scale(
    sizes=(1000, TARGET_HOSTS, 50_000),
    reservations=60_000,
    engine_requests=2000,
    http_requests=200,
    refreshes=100,
    oracle_requests=5,
)


def run(*, is_quick: bool) -> list[Measure]:
    """Measure over three region sizes."""
    scale = QUICK if is_quick else FULL
    setup_test_environment()
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")  # filling takes longer than requests may
    rows: list[Measure] = []
    for size in scale.sizes:
        Console().print(f"region of {size} hosts and {scale.reservations} reservations")
        fill_schedule_region(size, reservations=scale.reservations)
        reset_host_table()
        label = f"{size} hosts"
        rows += _engine(size, label, scale)
        rows.append(_against_oracle(size, label, scale))
        rows += _refreshes(label, scale)
        rows += _rebuild(label)
        rows += _memory(label)
        for order in ORDERS:
            rows += _requests(size, label, scale, order)
        if table_differences(current_host_table(), load_host_table()):
            message = "the incremental table differs from the rebuilt one"
            raise RuntimeError(message)
    fitted = sorted({row.metric for row in rows if row.unit == "ms" and "p99" not in row.metric})
    for metric in fitted:
        costs = [row.value for row in rows if row.metric == metric]
        rows.append(
            measure(
                f"fitted exponent: {metric}", "all sizes", fitted_exponent(scale.sizes, costs), ""
            )
        )
    return rows


def _engine_request(number: int, *, zone: str) -> PlacementRequest:
    memory_gib = VM_SIZES_GIB[number % len(VM_SIZES_GIB)]
    return PlacementRequest(
        request_key=f"vm-{number}",
        memory_bytes=memory_gib * GIB,
        vcpus=memory_gib // 4,
        zone=zone,
        project_id=f"project-{number % PROJECTS}",
        extra_specs={
            "capabilities:hypervisor_type": "qemu",
            "quota:hw_version": f"group-{number % GROUPS}",
            "trait:CUSTOM_HANA_EXCLUSIVE_HOST": "forbidden",
        },
    )


def _engine(size: int, label: str, scale: Scale) -> list[Measure]:
    """Time the engine as the endpoint calls it, record of the decision included."""
    pipeline = compile_pipeline(SHIPPED[PIPELINE])
    options = CallOptions(max_candidates=3)
    table = current_host_table()
    rows = []
    for name, zones in (("one zone", ZONES), ("all zones", 0)):
        samples, cpus = [], []
        for number in range(-20, scale.engine_requests):
            zone = f"az-{number % zones}" if zones else ""
            request = _engine_request(number, zone=zone)
            cpu_before, before = time.thread_time(), time.perf_counter()
            record = record_run(table, request, pipeline, options)
            wall, cpu = time.perf_counter() - before, time.thread_time() - cpu_before
            if number >= 0:  # the first requests fill the caches of masks
                samples.append(wall * 1000)
                cpus.append(cpu * 1000)
            if not record.ordered_hosts:
                message = f"no host for {request}"
                raise RuntimeError(message)
        ceiling = ENGINE_P99_TARGET_MS if size <= TARGET_HOSTS else None
        usual = ENGINE_P50_TARGET_MS if size <= TARGET_HOSTS else None
        rows += [
            measure(f"engine p50, {name}", label, percentile(samples, 0.5), "ms", at_most=usual),
            measure(f"engine p99, {name}", label, percentile(samples, 0.99), "ms", at_most=ceiling),
            measure(
                f"engine CPU p99, {name}", label, percentile(cpus, 0.99), "ms", at_most=ceiling
            ),
        ]
    return rows


def _against_oracle(size: int, label: str, scale: Scale) -> Measure:
    """Compare one decision with the per-host scheduler of the tests on the same hosts."""
    table = current_host_table()
    request = PlacementRequest(
        request_key="", memory_bytes=SLOT_GIB * GIB, vcpus=SLOT_VCPUS, zone="az-1"
    )
    oracle = SlowScheduler(
        rows=host_rows(table),
        steps=[step.name for step in SLOT_PIPELINE.filters],
        weights={"memory": 1.0},
        multiplier=1.0,
    )
    slow, fast = [], []
    for number in range(scale.oracle_requests):
        asked = replace(request, request_key=f"slot-{number}")
        before = time.perf_counter()
        oracle.decide(asked)
        slow.append(time.perf_counter() - before)
    for number in range(scale.oracle_requests * 10):
        asked = replace(request, request_key=f"slot-{number}")
        before = time.perf_counter()
        schedule(table, asked)
        fast.append(time.perf_counter() - before)
    return measure(
        "one slot against the per-host oracle",
        label,
        percentile(fast, 0.5) * 1000,
        "ms",
        baseline=percentile(slow, 0.5) * 1000,
        at_least_ratio=ORACLE_RATIO_TARGET if size >= SMALLEST_TARGET_HOSTS else None,
    )


def _refreshes(label: str, scale: Scale) -> list[Measure]:
    """Time the table's way to the present after one change that another process committed."""
    hosts = list(Host.objects.order_by("pk").values_list("pk", flat=True)[: scale.refreshes])
    slots = list(
        Reservation.objects.filter(kind=ReservationKind.COMMITTED)
        .order_by("pk")
        .values_list("pk", flat=True)[: scale.refreshes]
    )
    numbers = count(1)
    changes: tuple[tuple[str, Callable[[int], object]], ...] = (
        ("nothing", lambda _: None),
        (
            "a host's room",
            lambda index: HostCapacity.objects.filter(host=hosts[index]).update(
                allocated_memory_bytes=next(numbers)
            ),
        ),
        (
            "a host's traits",
            lambda index: Host.objects.filter(pk=hosts[index]).update(
                custom_traits=[f"CUSTOM_NEW_{next(numbers) % 2}"]
            ),
        ),
        (
            "a slot",
            lambda index: Reservation.objects.filter(pk=slots[index]).update(
                blocked_memory_bytes=next(numbers)
            ),
        ),
    )
    current_host_table()
    rows = []
    for name, change in changes:
        samples = []
        for index in range(len(hosts)):
            change(index % len(slots))
            before = time.perf_counter()
            current_host_table()
            samples.append((time.perf_counter() - before) * 1000)
        rows += [
            measure(f"refresh p50 after {name}", label, percentile(samples, 0.5), "ms"),
            measure(f"refresh p99 after {name}", label, percentile(samples, 0.99), "ms"),
        ]
    return rows


def _rebuild(label: str) -> list[Measure]:
    load_host_table()
    before = time.perf_counter()
    table = load_host_table()
    rebuilt = time.perf_counter() - before
    before = time.perf_counter()
    table_differences(current_host_table(), table)
    compared = time.perf_counter() - before
    return [
        measure("full rebuild", label, rebuilt * 1000, "ms"),
        measure("comparison with the rebuilt table", label, compared * 1000, "ms"),
    ]


def _memory(label: str) -> list[Measure]:
    gc.collect()
    tracemalloc.start()
    table = load_host_table()
    gc.collect()
    everything, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return [
        measure("memory of the columns", label, _column_bytes(table) / MIB, "MiB"),
        measure("memory of the table with side tables", label, everything / MIB, "MiB"),
    ]


def _column_bytes(table: HostTable) -> int:
    columns = (getattr(table, name) for name in HostTable.__slots__)
    return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


def _requests(size: int, label: str, scale: Scale, order: str) -> list[Measure]:
    """Time the endpoint: decode a list of hosts, choose, hold, record, answer.

    It is called as a server calls it. CPU is that of this process and of PostgreSQL's for its
    session.
    """
    names = list(Host.objects.order_by("name").values_list("name", flat=True))
    first = ORDERS.index(order) * 10_000  # of numbers: another VM at each request
    walls, cpus, decoding = [], [], []
    before_all = 0.0
    with with_token():
        for number in range(-5, scale.http_requests):
            body = _body(_listed(names, order), first + number)
            before = time.perf_counter()
            orjson.loads(body)
            decoded = time.perf_counter() - before
            if number == 0:
                before_all = database_cpu_ms()
            cpu_before, before = time.process_time(), time.perf_counter()
            status, answer = _called(body)
            wall, cpu = time.perf_counter() - before, time.process_time() - cpu_before
            if status != "200 OK" or not orjson.loads(answer)["hosts"]:
                message = f"no hosts: {status} {answer[:200]!r}"
                raise RuntimeError(message)
            if number >= 0:
                walls.append(wall * 1000)
                cpus.append(cpu * 1000)
                decoding.append(decoded * 1000)
        database_cpu = (database_cpu_ms() - before_all) / len(cpus)
        with CaptureQueriesContext(connection) as statements:
            _called(_body(_listed(names, order), first + scale.http_requests))
    cpu = percentile(cpus, 0.5)
    ceiling = REQUEST_TARGET_MS if size <= TARGET_HOSTS else None
    return [
        measure(f"HTTP request p50{order}", label, percentile(walls, 0.5), "ms"),
        measure(f"HTTP request p99{order}", label, percentile(walls, 0.99), "ms"),
        measure(f"CPU per HTTP request, p50{order}", label, cpu, "ms"),
        measure(f"CPU of PostgreSQL per HTTP request{order}", label, database_cpu, "ms"),
        measure(f"CPU of both{order}", label, cpu + database_cpu, "ms", at_most=ceiling),
        measure(f"statements per HTTP request{order}", label, len(statements), ""),
        measure(f"plain decoding of a request{order}", label, percentile(decoding, 0.5), "ms"),
        measure(f"size of a request{order}", label, len(body) / MIB, "MiB"),
    ]


def _listed(names: list[str], order: str) -> list[str]:
    """Return the hosts of one request."""
    if not order:
        return names
    return _SHUFFLER.sample(names, len(names) if order == ORDERS[1] else len(names) * 9 // 10)


@cache
def _application() -> Any:  # Any: Django's type of it is without `close`
    return get_wsgi_application()


def _called(body: bytes) -> tuple[str, bytes]:
    """Return status and body of the answer to a request."""
    environ: dict[str, Any] = {  # Any: as WSGI has it
        "REQUEST_METHOD": "POST",
        "PATH_INFO": URL,
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_X_AUTH_TOKEN": TOKEN,
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.input": BytesIO(body),
    }
    setup_testing_defaults(environ)
    heads: list[str] = []
    answer = _application()(environ, lambda status, _: heads.append(status))
    try:
        return heads[0], b"".join(answer)
    finally:
        answer.close()


def database_cpu_ms() -> float:
    """Return the CPU time of the session's PostgreSQL process, which runs on this machine."""
    pid = connection.connection.info.backend_pid
    nanoseconds, *_ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(nanoseconds) / 1_000_000


def _wrapped(fields: dict[str, object]) -> dict[str, object]:
    return {"nova_object.name": "Wrapped", "nova_object.version": "1.0", "nova_object.data": fields}


def _body(names: list[str], number: int) -> bytes:
    """Return a request as Nova makes and writes it, with hosts as candidates."""
    memory_gib = VM_SIZES_GIB[number % len(VM_SIZES_GIB)]
    project = f"project-{number % PROJECTS}"
    flavor = {
        "name": f"bench_{memory_gib}",
        "memory_mb": memory_gib * 1024,
        "vcpus": memory_gib // 4,
        "extra_specs": _engine_request(number, zone="").extra_specs,
    }
    spec = {
        "project_id": project,
        "user_id": "user",
        "instance_uuid": f"00000000-0000-4000-8000-{number + 1000:012d}",
        "availability_zone": f"az-{number % ZONES}",
        "num_instances": 1,
        "scheduler_hints": {"_nova_check_type": "create"},
        "flavor": _wrapped(flavor),
    }
    return json.dumps(
        {
            "spec": _wrapped(spec),
            "context": {"project_id": project, "request_id": f"req-{number}"},
            "hosts": [{"host": name, "hypervisor_hostname": name} for name in names],
            "weights": dict.fromkeys(names, 0.0),
            "pipeline": PIPELINE,
        }
    ).encode()
