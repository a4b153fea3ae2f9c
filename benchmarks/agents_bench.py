"""``bench agents``: agents on hosts that send heartbeats and have their polls held.

Web processes take the heartbeats, one process of ``./run serve agents`` holds the polls; all and
the database share the machine with the agents, which are one process. Ten times a second a host is
asked for something: the time until its agent has it is counted from the commit.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from uuid import UUID, uuid5

from django.db import connection
from headroom_host_agent.provision.signing.keys import key_id

from benchmarks.agents_fleet import Fleet, private_key
from benchmarks.agents_idle import idle
from benchmarks.measures import Measure, measure, percentile
from benchmarks.placement_servers import STOP, Target, cpu_seconds, served_headroom
from config.launcher.demo import answers_healthz, choose_port
from config.launcher.places import this_checkout
from config.launcher.processes import start_child, stop_children, wait_until
from config.launcher.production import serve_command, serve_environment
from hosts.agents.leases import sweep
from hosts.agents.models import AgentMode, HostAgent, HostKey, HostLease
from hosts.agents.workloads import Asked, create_workloads
from hosts.models import Host
from journal.actors import Actor
from journal.clock import database_now
from tests.hosts.agents.agents import report

ANN = Actor(name="bench")
SPACE = UUID(int=18)
READY_SECONDS = 90.0
CHANGES_SECONDS = 0.1
MOST_SECONDS = 1.0
WRITES = """
SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables
 WHERE relname IN ('hosts_hostlease', 'hosts_requestnonce')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A fleet and how it is counted.

    Attributes:
        settings: Of the server, without their prefix.
    """

    name: str
    agents: int
    heartbeat_seconds: float
    warm_seconds: float
    seconds: float
    settings: dict[str, str]


LARGE = {
    "AGENTS__HEARTBEAT_SECONDS": "30",
    "AGENTS__LEASE_SECONDS": "75",
    "AGENTS__DOWN_AFTER_SECONDS": "90",
    "AGENTS__POLL_MOST_WAITERS": "12000",
}
QUICK = (
    Scale(
        name="200 agents", agents=200, heartbeat_seconds=10, warm_seconds=12, seconds=15,
        settings={},
    ),
)  # fmt: skip
FULL = (
    Scale(
        name="2000 agents", agents=2000, heartbeat_seconds=10, warm_seconds=40, seconds=60,
        settings={},
    ),
    Scale(
        name="10000 agents, profile large", agents=10_000, heartbeat_seconds=30, warm_seconds=75,
        seconds=60, settings=LARGE,
    ),
)  # fmt: skip


def run(*, is_quick: bool) -> list[Measure]:
    """Measure each fleet, then agents of their own that have nothing to do."""
    rows: list[Measure] = []
    for scale in QUICK if is_quick else FULL:
        rows += _measured(scale)
    return rows + idle(10.0 if is_quick else 120.0)


def _measured(scale: Scale) -> list[Measure]:
    host_ids = _made(scale.agents)
    with ExitStack() as held:
        web = held.enter_context(served_headroom(**scale.settings))
        polls = held.enter_context(_served_polls(scale.settings))
        fleet = Fleet(
            host_ids=host_ids,
            web_port=web.port,
            poll_port=polls.port,
            heartbeat_seconds=scale.heartbeat_seconds,
            warm_seconds=scale.warm_seconds,
            seconds=scale.seconds,
        )
        window = _counted(fleet, web, polls)
    return _rows(scale, window)


@dataclass(slots=True, kw_only=True)
class Window:
    """What was counted while agents were counting.

    Attributes:
        cpu: Seconds of a core by who spent them.
        committed: Id of what was asked for -> when.
    """

    seconds: float
    cpu: dict[str, float]
    memory_bytes: dict[str, int]
    writes: dict[str, int]
    sweep_seconds: list[float]
    committed: dict[str, float]
    seen: dict[str, Any]  # Any: JSON of the fleet


def _counted(fleet: Fleet, web: Target, polls: Target) -> Window:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.agents_fleet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f".{os.pathsep}clients/agent"},
        cwd=this_checkout().root,
    ) as process:
        assert process.stdin is not None  # noqa: S101 - asked for
        assert process.stdout is not None  # noqa: S101 - likewise
        process.stdin.write(json.dumps(asdict(fleet)) + "\n")
        process.stdin.flush()
        _expect(process.stdout, "counting")
        started, cpu, writes = time.monotonic(), _cpu(web, polls), _writes()
        ended = threading.Event()
        committed: dict[str, float] = {}
        sweeps: list[float] = []
        workers = [
            threading.Thread(target=_change_on, args=(fleet.host_ids, committed, ended)),
            threading.Thread(target=_sweep_on, args=(sweeps, ended)),
        ]
        for worker in workers:
            worker.start()
        _expect(process.stdout, "counted")
        ended.set()
        seconds, until = time.monotonic() - started, time.time()
        spent = {name: end - cpu.get(name, 0) for name, end in _cpu(web, polls).items()}
        memory = {"web": web.memory_bytes(), "polls": polls.memory_bytes()}
        for worker in workers:
            worker.join()
        written = {name: end - writes[name] for name, end in _writes().items()}
        seen = json.loads(process.stdout.readline())
    return Window(
        seconds=seconds,
        cpu=spent,
        memory_bytes=memory,
        writes=written,
        sweep_seconds=sweeps,
        committed={gwid: at for gwid, at in committed.items() if at <= until},
        seen=seen,
    )


def _rows(scale: Scale, window: Window) -> list[Measure]:
    seen, size = window.seen, scale.name
    wrong = {name: count for name, count in seen["statuses"].items() if not name.endswith("200")}
    if wrong:
        sys.stderr.write(f"{size}: answers other than 200: {wrong}\n")
    late = [seen["arrived"].get(gwid, float("inf")) - at for gwid, at in window.committed.items()]
    beats = len(seen["heartbeats"])

    def row(metric: str, value: float, unit: str, at_most: float | None = None) -> Measure:
        return measure(metric, size, value, unit, at_most=at_most)

    return [
        row("heartbeats", beats / window.seconds, "/s"),
        row("polls answered", seen["polls"] / window.seconds, "/s"),
        row("answers other than 200", sum(wrong.values()), "", 0),
        *(
            row(f"CPU of {name}", 100 * spent / window.seconds, "% of a core")
            for name, spent in window.cpu.items()
        ),
        row("CPU of web per heartbeat", 1000 * window.cpu["web"] / max(1, beats), "ms"),
        row("CPU of the agents", 100 * seen["cpu_seconds"] / window.seconds, "% of a core"),
        row("heartbeat, p50", 1000 * percentile(seen["heartbeats"], 0.5), "ms"),
        row("heartbeat, p99", 1000 * percentile(seen["heartbeats"], 0.99), "ms"),
        row("committed until the agent has it, p50", percentile(late, 0.5), "s"),
        row("committed until the agent has it, p99", percentile(late, 0.99), "s", MOST_SECONDS),
        row("memory of the web processes", window.memory_bytes["web"] / 2**20, "MiB"),
        row("memory of the process that holds polls", window.memory_bytes["polls"] / 2**20, "MiB"),
        row("leases written per heartbeat", window.writes["hosts_hostlease"] / max(1, beats), ""),
        row(
            "nonces written and forgotten per request",
            window.writes["hosts_requestnonce"] / max(1, beats + seen["polls"]),
            "",
        ),
        row("sweep of the leases, p99", 1000 * percentile(window.sweep_seconds, 0.99), "ms"),
    ]


def _made(count: int) -> tuple[str, ...]:
    """Make so many hosts with agents anew, and return the ids of the agents."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE hosts_hostagent, hosts_requestnonce CASCADE")
    Host.objects.filter(name__startswith="bench-").delete()
    names = [f"bench-{number:05}" for number in range(count)]
    ids = [uuid5(SPACE, name) for name in names]
    now = database_now()  # agents that have reported, as all have but in their first seconds
    reported = {"report": report(), "reported_at": now, "generated_at": now}
    agents = HostAgent.objects.bulk_create(
        HostAgent(uuid=one, host_name=name, mode=AgentMode.ENFORCE, **reported)
        for name, one in zip(names, ids, strict=True)
    )
    keys = [private_key(str(one)).public_key().public_bytes_raw() for one in ids]
    HostKey.objects.bulk_create(
        HostKey(agent=agent, kid=key_id(key), public_key=key)
        for agent, key in zip(agents, keys, strict=True)
    )
    HostLease.objects.bulk_create(HostLease(agent=agent) for agent in agents)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE hosts_hostagent, hosts_hostkey, hosts_hostlease")
    return tuple(map(str, ids))


