"""The agent's own process tells what libvirt lists, and the brakes of failover hold by it.

libvirt's test driver where Debian's libvirt is installed, else a module of our own in its place.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capacity.agents.following import follow_slots
from capacity.models import Reservation
from config.launcher.places import this_checkout
from failover.choices import EventReason, RunOutcome
from failover.models import FailoverEvent, FailoverZone
from hosts.agents import observed_views
from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.observed import change_instances
from hosts.agents.workload_models import Workload
from hosts.models import Host as HostRow
from hosts.models import Instance
from tests.factories import make_commitment, make_slot
from tests.failover.zones import cover, hosts, require, run, vm
from tests.hosts.agents.agents import make_token
from tests.hosts.agents.test_process import Host, until, wait_until
from tests.hosts.agents.workloads import ANN, state_of

pytestmark = pytest.mark.django_db(transaction=True)

# Debian's module is for Debian's Python; ours of the same version loads it too.
DEBIAN = Path("/usr/lib/python3/dist-packages")
OURS = this_checkout().root / "tests/agent/resources/without_libvirt"
URI = "test:///default"
TEST = "6695eb01-f6a4-8304-79aa-97f2502e193f"  # the VM that the test driver begins with
SECOND, THIRD = (f"00000000-0000-4000-8000-00000000000{number}" for number in (2, 3))
MAIN = f"""
import sys, threading
import libvirt
from headroom_host_agent.cli import main

vms = libvirt.open({URI!r})

def obey():
    for line in sys.stdin:
        order, name, *uuid = line.split()
        if order == "define":
            vms.defineXML(f"<domain type='test'><name>{{name}}</name><uuid>{{uuid[0]}}</uuid>"
                          "<memory unit='MiB'>1024</memory><os><type>hvm</type></os></domain>"
                          ).create()
        else:
            domain = vms.lookupByName(name)
            if domain.info()[0] == 1:
                domain.destroy()
            domain.undefine()

if "run" in sys.argv:
    threading.Thread(target=obey, daemon=True).start()
sys.exit(main())
"""


def module_path(folder: Path) -> Path:
    """Return a folder that holds libvirt's module and nothing else."""
    for file in DEBIAN.glob("libvirt*"):
        (folder / file.name).symlink_to(file)
    line = [sys.executable, "-c", "import libvirt; libvirt.open('test:///default')"]
    done = subprocess.run(  # noqa: S603 - ours
        line, env={"PYTHONPATH": str(folder)}, capture_output=True, check=False
    )
    return folder if done.returncode == 0 else OURS


@pytest.fixture
def host(tmp_path: Path, live_server: Any, settings: Any) -> Iterator[Host]:
    chosen = settings.HEADROOM.agents.model_copy(update={"heartbeat_seconds": 0.2})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    hosts("h1 h2 h3 h4 h5")
    made = Host(tmp_path / "host", live_server.url, main=MAIN)
    (tmp_path / "libvirt").mkdir()
    made.environment["PYTHONPATH"] += f":{module_path(tmp_path / 'libvirt')}"
    made.environment |= {
        "HEADROOM_AGENT__LIBVIRT__URI": URI,
        "HEADROOM_AGENT__REPORT__INTERVAL": "3600",  # what is told is told because it changed
    }
    code, said = made.enrol(make_token("h1"))
    assert code == 0, said
    yield made
    made.end()


def tell(process: subprocess.Popen[str], order: str) -> None:
    assert process.stdin is not None
    process.stdin.write(order + "\n")
    process.stdin.flush()


