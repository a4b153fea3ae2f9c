"""``bench machines``: more processes, a pooler in front of the database, and its switch-over.

Web servers with 1, 2 and 4 processes run side by side on one database and are asked in turn, round
by round, so that all meet the same machine. CPU counts web processes, their database sessions and,
where there is one, the pooler.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from uuid import uuid4

import orjson
import psutil
from rich.console import Console

from benchmarks.bench_region import fill_region
from benchmarks.change_bench import change_body
from benchmarks.failover_region import fill_failover_region
from benchmarks.measures import Measure, measure, percentile
from benchmarks.placement_loads import Load, interleaved, run_load
from benchmarks.placement_servers import (
    TOKEN,
    Connection,
    Target,
    cpu_seconds,
    encode,
    served_headroom,
    warm,
)
from benchmarks.placement_worlds import PROJECT, USER, World, fill_ours, make_world
from benchmarks.scale_bench import server_cpu_seconds
from cloud.postgres import OwnPostgres, either, own_postgres, standby_of
from config.launcher.processes import wait_until
from failover.choices import RunOutcome
from failover.models import FailoverRun
from failover.selectors.zone import failover_zones
from failover.tasks import RECONCILE_ZONE
from tests.e2e.own_pooler import OwnPooler, own_pooler
from tests.e2e.processes import WebServer, Worker, manage
from tests.e2e.switch_load import TOKENS, SwitchLoad, seed

PROCESSES = (1, 2, 4)
#: As many threads answer them, whatever the number of processes: as much goes on at once.
CLIENTS = 8
CHANGING_CLIENTS = 3
#: Of the pooler: as many transactions as the threads of two processes may have open.
SESSIONS = 20
ZONES = 4
#: CPU of a request with four processes by that with one; what is above it is noise of the machine.
MOST_GROWTH = 1.25
REQUEST_LIMIT = 100
WORK_SECONDS = 300.0
ROLES = ["admin", "cloud_resource_admin"]
#: What it is called, whether the primary is killed, whether a pooler stands before it.
SWITCH_OVERS = (
    ("planned, all servers named", False, False),
    ("planned, behind a pooler", False, True),
    ("killed, all servers named", True, False),
    ("killed, behind a pooler", True, True),
)
_NUMBERS = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is asked.

    Attributes:
        hosts: Of the region, and providers.
        rounds: How often each server is asked.
        claims: Of each client in a round; boots are half as many.
        changes: Pairs of a batch and its deletion, of each client in a round.
        vms: Of the region whose failover workers plan.
        writes: Of each kind, before and after a switch-over.
    """

    hosts: int
    rounds: int
    claims: int
    changes: int
    vms: int
    writes: int


QUICK = Scale(hosts=200, rounds=2, claims=20, changes=2, vms=2000, writes=10)
FULL = Scale(hosts=1000, rounds=5, claims=40, changes=4, vms=20_000, writes=50)


def run(*, is_quick: bool) -> list[Measure]:
    """Measure web processes, a pooler, workers, and switch-overs to a standby."""
    scale = QUICK if is_quick else FULL
    rows: list[Measure] = []
    for title, part in (
        ("web processes", _web),
        ("pooler", _pooler),
        ("workers", _workers),
        ("switch-over", _switch_overs),
    ):
        Console().print(title)
        rows += part(scale)
    return rows


def _served(
    variables: Mapping[str, str] | None = None, **more: str
) -> AbstractContextManager[Target]:
    tokens = json.dumps([{"token": TOKEN, "name": "admin", "roles": ROLES}])
    return served_headroom(variables, TOKENS=tokens, **more)


def _web(scale: Scale) -> list[Measure]:
    """Ask servers with more and more processes the same."""
    world = _fill(scale)
    with ExitStack() as held:
        targets = [
            held.enter_context(_served({"GRANIAN_WORKERS": str(number)})) for number in PROCESSES
        ]
        for target in targets:
            _warm(target, world)
        labels = [f"{number} web process{'es' if number > 1 else ''}" for number in PROCESSES]
        rows: list[Measure] = []
        for kind, work in _kinds(world, scale).items():
            loads = interleaved(scale.rounds, *(partial(work, target) for target in targets))
            for label, load in zip(labels, loads, strict=True):
                rows += _figures(kind, label, load)
            growth = loads[-1].cpu_ms / loads[0].cpu_ms
            name = f"{kind}: CPU with {PROCESSES[-1]} processes by that with {PROCESSES[0]}"
            rows.append(measure(name, "all", growth, "times", at_most=MOST_GROWTH))
        for label, target in zip(labels, targets, strict=True):
            memory = target.memory_bytes() / (1 << 20)
            rows.append(measure("memory of the server", label, memory, "MiB"))
    return rows