@contextmanager
def _served_polls(more: dict[str, str]) -> Iterator[Target]:
    with ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="polls-")))
        port, checkout = choose_port(0), this_checkout()
        settings = {
            "HEADROOM_PROCESS": "web",
            "HEADROOM_AGENTS__POLL_PORT": str(port),
            "HEADROOM_AGENTS__METRICS_PORT": "0",
            "HEADROOM_LOG_LEVEL": "WARNING",
            "PROMETHEUS_MULTIPROC_DIR": str(directory),
            **{f"HEADROOM_{name}": value for name, value in more.items()},
        }
        child = start_child(
            "agents",
            serve_command(checkout, "agents", []),
            log=directory / "agents.log",
            env=serve_environment({**os.environ, **settings}),
            cwd=checkout.root,
        )
        held.callback(stop_children, [child], STOP)
        if not wait_until(lambda: answers_healthz(port), READY_SECONDS):
            raise RuntimeError(child.log.read_text(errors="replace")[-2000:])
        yield Target(
            name="polls", port=port, prefix="", child=child, conninfo=os.environ["DATABASE_URL"]
        )


def _cpu(web: Target, polls: Target) -> dict[str, float]:
    """Return CPU seconds so far of web processes, of who holds polls, of database sessions."""
    spent = {
        target.name: sum(cpu_seconds(one.pid) for one in target.processes())
        for target in (web, polls)
    }
    spent["the database"] = sum(cpu_seconds(one.pid) for one in web.backends())
    return {"web": spent["headroom"], "polls": spent["polls"], "database": spent["the database"]}


def _writes() -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(WRITES)
        return dict(cursor.fetchall())


def _change_on(
    host_ids: tuple[str, ...], committed: dict[str, float], ended: threading.Event
) -> None:
    """Ask one host after the other for something, by chance."""
    pks = dict(HostAgent.objects.values_list("uuid", "pk"))
    chosen = random.Random(18)  # noqa: S311 - which hosts
    number = 0
    while not ended.wait(CHANGES_SECONDS):
        number += 1
        asked = Asked(owner_kind="bench", owner_id=str(number), number=number, type="accounting")
        pk = pks[UUID(chosen.choice(host_ids))]
        (row,) = create_workloads(pk, [asked], actor=ANN, request_id="bench")
        committed[row.gwid] = time.time()
    connection.close()


def _sweep_on(sweeps: list[float], ended: threading.Event) -> None:
    while True:
        started = time.perf_counter()
        sweep(actor=ANN, request_id="bench")
        sweeps.append(time.perf_counter() - started)
        if ended.wait(5):
            break
    connection.close()


def _expect(output: IO[str], word: str) -> None:
    found = output.readline().strip()
    if found != word:
        raise RuntimeError(f"the agents say {found!r}, not {word}")