def told() -> dict[str, bool] | None:
    """Return uuid -> whether it runs, of the list that is kept of the agent's host."""
    listed = HostRow.objects.get(name="h1").reported_instances
    return None if listed is None else {one["id"]: one["active"] for one in listed}


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was taken with PATCH."""
    taken: list[object] = []

    def counted(agent: HostAgent, sent: object) -> None:
        change_instances(agent, sent)
        taken.append(sent)

    monkeypatch.setattr(observed_views, "change_instances", counted)
    return taken


def until_told(*uuids: str) -> None:
    until(lambda: set(told() or ()) == set(uuids), f"{uuids} are not told")


def test_what_an_agent_tells_of_vms_arms_the_brakes(host: Host, changes: list[object]) -> None:
    for name, place in ((TEST, "h1"), (SECOND, "h1"), ("vm-9", "h2")):
        vm(f"{name}@{place}")
    require(any=2)
    running = host.start("run")
    wait_until("up")
    until_told(TEST)

    tell(running, f"define second {SECOND}")
    until_told(TEST, SECOND)
    tell(running, f"define third {THIRD}")
    until_told(TEST, SECOND, THIRD)
    tell(running, "undefine third")
    until_told(TEST, SECOND)
    assert len(changes) >= 3
    run()
    covered = cover()
    assert covered == {TEST: 2, SECOND: 2, "vm-9": 2}

    # The cloud loses the VMs of the host: what the agent lists keeps its cover.
    Instance.objects.filter(host__name="h1").delete()
    assert run().brake == ""
    assert cover() == covered
    assert FailoverEvent.objects.get(reason=EventReason.SAFEGUARD_KEPT).facts == {"memberships": 4}

    # The host loses them as well: one after the other, by changes of its list.
    tell(running, "undefine second")
    until_told(TEST)
    tell(running, "undefine test")
    until_told()
    assert told() == {}
    result = run()
    assert (result.outcome, result.brake) == (RunOutcome.HALTED, "hosts_report_no_vms")
    assert FailoverZone.objects.get().brake_reason == "hosts_report_no_vms"
    assert cover() == covered

    tell(running, f"define second {SECOND}")
    until_told(SECOND)
    assert run().brake != "hosts_report_no_vms"


def test_a_list_that_became_empty_is_not_believed_while_the_cloud_has_vms(host: Host) -> None:
    vm(f"{TEST}@h1")
    running = host.start("run")
    wait_until("up")
    until_told(TEST)

    tell(running, "undefine test")
    assert running.stderr is not None
    until_said = (line for line in running.stderr if "empty_list_unproven" in line)
    assert next(until_said)

    assert set(told() or ()) == {TEST}


def test_a_slot_that_vms_fill_is_made_and_changes_its_size_where_it_is(host: Host) -> None:
    """On a host whose every CPU is taken: by VMs that are in the slot, as its agent is told."""
    host.environment |= {
        "HEADROOM_AGENT__CAPACITY__CPU": "4",
        "HEADROOM_AGENT__POLL__MIN_INTERVAL": "1",
    }
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    running = host.start("run")
    wait_until("up")
    tell(running, f"define second {SECOND}")
    tell(running, f"define third {THIRD}")
    until_told(TEST, SECOND, THIRD)
    slot = make_slot(make_commitment(), HostRow.objects.get(name="h1"), memory_gib=1, vcpus=4)
    slots = Reservation.objects.filter(pk=slot.pk)
    slots.update(blocked_vcpus=0, blocked_memory_bytes=0)

    def made(vcpus: int) -> Workload:
        slots.update(vcpus=vcpus)
        follow_slots(actor=ANN, request_id="r")
        row = Workload.objects.get(to_delete=False)
        assert row.cpus == vcpus
        until(lambda: state_of(row) in {"deployed", "failed"}, "its agent never answers")
        row.refresh_from_db()
        return row

    first = made(4)
    assert (first.state, first.error) == ("deployed", "")
    for vcpus, state in ((3, "deployed"), (4, "deployed"), (5, "failed"), (2, "deployed")):
        row = made(vcpus)
        assert (row.pk, row.gwid, row.state) == (first.pk, first.gwid, state), row.error
        assert row.is_made
    assert not Workload.objects.filter(to_delete=True).exists()
