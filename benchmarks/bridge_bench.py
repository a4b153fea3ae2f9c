"""``bench bridge``: commitments mirrored into a real API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from django.db import close_old_connections, connection
from django.db.models import F
from rich.console import Console

from benchmarks.bench_region import empty_database
from benchmarks.bridge_clients import compare_clients
from benchmarks.change_bench import cpu_seconds
from benchmarks.feed_bench import manage
from benchmarks.measures import ROOT, Measure, measure
from bridge.models import MirrorState
from commitments.models import Commitment
from config.launcher.processes import wait_until
from journal.clock import database_now
from tests.bridge.mirrors import assert_equal
from tests.factories import make_commitment
from tests.kube.programs import built
from tests.kube.server import ApiServer, start_api_server

FIRST_SECONDS_TARGET = 120.0
VISIBLE_SECONDS_TARGET = 1.0
FULL, QUICK = 20_000, 1_000
CHANGES_PER_SECOND = 100
SAMPLES = 300
#: All objects are listed and compared that often meanwhile.
COMPARE_SECONDS = 60
PATIENCE_SECONDS = 600.0


def run(*, is_quick: bool) -> list[Measure]:
    """Measure the first mirroring, single changes amid others, and the way back after a day off."""
    objects = QUICK if is_quick else FULL
    with tempfile.TemporaryDirectory() as name:
        server = start_api_server(built(), Path(name))
        try:
            clusters = [{"name": "bench", "kubeconfig": str(server.kubeconfig)}]
            os.environ["HEADROOM_BRIDGE__CLUSTERS"] = json.dumps(clusters)
            os.environ["HEADROOM_BRIDGE__METRICS_PORT"] = "0"
            os.environ["HEADROOM_BRIDGE__COMPARE_INTERVAL_SECONDS"] = str(COMPARE_SECONDS)
            manage("install_crds", "--yes")
            _fill(objects)
            found = _measure(server, objects, is_full=not is_quick)
            return found + compare_clients(server.kubeconfig)
        finally:
            server.stop()


def _fill(objects: int) -> None:
    empty_database()
    MirrorState.objects.all().delete()
    first = make_commitment(commitment_uuid=str(uuid4()))
    fields = {
        field.attname: getattr(first, field.attname)
        for field in Commitment._meta.concrete_fields  # noqa: SLF001 - Django's public name for it
        if not field.primary_key and not field.generated
    }
    Commitment.objects.bulk_create(
        (
            Commitment(**{**fields, "commitment_uuid": str(uuid4()), "creator_request_id": f"{n}"})
            for n in range(objects - 1)
        ),
        batch_size=1000,
    )


def _measure(server: ApiServer, objects: int, *, is_full: bool) -> list[Measure]:
    def row(metric: str, figure: float, unit: str, target: float | None = None) -> Measure:
        label = f"{objects} commitments"
        return measure(metric, label, figure, unit, at_most=target if is_full else None)

    Console().print("from empty")
    began = time.perf_counter()
    with _bridge() as pid:
        _await(lambda: MirrorState.objects.count() == objects and _is_still())
        first_seconds, first_cpu = time.perf_counter() - began, cpu_seconds(pid)
        Console().print("single changes")
        before = cpu_seconds(pid)
        with _flow() as changed:
            seen = sorted(_seen() for _ in range(SAMPLES))
        _await(_is_still)
        changed_cpu = (cpu_seconds(pid) - before) / (changed[0] + SAMPLES)
        memory_mib = _peak_mib(pid)
    Console().print("a day off")
    for _ in range(2):
        Commitment.objects.update(requested_amount=F("requested_amount") + (1 << 30))
    written = MirrorState.objects.filter(is_due=False, written_at__gt=database_now())
    began = time.perf_counter()
    with _bridge():
        _await(lambda: written.count() == objects)
        back_seconds = time.perf_counter() - began
    assert_equal(server)
    return [
        row("objects from empty", first_seconds, "s", FIRST_SECONDS_TARGET),
        row("objects from empty, our CPU per object", first_cpu / objects * 1000, "ms"),
        row("one change until it is visible, p50", seen[SAMPLES // 2], "s"),
        row(
            "one change until it is visible, p99",
            seen[SAMPLES * 99 // 100 - 1],
            "s",
            VISIBLE_SECONDS_TARGET,
        ),
        row("one change until it is visible, slowest", seen[-1], "s"),
        row("our CPU per changed object", changed_cpu * 1000, "ms"),
        row("peak memory", memory_mib, "MiB"),
        row("all objects changed while it was off, until equal", back_seconds, "s"),
    ]


@contextmanager
def _bridge() -> Iterator[int]:
    command = [sys.executable, str(ROOT / "manage.py"), "mirror"]
    process = subprocess.Popen(command, env=dict(os.environ))  # noqa: S603 - our own command
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)


@contextmanager
def _flow() -> Iterator[list[int]]:
    """Change other commitments all the time; yield how many it were, once it is over."""
    until, count = threading.Event(), [0]
    keys = list(Commitment.objects.order_by("-pk").values_list("pk", flat=True)[:500])

    def change() -> None:
        began = time.perf_counter()
        while not until.is_set():
            _grow(keys[count[0] % len(keys)])
            count[0] += 1
            ahead = count[0] / CHANGES_PER_SECOND - (time.perf_counter() - began)
            until.wait(max(0.0, ahead))
        close_old_connections()
        connection.close()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield count
    finally:
        until.set()
        thread.join()


def _grow(key: int) -> None:
    Commitment.objects.filter(pk=key).update(requested_amount=F("requested_amount") + (1 << 30))


def _seen() -> float:
    """Change a commitment; return after how many seconds the API server is known to have it."""
    chosen = Commitment.objects.earliest("pk")
    state = MirrorState.objects.get(name=f"commitment-{chosen.commitment_uuid}")
    written = MirrorState.objects.filter(pk=state.pk).exclude(spec_digest=state.spec_digest)
    began = time.perf_counter()
    _grow(chosen.pk)
    _await(written.exists)  # noted after the cluster has answered
    return time.perf_counter() - began


def _is_still() -> bool:
    return not MirrorState.objects.filter(is_due=True).exists()


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _await(is_true: Callable[[], bool]) -> None:
    if not wait_until(is_true, PATIENCE_SECONDS):
        raise RuntimeError("the mirror did not come that far")
