"""The agent's own process against a served Headroom (spec hosts, D.10, D.14)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from headroom_host_agent.server.client import Address, Client, RefusedError, Request
from headroom_host_agent.server.identity import load_identity

from config.launcher.places import this_checkout
from hosts.agents.enrolment import revoke_key
from hosts.agents.leases import fence
from hosts.agents.models import EnrolmentToken, HostAgent, HostKey, HostLease
from hosts.agents.resource_models import HostResource
from journal.actors import Actor
from tests.agent.trees import host_tree
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, make_token, report

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE_SECONDS = 60
MAIN = "import sys; from headroom_host_agent.cli import main; sys.exit(main())"


class Host:
    """A host with an agent that is started as often as wanted."""

    def __init__(self, root: Path, url: str, *, main: str = MAIN) -> None:
        self.root, self._main = host_tree(root), main
        self.processes: list[subprocess.Popen[str]] = []
        self.environment = {
            "PYTHONPATH": str(this_checkout().root / "clients/agent"),
            "PATH": os.environ["PATH"],
            "HEADROOM_AGENT__SERVER__URL": url,
            "HEADROOM_AGENT__REPORT__INTERVAL": "1",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-c", self._main, *arguments, "--sysroot", str(self.root)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def enrol(self, token: str, *arguments: str) -> tuple[int, str]:
        """Return exit code and words of an enrolment whose token comes on the input."""
        process = self.start("enrol", "--name", "h1", *arguments)
        out, err = process.communicate(token + "\n", timeout=PATIENCE_SECONDS)
        return process.returncode, out + err

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def host(tmp_path: Path, live_server: Any) -> Iterator[Host]:
    make_host("h1")
    made = Host(tmp_path, live_server.url)
    yield made
    made.end()


def wait_for_report(after: object = None) -> HostAgent:
    """Return the agent once it reported after a time."""
    waiting = threading.Event()
    for _ in range(PATIENCE_SECONDS * 20):
        agent = HostAgent.objects.get()
        if agent.reported_at is not None and agent.reported_at != after:
            return agent
        waiting.wait(0.05)
    raise AssertionError("the agent reports nothing")


def test_an_agent_enrols_reports_and_stops(host: Host) -> None:
    code, said = host.enrol(make_token("h1"))
    assert code == 0, said
    assert said.startswith("enrolled as ")
    path = host.root / "var/lib/headroom/identity.json"
    assert path.stat().st_mode & 0o777 == 0o600

    running = host.start("run")
    first = wait_for_report()
    assert first.report is not None
    amounts = {"cpu": 32, "memory": 256 << 30, "network": 1_250_000_000, "disk_io": 1_000_000_000}
    for name, amount in amounts.items():
        told = first.report[name]
        assert (told["capacity"], told["effective_limit"]) == (amount, amount)
    assert first.report["disk"]["capacity"] > 0
    assert "gpu" not in first.report
    kinds = HostResource.objects.filter(host__name="h1", capacity__gt=0)
    assert set(kinds.values_list("resource", flat=True)) == {"network", "disk_io"}
    wait_for_report(after=first.reported_at)
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE_SECONDS) == 0

    seen = HostAgent.objects.get().reported_at
    killed = host.start("run")
    killed.kill()
    killed.wait()
    host.start("run")
    wait_for_report(after=seen)


def test_an_agent_whose_key_is_revoked_ends_and_may_enrol_again(host: Host) -> None:
    assert host.enrol(make_token())[0] == 0
    running = host.start("run")
    wait_for_report()
    kid = HostKey.objects.get().kid

    revoke_key(pk=HostKey.objects.get().pk, actor=Actor(name="ann"), request_id="r")

    assert running.wait(PATIENCE_SECONDS) == 4
    code, said = host.enrol(make_token())
    assert (code, "--again makes a new key" in said) == (1, True)
    assert host.enrol(make_token(), "--again")[0] == 0
    assert HostKey.objects.get(state="active").kid != kid


def until(is_so: Callable[[], object], what: str) -> None:
    waiting = threading.Event()
    for _ in range(PATIENCE_SECONDS * 20):
        if is_so():
            return
        waiting.wait(0.05)
    raise AssertionError(what)


def wait_until(wanted: str) -> HostLease:
    """Return the lease once the agent is so."""
    until(lambda: HostLease.objects.get().liveness == wanted, f"the agent is not {wanted}")
    return HostLease.objects.get()


def test_an_agent_is_heard_again_after_a_fence_and_after_a_kill(host: Host, settings: Any) -> None:
    chosen = settings.HEADROOM.agents.model_copy(update={"heartbeat_seconds": 0.2})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    assert host.enrol(make_token())[0] == 0
    first = host.start("run")
    lease = wait_until("up")
    assert lease.boot_id

    fence("h1", actor=Actor(name="ann"), request_id="r", reason="to see")
    wait_until("up")
    assert HostAgent.objects.get().fence_epoch == 2
    kept = load_identity(host.root / "var/lib/headroom")
    assert kept is not None
    assert kept.fence_epoch == 2

    beside = host.start("run")
    assert beside.wait(PATIENCE_SECONDS) == 1
    assert beside.stderr is not None
    assert "another agent runs on" in beside.stderr.read()

    first.kill()
    first.wait()
    run_id = HostLease.objects.get().run_id
    host.start("run")
    for _ in range(PATIENCE_SECONDS * 20):
        if HostLease.objects.get().run_id != run_id:
            break
        threading.Event().wait(0.05)
    assert HostLease.objects.get().run_id != run_id


def test_an_enrolment_that_is_refused_says_why(host: Host) -> None:
    code, said = host.enrol("wrong")

    assert code == 3
    assert "bad_token" in said
    assert host.start("run").wait(PATIENCE_SECONDS) == 1


def test_a_lost_answer_is_asked_for_again_with_the_same_key(host: Host) -> None:
    token = make_token()
    assert host.enrol(token)[0] == 0
    folder = host.root / "var/lib/headroom"
    identity = load_identity(folder)
    assert identity is not None
    path = folder / "identity.json"
    path.write_text(f'{{"seed": "{identity.seed}"}}', encoding="utf-8")  # as before the answer

    assert host.enrol(token)[0] == 0

    assert load_identity(folder) == identity
    assert EnrolmentToken.objects.get(name_glob="*").uses_left == 0


@pytest.mark.parametrize("seconds", [-7200, 7200])
def test_a_host_whose_clock_is_wrong_is_refused_once(live_server: Any, seconds: int) -> None:
    make_host("h1")
    identity = enrolled()
    client = Client(Address(url=live_server.url), wall=lambda: time.time() + seconds)
    sent: list[str] = []
    real = client._send

    def counted(request: Request, headers: Any) -> Any:
        sent.append(request.method)
        return real(request, headers)

    client._send = counted  # type: ignore[method-assign]  # counts requests
    assert client.now() is None

    client.put_resources(identity, report())
    client.put_resources(identity, report())

    assert len(sent) == 3
    agent = HostAgent.objects.get()
    assert agent.reported_at is not None
    assert agent.generated_at is not None
    assert abs(agent.reported_at - agent.generated_at).total_seconds() < 300


def test_another_hosts_key_is_refused(live_server: Any) -> None:
    make_host("h1")
    make_host("h2")
    one, other = enrolled("h1"), enrolled("h2")
    client = Client(Address(url=live_server.url))

    with pytest.raises(RefusedError) as refused:
        client.put_resources(replace(one, host_id=other.host_id), report())

    assert refused.value.code == "unknown_key"
    connection.close()
