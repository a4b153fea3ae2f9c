"""What is on a host and still wanted is taken over, not made again (spec hosts, B.11, D.8, D.9).

The agent's own process, after the server's database was restored and after its own store was lost.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from headroom_host_agent.provision.built_in.disk_quota import TRASH
from headroom_host_agent.provision.store import SqliteStore

from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.modes import renew_timelines
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.agents.workloads import delete_workloads
from journal.models import AuditEntry
from tests.agent.trees import plant
from tests.factories import make_host
from tests.hosts.agents.agents import make_token
from tests.hosts.agents.test_process import PATIENCE_SECONDS, Host, until, wait_until
from tests.hosts.agents.workloads import ANN, agent_named, make_workload, state_of

pytestmark = pytest.mark.django_db(transaction=True)

POOL = "sys/kernel/mm/hugepages/hugepages-2048kB"
PAGES = {"page_size": "2MiB", "count": 5}
FOLDER = {"size_bytes": 4096, "soft": True}


@pytest.fixture
def host(tmp_path: Path, live_server: Any, settings: Any) -> Iterator[Host]:
    chosen = settings.HEADROOM.agents.model_copy(update={"heartbeat_seconds": 0.2})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    make_host("h1")
    made = Host(tmp_path, live_server.url)
    made.environment |= {
        "HEADROOM_AGENT__POLL__MIN_INTERVAL": "1",
        "HEADROOM_AGENT__ENFORCE": "true",
        "HEADROOM_AGENT__PROVISIONERS__ENABLED": "accounting,disk_quota,hugepages",
        "PATH": "",  # no tools that set quotas
    }
    plant(made.root, {f"{POOL}/nr_hugepages": "10", f"{POOL}/free_hugepages": "1000"})
    assert made.enrol(make_token("h1"))[0] == 0
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    yield made
    made.end()


def folder_of(number: int, user: str) -> Workload:
    more: dict[str, Any] = {"cpus": 0, "memory_bytes": 0, "user_id": user}
    return make_workload(number, type="disk_quota", data=FOLDER, **more)


def pages_of(number: int) -> Workload:
    return make_workload(number, type="hugepages", data=PAGES, cpus=0, memory_bytes=0)


def quotas(host: Host) -> dict[str, str]:
    """Return folder -> what is in its file; empty without one."""
    folders = (host.root / "var/lib/headroom/quotas").iterdir()
    files = {folder.name: folder / "data" for folder in folders}
    return {name: file.read_text() if file.exists() else "" for name, file in files.items()}


def pool(host: Host) -> int:
    return int((host.root / POOL / "nr_hugepages").read_text())


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0


def stored(host: Host) -> list[str]:
    store = SqliteStore(host.root / "var/lib/headroom/agent.sqlite")
    try:
        return [row.id for row in store.list()]
    finally:
        store.close()


def all_are(state: str, *rows: Workload) -> None:
    until(lambda: {state_of(row) for row in rows} == {state}, f"they are never {state}")


def test_what_a_restored_database_still_wants_is_taken_over_and_the_rest_kept(host: Host) -> None:
    running = host.start("run")
    wait_until("up")
    unanswered, unasked, unknown = (folder_of(number, f"p{number}") for number in (1, 2, 3))
    pages = [pages_of(4), pages_of(5)]
    all_are("deployed", unanswered, unasked, unknown, *pages)
    for row in (unanswered, unasked, unknown):
        (host.root / "var/lib/headroom/quotas" / row.gwid / "data").write_text(row.gwid)
    running.kill()
    running.wait()
    before = quotas(host)

    # As of yesterday: the first was asked for and not answered, the second not asked for, the third
    # not thought of; of one kind of pages one was asked for, the other under another id.
    WorkloadResult.objects.all().delete()
    Workload.objects.exclude(pk__in=[unanswered.pk, pages[0].pk]).delete()
    for seq, row in enumerate((unanswered, pages[0]), start=1):
        Workload.objects.filter(pk=row.pk).update(state="dispatched", seq=seq)
    HostAgent.objects.update(change_seq=2)
    renew_timelines(actor=ANN, request_id="r")
    early = folder_of(2, "p2")
    assert early.gwid != unasked.gwid
    running = host.start("run")
    all_are("deployed", unanswered, early, pages[0])
    late = pages_of(7)  # what asks for it comes with another number, and later
    all_are("deployed", late)

    assert quotas(host) == before
    assert pool(host) == 20
    assert not AuditEntry.objects.filter(action="host_result_conflict").exists()
    wait_until("up")

    delete_workloads(agent_named().pk, [early.pk, late.pk], reason="r", actor=ANN, request_id="r")
    all_are("deleted", early, late)
    assert pool(host) == 15
    call_command(
        "host_agent", "remove", "h1", unknown.gwid, "--type", unknown.type, "--reason", "old"
    )
    until(lambda: state_of(Workload.objects.get(gwid=unknown.gwid)) == "deleted", "it stays")
    stop(running)
    assert stored(host) == sorted([unanswered.gwid, pages[0].gwid])
    assert quotas(host) == {
        unanswered.gwid: unanswered.gwid,
        f"{TRASH}{unasked.gwid}": unasked.gwid,
        f"{TRASH}{unknown.gwid}": unknown.gwid,
    }


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_an_agent_whose_store_is_gone_finds_what_it_made(host: Host, how: str) -> None:
    running = host.start("run")
    wait_until("up")
    folders = [folder_of(1, "p1"), folder_of(2, "p2")]
    pages = [pages_of(3), pages_of(4)]
    all_are("deployed", *folders, *pages)
    for row in folders:
        (host.root / "var/lib/headroom/quotas" / row.gwid / "data").write_text(row.gwid)
    running.kill()
    running.wait()
    told = list(WorkloadResult.objects.order_by("pk").values())
    assert pool(host) == 20

    for file in (host.root / "var/lib/headroom").glob("agent.sqlite*"):
        if how == "lost":
            file.unlink()
        else:
            file.write_bytes(b"x" * 5000)
    going = [folders[1], pages[1]]
    delete_workloads(
        agent_named().pk, [row.pk for row in going], reason="r", actor=ANN, request_id="r"
    )
    running = host.start("run")
    all_are("deleted", *going)
    later = pages_of(5)
    all_are("deployed", later)

    assert pool(host) == 20
    assert quotas(host) == {
        folders[0].gwid: folders[0].gwid,
        f"{TRASH}{folders[1].gwid}": folders[1].gwid,
    }
    all_are("deployed", folders[0], pages[0])
    kept = WorkloadResult.objects.filter(pk__in=[row["id"] for row in told]).order_by("pk")
    assert list(kept.values()) == told
    assert not AuditEntry.objects.filter(action="host_result_conflict").exists()
    stop(running)
    assert stored(host) == sorted(row.gwid for row in (folders[0], pages[0], later))