def _pooler(scale: Scale) -> list[Measure]:
    """Ask a server behind a pooler the same as one that reaches the database itself."""
    world = _fill(scale)
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        pooler = held.enter_context(own_pooler(folder / "pgbouncer.log", sessions=SESSIONS))
        assert pooler.child is not None  # noqa: S101 - it runs
        direct = held.enter_context(_served())
        unprepared = held.enter_context(_served(PLACEMENT__PREPARED_STATEMENTS="off"))
        pooled = held.enter_context(
            _served({"DATABASE_URL": pooler.url}, PLACEMENT__PREPARED_STATEMENTS="off")
        )
        pooled = replace(pooled, others=(pooler.child,))
        targets = {
            "direct": direct,
            "nothing prepared": unprepared,
            "behind the pooler, nothing prepared": pooled,
        }
        for target in targets.values():
            _warm(target, world)
        rows: list[Measure] = []
        for kind, work in _kinds(world, scale).items():
            loads = interleaved(
                scale.rounds, *(partial(work, target) for target in targets.values())
            )
            for label, load in zip(targets, loads, strict=True):
                rows += _figures(kind, label, load)
                if load is not loads[0]:
                    cost = load.cpu_ms / loads[0].cpu_ms
                    rows.append(measure(f"{kind}: CPU by that of direct", label, cost, "times"))
    return rows


def _fill(scale: Scale) -> World:
    world = make_world("flat", scale.hosts)
    fill_region(scale.hosts)
    fill_ours(world)
    return world


def _warm(target: Target, world: World) -> None:
    for _ in range(3):
        warm(target, [f"/allocation_candidates?{world.query}&limit=1", "/traits"])


Work = Callable[[Target, int], Load]


def _kinds(world: World, scale: Scale) -> dict[str, Work]:
    return {
        "claim": partial(_claims, world, scale),
        "boot, a search and a claim": partial(_boots, world, scale),
        "change request, 10 commitments": partial(_changes, scale),
    }


def _claims(world: World, scale: Scale, target: Target, _: int) -> Load:
    return run_load(
        target,
        [[_claim(target, world) for _ in range(scale.claims)] for _ in range(CLIENTS)],
    )


