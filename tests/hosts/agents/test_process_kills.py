"""Agent and server killed at any moment, each a process of its own (spec hosts, D.8, D.14)."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.db.models import Count
from headroom_host_agent.provision.store import SqliteStore

from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.agents.workloads import delete_workloads
from journal.models import AuditEntry
from tests.e2e.processes import WebServer
from tests.factories import make_host
from tests.hosts.agents.agents import make_token
from tests.hosts.agents.router import Router, Routes, routed
from tests.hosts.agents.test_held_polls import Role
from tests.hosts.agents.test_process import PATIENCE_SECONDS, Host, until, wait_until
from tests.hosts.agents.workloads import ANN, agent_named, make_workload, state_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

ROUNDS = 8
SEED = 18
# Each round has that many writes to the agent's store at least.
FEWEST_WRITES = 12
DYING = """
import itertools, os, signal, sys
from contextlib import contextmanager
from headroom_host_agent.cli import main
from headroom_host_agent.provision.store import SqliteStore

number, when = int(os.environ["DIES_AT"]), os.environ["DIES"]
counted, real = itertools.count(1), SqliteStore._write

@contextmanager
def write(self):
    is_last = "run" in sys.argv and next(counted) == number
    with real(self) as sql:
        yield sql
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)

SqliteStore._write = write
sys.exit(main())
"""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "web").mkdir()
    overrides = {
        "HEADROOM_SECRET_KEY": django_settings.SECRET_KEY,
        "HEADROOM_AGENTS__HEARTBEAT_SECONDS": "0.5",
    }
    with WebServer(directory=tmp_path / "web", overrides=overrides) as made:
        yield made


@pytest.fixture
def role(tmp_path: Path) -> Iterator[Role]:
    (tmp_path / "polls").mkdir()
    made = Role(tmp_path / "polls")
    made.start()
    yield made
    made.end()


@pytest.fixture
def router(web: WebServer, role: Role) -> Iterator[Router]:
    with routed(Routes(polls=role.port, web=web.port)) as made:
        yield made


@pytest.fixture
def host(tmp_path: Path, router: Router) -> Iterator[Host]:
    make_host("h1")
    made = Host(tmp_path / "host", router.url, main=DYING)
    made.environment |= {
        "PATH": "",  # no tools that set quotas
        "HEADROOM_AGENT__ENFORCE": "true",
        "HEADROOM_AGENT__PROVISIONERS__ENABLED": "disk_quota",
        "HEADROOM_AGENT__POLL__MIN_INTERVAL": "1",
        "DIES_AT": "0",
        "DIES": "",
    }
    assert made.enrol(make_token("h1"))[0] == 0
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    yield made
    made.end()


def folder_of(number: int) -> Workload:
    data = {"size_bytes": 4096, "soft": True}
    return make_workload(number, type="disk_quota", data=data, cpus=0, memory_bytes=0)


def test_either_side_killed_at_any_moment_loses_and_repeats_nothing(
    host: Host, web: WebServer, role: Role
) -> None:
    rng = random.Random(SEED)  # noqa: S311 - reproducible, nothing secret
    live: list[Workload] = []
    gone: list[Workload] = []
    for number in range(ROUNDS):
        live += [folder_of(2 * number), folder_of(2 * number + 1)]
        if number:
            gone.append(live.pop(rng.randrange(len(live) - 2)))
            pks = [gone[-1].pk]
            delete_workloads(agent_named().pk, pks, reason="r", actor=ANN, request_id="r")
        host.environment["DIES_AT"] = str(rng.randint(1, FEWEST_WRITES))
        host.environment["DIES"] = rng.choice(["before", "after"])
        agent = host.start("run")
        if number % 2:
            newest = live[-1]
            until(lambda: state_of(newest) != "pending" or agent.poll() is not None, "no poll")  # noqa: B023
            killed = rng.sample([web, role], k=rng.randint(1, 2))
            for process in killed:
                process.kill()
            for process in killed:
                process.start()
        assert agent.wait(PATIENCE_SECONDS) == -signal.SIGKILL

    host.environment["DIES_AT"] = "0"
    running = host.start("run")
    until(lambda: {state_of(row) for row in live} == {"deployed"}, "not all are deployed")
    until(lambda: {state_of(row) for row in gone} == {"deleted"}, "not all are removed")
    wait_until("up")
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE_SECONDS) == 0

    quotas = host.root / "var/lib/headroom/quotas"
    assert sorted(path.name for path in quotas.iterdir()) == sorted(row.gwid for row in live)
    results = WorkloadResult.objects.values("workload", "kind").annotate(count=Count("pk"))
    assert {row["count"] for row in results} == {1}
    told = WorkloadResult.objects.filter(state="ok", kind="result")
    assert set(told.values_list("workload", flat=True)) >= {row.pk for row in live}
    assert not WorkloadResult.objects.filter(state="error").exists()
    assert not AuditEntry.objects.filter(action="host_result_conflict").exists()
    store = SqliteStore(host.root / "var/lib/headroom/agent.sqlite")
    assert [row.id for row in store.list()] == sorted(row.gwid for row in live)
    assert store.outbox_depth() == 0
    store.close()
