"""An agent's process behind a proxy, its polls held (spec hosts, D.14).

Which test proves which scenario of D.14, each with the agent's own process over HTTP:

1. ``test_process``: ``test_an_agent_enrols_reports_and_stops``; the overcommit rule is the feed's.
2. Here: ``test_a_slot_reaches_its_agent_by_a_held_poll_and_leaves_with_a_tombstone``; the same
   result again and another one: ``test_process_wire``.
3. Here: ``test_two_requests_at_once_never_hold_the_same_cores``.
4. Here, as 2.
5. ``test_process_kills``, both sides at any moment; ``tests.agent.process.test_kills``: the agent
   at each point of the table of D.8.
6. ``test_process_wire``: ``test_a_host_whose_clock_is_wrong_works_after_one_answer``.
7. ``test_process_wire``: ``test_what_an_agent_sent_is_of_no_use_to_others``.
8. Here: ``test_a_cut_network_makes_the_host_down_and_nothing_is_made_twice``.
9. Here: ``test_a_restored_database_removes_nothing_of_what_it_forgot``; what is wanted still:
   ``test_adoption``.
10. Here: ``test_a_key_is_changed_under_load_and_the_old_one_ends_after_a_day``.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from django.core.management import call_command
from django.db.models import F
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.server.identity import Identity, load_identity
from prometheus_client import REGISTRY
from pydantic import SecretStr

from capacity.agents.following import follow_slots, slot_states
from capacity.ledger.readiness import agree_with_agents
from capacity.models import Reservation
from hosts.agents.leases import sweep
from hosts.agents.models import AgentMode, HostAgent, HostKey, HostLease
from hosts.agents.modes import renew_timelines
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.agents.workloads import retry_workloads
from hosts.models import Host as HostRow
from journal.conf import AccessToken
from journal.metrics import metric_name
from tests.api.liquid_client import ADMIN
from tests.commitments.slot_worlds import verify
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.hosts.agents.agents import make_token
from tests.hosts.agents.router import Router, Routes, routed
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.test_held_polls import Role
from tests.hosts.agents.test_process import PATIENCE_SECONDS, Host, until, wait_until
from tests.hosts.agents.workloads import ANN, agent_named, get, make_workload, state_of
from tests.ledger import assert_rooms_add_up

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[Role]:
    made = Role(tmp_path_factory.mktemp("role"))
    made.start()
    yield made
    made.end()


@pytest.fixture
def router(live_server: Any, role: Role) -> Iterator[Router]:
    with routed(Routes(polls=role.port, web=urlsplit(live_server.url).port or 0)) as made:
        yield made


@pytest.fixture
def host(tmp_path: Path, router: Router, settings: Any) -> Iterator[Host]:
    quick = {"heartbeat_seconds": 0.2, "lease_seconds": 2.0, "down_after_seconds": 2.0}
    chosen = settings.HEADROOM.agents.model_copy(update=quick)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    make_host("h1")
    made = Host(tmp_path, router.url)
    assert made.enrol(make_token("h1"))[0] == 0
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    yield made
    made.end()


def identity_of(host: Host) -> Identity:
    found = load_identity(host.root / "var/lib/headroom")
    assert found is not None
    return found


def stored(host: Host) -> list[str]:
    store = SqliteStore(host.root / "var/lib/headroom/agent.sqlite")
    try:
        return sorted(row.id for row in store.list())
    finally:
        store.close()


def test_a_slot_reaches_its_agent_by_a_held_poll_and_leaves_with_a_tombstone(
    host: Host, role: Role
) -> None:
    host.start("run")
    wait_until("up")
    until(lambda: role.waiters() == 1, "the poll is not held")
    slot = make_slot(make_commitment(), HostRow.objects.get(), memory_gib=32, vcpus=8)

    follow_slots(actor=ANN, request_id="r")

    until(lambda: slot_states([slot.pk])[slot.pk].state == "deployed", "it is never deployed")
    agree_with_agents()
    slot.refresh_from_db()
    assert slot.is_ready is True
    row = Workload.objects.get()
    assert (row.cpus, row.memory_bytes) == (8, 32 << 30)
    kept = WorkloadResult.objects.get(workload=row)
    assert (kept.kind, kept.state, kept.kid) == ("result", "ok", identity_of(host).kid)

    Reservation.objects.all().delete()
    follow_slots(actor=ANN, request_id="r")

    until(lambda: state_of(row) == "deleted", "it is never removed")
    answer = get(identity_of(host), f"reservations/{row.gwid}")
    assert answer.status_code == 410
    assert json.loads(answer.content)["tombstone"]["to_delete"] is True
    until(lambda: role.waiters() == 1, "the poll is not held again")


def test_a_cut_network_makes_the_host_down_and_nothing_is_made_twice(
    host: Host, router: Router, role: Role
) -> None:
    running = host.start("run")
    wait_until("up")
    made = make_workload(1, memory_bytes=1 << 30)
    until(lambda: state_of(made) == "deployed", "it is never deployed")

    router.routes.is_cut = True
    pending = make_workload(2, memory_bytes=1 << 30)

    def is_down() -> bool:
        sweep(actor=ANN, request_id="r")
        return HostLease.objects.get().liveness == "down"

    until(is_down, "the host is not down")
    assert agent_named().fence_epoch == 2
    assert (state_of(made), state_of(pending)) == ("deployed", "lost")
    router.routes.is_cut = False

    wait_until("up")
    retry_workloads(agent_named().pk, [pending.pk], actor=ANN, request_id="r")
    until(lambda: state_of(pending) == "deployed", "what was lost is not asked for again")
    assert identity_of(host).fence_epoch == 2
    results = WorkloadResult.objects.filter(state="ok").values_list("workload", flat=True)
    assert sorted(results) == [made.pk, pending.pk]
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE_SECONDS) == 0
    assert stored(host) == sorted([made.gwid, pending.gwid])


def test_a_slot_of_a_host_that_is_cut_off_goes_elsewhere_and_is_made_nowhere_twice(
    host: Host, router: Router, role: Role
) -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host("h2")
    host.start("run")
    wait_until("up")
    router.routes.is_cut = True
    slot = make_slot(make_commitment(), HostRow.objects.get(name="h1"), memory_gib=1, vcpus=4)
    follow_slots(actor=ANN, request_id="r")
    agree_with_agents()

    def is_down() -> bool:
        sweep(actor=ANN, request_id="r")
        return HostLease.objects.get().liveness == "down"

    until(is_down, "the host is not down")
    row = Workload.objects.get()
    assert row.state == "lost"
    assert verify(is_full=False).events == {"slots_moved": 1}
    slot.refresh_from_db()
    assert (slot.target_host, slot.is_ready) == (HostRow.objects.get(name="h2"), True)
    assert_rooms_add_up()

    router.routes.is_cut = False
    wait_until("up")
    follow_slots(actor=ANN, request_id="r")
    until(lambda: state_of(row) == "deleted", "the agent does not drop it")
    assert Workload.objects.count() == Reservation.objects.count() == 1
    assert not WorkloadResult.objects.filter(state="ok").exists()


def test_a_restored_database_removes_nothing_of_what_it_forgot(host: Host, role: Role) -> None:
    running = host.start("run")
    wait_until("up")
    made = [make_workload(number, cpus=1, memory_bytes=1 << 30) for number in range(1, 6)]
    until(lambda: all(state_of(row) == "deployed" for row in made), "they are never deployed")

    WorkloadResult.objects.all().delete()
    Workload.objects.all().delete()
    HostAgent.objects.update(change_seq=0)
    renew_timelines(actor=ANN, request_id="r")

    later = make_workload(6, cpus=1, memory_bytes=2 << 30)
    until(lambda: state_of(later) == "deployed", "nothing is made after the restoration")
    wait_until("up")
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE_SECONDS) == 0
    assert stored(host) == sorted(row.gwid for row in (*made, later))
    assert not WorkloadResult.objects.exclude(workload=later).exists()

    host.start("run")
    gone, *kept = made
    call_command("host_agent", "remove", "h1", gone.gwid, "--type", gone.type, "--reason", "old")
    row = Workload.objects.get(gwid=gone.gwid)
    until(lambda: state_of(row) == "deleted", "what was forgotten is not removed")
    assert stored(host) == sorted(row.gwid for row in (*kept, later))


def commit(url: str, version: int, uuid: str) -> str:
    """Ask over HTTP for a commitment of one slot; return why not, empty for a yes."""
    entry = {
        "uuid": uuid,
        "oldStatus": None,
        "newStatus": "confirmed",
        "amount": 32,
        "expiresAt": "2036-01-01T00:00:00Z",
    }
    asked = {"totalConfirmedAfter": 32, "commitments": [entry]}
    body = {
        "az": "az-a",
        "infoVersion": version,
        "byProject": {uuid[:5]: {"byResource": {"hw_version_hana_1_ram": asked}}},
    }
    answer = requests.post(
        f"{url}/commitments/v1/change-commitments",
        json=body,
        headers={"X-Auth-Token": ADMIN},
        timeout=PATIENCE_SECONDS,
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json().get("rejectionReason", ""))


def test_two_requests_at_once_never_hold_the_same_cores(
    host: Host, live_server: Any, settings: Any
) -> None:
    limes = AccessToken(token=SecretStr(ADMIN), name="limes", roles=("cloud_resource_admin",))
    chosen = {"auth": "token", "tokens": (limes,)}
    settings.HEADROOM = settings.HEADROOM.model_copy(update=chosen)
    make_group("hana_1", flavors=[("big", 32 * 1024, 32)], ram_unit_gib=1)
    host.start("run")
    wait_until("up")
    assert HostRow.objects.get().effective_vcpus == 32
    url = live_server.url
    version = requests.get(
        f"{url}/commitments/v1/info", headers={"X-Auth-Token": ADMIN}, timeout=PATIENCE_SECONDS
    ).json()["version"]
    uuids = ("alpha-0000-0001", "betas-0000-0002")

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda uuid: commit(url, version, uuid), uuids))

    (refusal,) = [text for text in told if text]
    assert "asked 32 GiB and 32 vCPUs on one host" in refusal
    assert "largest free room: 32 GiB and 0 vCPUs on h1" in refusal
    slot = Reservation.objects.get()
    assert slot.target_host is not None
    assert (slot.target_host.name, slot.vcpus) == ("h1", 32)
    follow_slots(actor=ANN, request_id="r")
    until(lambda: slot_states([slot.pk])[slot.pk].state == "deployed", "it is never deployed")
    more = make_workload(43, cpus=1)
    until(lambda: state_of(more) == "failed", "the agent makes what its host has not")
    assert "cpu: requested 1" in Workload.objects.get(pk=more.pk).error


def refused() -> float:
    """Return how many requests of agents this process has refused."""
    name = metric_name("host_requests_rejected_total")
    return sum(
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name
    )


def test_a_key_is_changed_under_load_and_the_old_one_ends_after_a_day(
    host: Host, role: Role
) -> None:
    old = identity_of(host)
    host.start("run")
    wait_until("up")
    before = refused()
    rows = [make_workload(number, cpus=1, memory_bytes=1 << 20) for number in range(1, 11)]

    rotation = host.start("rotate-key")
    rows += [make_workload(number, cpus=1, memory_bytes=1 << 20) for number in range(11, 21)]
    said, error = rotation.communicate(timeout=PATIENCE_SECONDS)

    assert rotation.returncode == 0, error
    new = said.split()[-1]
    until(lambda: {state_of(row) for row in rows} == {"deployed"}, "not all are deployed")
    last = make_workload(21, cpus=1, memory_bytes=1 << 20)
    until(lambda: state_of(last) == "deployed", "nothing is made with the new key")
    assert refused() == before
    assert WorkloadResult.objects.get(workload=last).kid == new
    kids = set(WorkloadResult.objects.values_list("kid", flat=True))
    assert kids <= {old.kid, new}
    assert WorkloadResult.objects.filter(state="ok").count() == 21

    path = f"reservations/{last.gwid}"
    assert get(old, path).status_code == 200
    HostKey.objects.filter(kid=old.kid).update(not_after=F("not_after") - timedelta(hours=24))
    answer = get(old, path)
    assert code_of(answer) == (401, "key_revoked")
    after = make_workload(22, cpus=1, memory_bytes=1 << 20)
    until(lambda: state_of(after) == "deployed", "the agent does not go on")
