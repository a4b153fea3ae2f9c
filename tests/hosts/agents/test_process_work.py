"""The agent's own process makes what a served Headroom asks of it (spec hosts, D.8, D.14)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from headroom_host_agent.provision.store import SqliteStore

from hosts.agents.leases import fence
from hosts.agents.models import AgentMode, HostAgent, HostKey
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.agents.workloads import delete_workloads
from tests.factories import make_host
from tests.hosts.agents.agents import make_token
from tests.hosts.agents.test_process import PATIENCE_SECONDS, Host, until, wait_until
from tests.hosts.agents.workloads import ANN, agent_named, make_workload, state_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def host(tmp_path: Path, live_server: Any, settings: Any) -> Iterator[Host]:
    chosen = settings.HEADROOM.agents.model_copy(update={"heartbeat_seconds": 0.2})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    make_host("h1")
    made = Host(tmp_path, live_server.url)
    made.environment["HEADROOM_AGENT__POLL__MIN_INTERVAL"] = "1"
    assert made.enrol(make_token("h1"))[0] == 0
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    yield made
    made.end()


def test_a_workload_is_made_told_once_and_removed(host: Host) -> None:
    running = host.start("run")
    wait_until("up")
    row = make_workload(memory_bytes=1 << 30)
    until(lambda: state_of(row) == "deployed", "it is never deployed")

    running.kill()  # no word of farewell
    running.wait()
    host.start("run")
    big = make_workload(43, cpus=1000)
    until(lambda: state_of(big) == "failed", "too much is never refused")
    assert "insufficient" in Workload.objects.get(pk=big.pk).error
    assert [one.state for one in WorkloadResult.objects.filter(workload=row)] == ["ok"]

    delete_workloads(agent_named().pk, [row.pk], reason="gone", actor=ANN, request_id="r")
    until(lambda: state_of(row) == "deleted", "it is never removed")


def test_a_running_agent_goes_on_with_a_new_key(host: Host) -> None:
    before = HostKey.objects.get().kid
    host.start("run")
    wait_until("up")

    rotation = host.start("rotate-key")
    said, error = rotation.communicate(timeout=PATIENCE_SECONDS)

    assert rotation.returncode == 0, error
    assert set(HostKey.objects.values_list("kid", "state")) == {
        (before, "retiring"),
        (said.split()[-1], "active"),
    }
    row = make_workload(memory_bytes=1 << 30)
    until(lambda: state_of(row) == "deployed", "nothing is told with the new key")
    assert WorkloadResult.objects.get().kid == said.split()[-1]


def test_an_auditor_verifies_what_the_agent_signed_without_server_and_agent(
    host: Host, tmp_path: Path
) -> None:
    running = host.start("run")
    wait_until("up")
    first = make_workload(1, memory_bytes=1 << 30)
    gone = make_workload(2, memory_bytes=1 << 30)
    until(lambda: state_of(first) == state_of(gone) == "deployed", "they are never deployed")
    delete_workloads(agent_named().pk, [gone.pk], reason="gone", actor=ANN, request_id="r")
    until(lambda: state_of(gone) == "deleted", "what is gone is never removed")
    rotation = host.start("rotate-key")
    rotation.communicate(timeout=PATIENCE_SECONDS)
    later = make_workload(3, memory_bytes=1 << 30)
    until(lambda: state_of(later) == "deployed", "nothing is made with the new key")
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE_SECONDS) == 0

    file = exported(tmp_path)
    host.environment["HEADROOM_AGENT__SERVER__URL"] = "http://127.0.0.1:1"
    said, code = verified_offline(host, file)

    assert code == 0
    old, new = HostKey.objects.order_by("pk").values_list("kid", flat=True)
    assert {(one["reservation"], one["state"], one["key"]) for one in said} == {
        (first.gwid, "ok", old),
        (gone.gwid, "ok", old),
        (gone.gwid, "deleted", old),
        (later.gwid, "ok", new),
    }

    WorkloadResult.objects.filter(workload=first).delete()
    said, code = verified_offline(host, exported(tmp_path), "--key", new, "--key", old)
    assert code == 1
    assert [one["reservation"] for one in said if not one["ok"]] == [first.gwid]


def exported(folder: Path) -> Path:
    """Return a file with what agents signed."""
    out = StringIO()
    call_command("host_agent", "export", "h1", stdout=out)
    file = folder / "export.json"
    file.write_text(out.getvalue())
    return file


def verified_offline(host: Host, file: Path, *more: str) -> tuple[list[dict[str, Any]], int]:
    process = host.start("verify", "--offline", str(file), *more)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return [json.loads(line) for line in said.splitlines()], process.returncode


def test_an_agent_that_was_fenced_compares_all_and_goes_on(host: Host) -> None:
    running = host.start("run")
    wait_until("up")
    kept, going = make_workload(1, memory_bytes=1 << 30), make_workload(2, memory_bytes=1 << 30)
    until(lambda: state_of(kept) == state_of(going) == "deployed", "they are never deployed")

    running.send_signal(signal.SIGSTOP)
    delete_workloads(agent_named().pk, [going.pk], reason="gone", actor=ANN, request_id="r")
    fence("h1", actor=ANN, request_id="r", reason="to see")
    running.send_signal(signal.SIGCONT)

    until(lambda: state_of(going) == "deleted", "what is gone is never removed")
    wait_until("up")
    later = make_workload(3, memory_bytes=1 << 30)
    until(lambda: state_of(later) == "deployed", "nothing is made in the new epoch")
    assert state_of(kept) == "deployed"
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE_SECONDS) == 0
    store = SqliteStore(host.root / "var/lib/headroom/agent.sqlite")
    assert [row.id for row in store.list()] == [kept.gwid, later.gwid]
    store.close()