def _boots(world: World, scale: Scale, target: Target, _: int) -> Load:
    """Search and claim, in turn; first each process reads what other servers were asked."""
    path = f"/allocation_candidates?{world.query}&limit={REQUEST_LIMIT}"
    search = encode(target, "GET", path)
    warm(target, [path])
    return run_load(
        target,
        [
            [
                request
                for _ in range(scale.claims // 2)
                for request in (search, _claim(target, world))
            ]
            for _ in range(CLIENTS)
        ],
    )


def _claim(target: Target, world: World) -> bytes:
    host = world.hosts[next(_NUMBERS) % len(world.hosts)]
    body = {
        "allocations": {host: {"resources": world.asked}},
        "project_id": PROJECT,
        "user_id": USER,
        "consumer_generation": None,
    }
    return encode(target, "PUT", f"/allocations/{uuid4()}", body)


def _changes(scale: Scale, target: Target, _: int) -> Load:
    """Send batches and their deletions, each client to a zone of its own.

    Raises:
        RuntimeError: one was rejected.
    """
    plain = replace(target, prefix="")
    link = Connection(plain)
    version = int(orjson.loads(link.send("GET", "/commitments/v1/info")[1])["version"])
    link.close()
    load = run_load(
        plain, [_batches(plain, version, zone, scale.changes) for zone in range(CHANGING_CLIENTS)]
    )
    if any(body != b"{}" for body in load.bodies):
        raise RuntimeError(load.bodies)
    return load


def _batches(target: Target, version: int, zone: int, pairs: int) -> list[bytes]:
    """Return batches of a zone: its number decides on it."""
    found = []
    for _ in range(pairs):
        number = next(_NUMBERS) * CHANGING_CLIENTS + zone
        for is_new in (True, False):
            body = orjson.loads(change_body(version, number, is_new=is_new))
            by_project = body["byProject"]
            body["byProject"] = {f"{name}-{zone}": by_project[name] for name in by_project}
            found.append(encode(target, "POST", "/commitments/v1/change-commitments", body))
    return found


def _figures(kind: str, label: str, load: Load) -> list[Measure]:
    """Return the figures of a load; a boot's two requests are told apart."""
    parts = {kind: load.seconds}
    if kind.startswith("boot"):
        parts = {f"{kind}: search": load.seconds[0::2], f"{kind}: claim": load.seconds[1::2]}
    rows = [measure(f"{kind}: answered a second", label, load.per_second, "requests")]
    for name, seconds in parts.items():
        rows += [
            measure(f"{name}: p50", label, percentile(seconds, 0.5) * 1000, "ms"),
            measure(f"{name}: p99", label, percentile(seconds, 0.99) * 1000, "ms"),
        ]
    refused = sum(number for status, number in load.statuses.items() if status >= 300)  # noqa: PLR2004 - HTTP
    if refused:
        rows.append(measure(f"{kind}: not done", label, refused, "requests"))
    return [*rows, measure(f"{kind}: CPU of a request", label, load.cpu_ms, "ms")]


def _workers(scale: Scale) -> list[Measure]:
    """Let more and more worker processes plan the failover of all zones."""
    rows: list[Measure] = []
    spent: list[float] = []
    for number in PROCESSES:
        fill_failover_region(scale.hosts, scale.vms, zones=ZONES, required=1)
        label = f"{number} worker process{'es' if number > 1 else ''}"
        with tempfile.TemporaryDirectory() as folder:
            worker = Worker(
                directory=Path(folder),
                processes=number,
                overrides={"DATABASE_URL": os.environ["DATABASE_URL"]},
            )
            worker.start()
            try:
                seconds, cpu = _planned(worker)
            finally:
                worker.forget()
        spent.append(cpu)
        rows += [
            measure(f"failover of {ZONES} zones, {scale.vms} VMs", label, seconds, "s"),
            measure("failover of all zones: CPU", label, cpu, "s"),
        ]
    growth = spent[-1] / spent[0]
    name = f"failover: CPU with {PROCESSES[-1]} workers by that with {PROCESSES[0]}"
    return [*rows, measure(name, "all", growth, "times", at_most=MOST_GROWTH)]


def _planned(worker: Worker) -> tuple[float, float]:
    """Return how long all zones took, and the CPU of the worker and the database server.

    Raises:
        RuntimeError: they were not planned in time, or a run failed.
    """
    zones = failover_zones()
    before, began = _worker_cpu(worker) + server_cpu_seconds(), time.perf_counter()
    for zone in zones:
        worker.send(RECONCILE_ZONE, zone)
    ended = FailoverRun.objects.exclude(outcome=RunOutcome.RUNNING)
    if not wait_until(lambda: ended.count() >= len(zones), WORK_SECONDS):
        raise RuntimeError(worker.log())
    seconds = time.perf_counter() - began
    cpu = _worker_cpu(worker) + server_cpu_seconds() - before
    outcomes = set(ended.values_list("outcome", flat=True))
    if RunOutcome.FAILED in outcomes:
        raise RuntimeError(worker.log())
    return seconds, cpu


def _worker_cpu(worker: Worker) -> float:
    assert worker.child is not None  # noqa: S101 - it runs
    root = psutil.Process(worker.child.process.pid)
    return sum(cpu_seconds(each.pid) for each in (root, *root.children(recursive=True)))


def _switch_overs(scale: Scale) -> list[Measure]:
    """Let a database switch over to its standby under load, in each of the ways."""
    rows: list[Measure] = []
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        with own_postgres(folder, os.environ) as made:
            manage(folder, "migrate", "--verbosity", "0", DATABASE_URL=made.url)
            seed(folder, made)
            made.stop()
            for label, is_killed, is_pooled in SWITCH_OVERS:
                rows += _switch_over(
                    scale, made.spec.data, label, is_killed=is_killed, is_pooled=is_pooled
                )
    return rows


def _switch_over(
    scale: Scale, data: Path, label: str, *, is_killed: bool, is_pooled: bool
) -> list[Measure]:
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        primary = held.enter_context(own_postgres(folder, os.environ, data, is_durable=True))
        standby = held.enter_context(standby_of(primary, folder))
        pooler = (
            held.enter_context(own_pooler(folder / "pgbouncer.log", primary, sessions=SESSIONS))
            if is_pooled
            else None
        )
        if is_killed:
            primary.commit_on_standbys()
        web = WebServer(
            directory=folder,
            overrides={
                "DATABASE_URL": pooler.url if pooler else either(primary, standby),
                "HEADROOM_TOKENS": TOKENS,
                "GRANIAN_WORKERS": "2",
            },
        )
        held.callback(web.end)
        web.start()
        with SwitchLoad(web) as load:
            load.go_on(scale.writes)
            away_at = time.monotonic()
            back_at = _turn(primary, standby, pooler, is_killed=is_killed)
            load.go_on(scale.writes)
        load.assert_only_told_to_come_back()
        load.assert_all_kept_by(standby)
    done = sum(len(load.acknowledged(kind)) for kind in load.clients)
    return [
        measure("database away: until the standby is the primary", label, back_at - away_at, "s"),
        measure("503: from the first to the last", label, load.outage_seconds(), "s"),
        measure("slowest answer", label, load.slowest_seconds(), "s"),
        measure("writes answered well, all kept", label, done, "writes"),
    ]


def _turn(
    primary: OwnPostgres, standby: OwnPostgres, pooler: OwnPooler | None, *, is_killed: bool
) -> float:
    """Switch over; return when the standby was the primary, in monotonic seconds."""
    if is_killed:
        primary.kill()
    else:
        primary.stop()
    standby.promote()
    if pooler is not None:
        pooler.lead_to(standby)
    return time.monotonic()
