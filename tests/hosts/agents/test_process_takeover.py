"""Two agents of one host at once, as processes against a served Headroom (spec hosts, D.9)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from hosts.agents.enrolment import revoke_key
from hosts.agents.models import HostAgent, HostKey, HostLease
from journal.actors import Actor
from journal.models import AuditEntry
from tests.agent.trees import plant
from tests.factories import make_host
from tests.hosts.agents.agents import make_token
from tests.hosts.agents.test_process import MAIN, PATIENCE_SECONDS, Host, until, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

#: Gives up as soon as it was refused for a moment, not for two leases.
IMPATIENT = (
    "from headroom_host_agent.server import heart; heart.LEASE_SECONDS = 0.2; "
    "heart.HEARTBEAT_SECONDS = 0.2; " + MAIN
)
FOLDER = "var/lib/headroom"


def other(tmp_path: Path, url: str, *, main: str = MAIN) -> Host:
    """Return a host of the same name under another kernel."""
    made = Host(tmp_path, url, main=main)
    plant(made.root, {"proc/sys/kernel/random/boot_id": "1c9b7f3e-0000-4000-8000-000000000002\n"})
    return made


@pytest.fixture
def hosts(tmp_path: Path, live_server: Any) -> Iterator[tuple[Host, Host]]:
    make_host("h1")
    made = (
        Host(tmp_path / "one", live_server.url),
        other(tmp_path / "two", live_server.url, main=IMPATIENT),
    )
    yield made
    for one in made:
        one.end()


def said_by(process: Any) -> str:
    """Return what a process said until it ended, which it does by itself."""
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    return str(said)


def test_of_a_cloned_disk_the_agent_that_lives_stays_unless_it_is_taken_over(
    hosts: tuple[Host, Host], settings: Any
) -> None:
    chosen = settings.HEADROOM.agents.model_copy(
        update={"heartbeat_seconds": 0.2, "lease_seconds": 600}
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    original, clone = hosts
    assert original.enrol(make_token())[0] == 0
    running = original.start("run")
    first = wait_until("up").run_id
    shutil.copy(original.root / FOLDER / "identity.json", clone.root / FOLDER / "identity.json")

    refused = clone.start("run")
    assert "another run of this agent holds the lease" in said_by(refused)
    assert refused.returncode == 4
    assert running.poll() is None
    assert HostLease.objects.get().run_id == first

    winner = clone.start("run", "--takeover")
    assert "another run of this agent holds the lease" in said_by(running)
    assert running.returncode == 4
    until(lambda: HostLease.objects.get().run_id != first, "the lease is not taken over")
    lease = HostLease.objects.get()
    assert lease.liveness == "up"
    until(lambda: HostLease.objects.get().renewed_at != lease.renewed_at, "it is not renewed")
    assert winner.poll() is None
    assert HostLease.objects.get().run_id == lease.run_id
    told = AuditEntry.objects.filter(action__startswith="host_agent_")
    assert set(told.values_list("action", flat=True)) == {"host_agent_enrolled", "host_agent_up"}


def test_a_host_is_not_enrolled_anew_while_its_agent_lives(
    hosts: tuple[Host, Host], settings: Any
) -> None:
    chosen = settings.HEADROOM.agents.model_copy(
        update={"heartbeat_seconds": 0.2, "lease_seconds": 600}
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    old, new = hosts
    assert old.enrol(make_token())[0] == 0
    running = old.start("run")
    first = wait_until("up")
    key = HostKey.objects.get()

    code, said = new.enrol(make_token())
    assert (code, "host_exists" in said) == (3, True)
    assert running.poll() is None
    assert HostKey.objects.get() == key

    revoke_key(pk=key.pk, actor=Actor(name="ann"), request_id="r")
    said_by(running)
    assert running.returncode == 4
    assert new.enrol(make_token())[0] == 0
    assert HostKey.objects.get(state="active").kid != key.kid
    assert HostAgent.objects.count() == 1
    waits = new.start("run")
    assert "another run of this agent holds the lease" in said_by(waits)
    assert (waits.returncode, HostLease.objects.get().run_id) == (4, first.run_id)

    HostLease.objects.update(expires_at=timezone.now())
    new.start("run")
    until(lambda: HostLease.objects.get().run_id != first.run_id, "it has no lease")
    assert HostLease.objects.get().liveness == "up"
