"""Heartbeats, silence and fencing against the database (spec hosts, D.3, D.9)."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.http import HttpResponse
from headroom_host_agent.server.identity import Identity
from hypothesis import given
from hypothesis import strategies as st

from hosts.agents.leases import fence, sweep
from hosts.agents.models import HostAgent, HostKey, HostLease, KeyState
from hosts.agents.modes import decommission
from hosts.agents.server_keys import rotate_server_key, told_keys
from hosts.domain.liveness import AgentLease, Liveness, Periods
from hosts.models import Host
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.models import AuditEntry
from tests.domain.hosts.silence import after_silence
from tests.examples import few
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, signed
from tests.hosts.agents.test_enrolment import code_of

ANN = Actor(name="ann")
RUN = "00000000-0000-4000-8000-000000000001"
PERIODS = Periods(lease=timedelta(seconds=30), down_after=timedelta(seconds=90))


def beat(identity: Identity, **facts: Any) -> HttpResponse:
    document = {"run_id": RUN, "boot_id": "b", "resynced": True, **facts}
    path = f"/hosts/v1/{identity.host_id}/heartbeat"
    return signed(identity, document, method="POST", path=path).send()


def up(name: str = "h1") -> Identity:
    """Return an agent that is up."""
    make_host(name)
    identity = enrolled(name)
    assert signed(identity).send().status_code == 204
    assert beat(identity).status_code == 200
    return identity


def pass_time(seconds: float) -> None:
    """Let what leases know be so much longer ago."""
    delta = timedelta(seconds=seconds)
    HostLease.objects.update(
        renewed_at=F("renewed_at") - delta,
        expires_at=F("expires_at") - delta,
        liveness_since=F("liveness_since") - delta,
    )


def swept() -> dict[str, int]:
    return sweep(actor=ANN, request_id="r")


def liveness(name: str = "h1") -> str:
    return HostLease.objects.get(agent__host_name=name).liveness


@pytest.mark.django_db
def test_a_heartbeat_renews_the_lease() -> None:
    make_host("h1")
    identity = enrolled()
    first = beat(identity, uptime_s=42, outbox_depth=3)
    row = HostLease.objects.get()
    assert (json.loads(first.content)["liveness"], row.liveness) == ("enrolled", "enrolled")
    assert (row.uptime_seconds, row.outbox_depth, row.boot_id) == (42, 3, "b")
    signed(identity).send()

    told = json.loads(beat(identity).content)

    row.refresh_from_db()
    assert told.pop("server_time")
    assert told.pop("server_public_keys")
    assert told.pop("timeline") == str(HostAgent.objects.get().timeline)
    assert told == {
        "heartbeat_s": 10.0, "lease_ttl_s": 30.0, "fence_epoch": 1, "change_seq": 0,
        "liveness": "up", "commands": [],
        "readiness": {"is_ready": True, "reason": "Ready", "message": ""},
    }  # fmt: skip
    assert row.expires_at - row.renewed_at == timedelta(seconds=30)  # type: ignore[operator]  # both are set
    assert AuditEntry.objects.filter(action="host_agent_up", object_id="h1").count() == 1


@pytest.mark.django_db
def test_the_usual_heartbeat_writes_one_row_besides_its_nonce(
    django_assert_max_num_queries: Any,  # Any: a fixture of pytest-django
) -> None:
    identity = up()

    with django_assert_max_num_queries(3, connection=connection) as statements:
        assert beat(identity).status_code == 200

    texts = [one["sql"] for one in statements.captured_queries]
    assert sum("UPDATE hosts_" in text for text in texts) == 1, texts


@pytest.mark.django_db
def test_every_heartbeat_tells_the_keys_that_are_told_elsewhere() -> None:
    make_host("h1")
    identity = enrolled()
    rotate_server_key(actor=ANN, request_id="r")
    before = json.loads(beat(identity).content)
    signed(identity).send()
    beat(identity)

    usual = json.loads(beat(identity).content)

    known = told_keys(database_now())
    assert [bool(one.get("signature")) for one in known] == [True, False]
    assert (before["liveness"], usual["liveness"]) == ("enrolled", "up")
    assert before["server_public_keys"] == usual["server_public_keys"] == known


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"run_id": None}, "run_id"),
        ({"run_id": "x"}, "run_id"),
        ({"run_id": 1}, "run_id"),
        ({"run_id": [RUN]}, "run_id"),
        ({"boot_id": 3}, "boot_id"),
        ({"boot_id": "b" * 65}, "boot_id"),
        ({"resynced": 1}, "resynced"),
        ({"takeover": "yes"}, "takeover"),
        ({"uptime_s": -1}, "uptime_s"),
        ({"uptime_s": 1.5}, "uptime_s"),
        ({"uptime_s": True}, "uptime_s"),
        ({"outbox_depth": 2**31}, "outbox_depth"),
    ],
)
def test_a_wrong_heartbeat_changes_nothing(facts: dict[str, Any], field: str) -> None:
    identity = up()
    before = HostLease.objects.values().get()

    answer = beat(identity, **facts)

    assert code_of(answer) == (400, "invalid_heartbeat")
    assert json.loads(answer.content)["error"]["field"] == field
    assert HostLease.objects.values().get() == before


@pytest.mark.django_db
def test_silence_makes_suspect_then_down_and_ends_the_epoch() -> None:
    identity = up()
    pass_time(29)
    assert (swept(), liveness()) == ({"suspect": 0, "down": 0}, "up")
    pass_time(2)
    assert (swept(), liveness()) == ({"suspect": 1, "down": 0}, "suspect")
    pass_time(80)
    assert (swept(), liveness()) == ({"suspect": 0, "down": 0}, "suspect")
    pass_time(10)

    assert (swept(), liveness()) == ({"suspect": 0, "down": 1}, "down")

    assert HostAgent.objects.get().fence_epoch == 2
    answer = beat(identity)
    assert code_of(answer) == (409, "stale_epoch")
    assert json.loads(answer.content)["error"]["details"] == {"fence_epoch": 2}
    assert liveness() == "down"
    identity = in_epoch(identity, 2)
    assert json.loads(beat(identity, resynced=False).content)["liveness"] == "down"
    assert json.loads(beat(identity).content)["liveness"] == "up"
    actions = AuditEntry.objects.filter(object_id="h1", action__startswith="host_agent_")
    told = list(actions.order_by("id").values_list("action", "reason"))
    assert told == [
        ("host_agent_up", "a heartbeat"),
        ("host_agent_suspect", "silence"),
        ("host_agent_down", "silence"),
        ("host_agent_up", "a heartbeat"),
    ]


def in_epoch(identity: Identity, epoch: int) -> Identity:
    return Identity(
        seed=identity.seed, host_id=identity.host_id, kid=identity.kid, fence_epoch=epoch
    )


@pytest.mark.django_db
def test_another_run_waits_for_the_end_of_the_lease() -> None:
    identity = up()
    other = str(uuid4())

    answer = beat(identity, run_id=other, boot_id="clone")
    assert code_of(answer) == (409, "run_superseded")
    assert HostLease.objects.get().run_id == RUN
    assert beat(identity, run_id=other).status_code == 200  # the same kernel
    assert beat(identity, boot_id="clone", takeover=True).status_code == 200
    assert code_of(beat(identity, run_id=other)) == (409, "run_superseded")
    pass_time(31)
    assert beat(identity, run_id=other).status_code == 200


@pytest.mark.django_db
def test_an_operator_fences_a_host_that_is_heard() -> None:
    identity = up()

    call_command("host_agent", "fence", "h1", "--reason", "its disk fails")

    assert (liveness(), HostAgent.objects.get().fence_epoch) == ("down", 2)
    assert code_of(beat(identity)) == (409, "stale_epoch")
    entry = AuditEntry.objects.get(action="host_agent_down")
    assert (entry.reason, entry.before, entry.after) == (
        "its disk fails", {"agent": "up"}, {"agent": "down", "fence_epoch": 2},
    )  # fmt: skip
    with pytest.raises(CommandError, match="no agent of a host 'h9'"):
        call_command("host_agent", "fence", "h9", "--reason", "x")
    with pytest.raises(InvalidInput):
        fence("h1", actor=ANN, request_id="r", reason=" ")


def lost(name: str = "h1") -> tuple[bool, bool]:
    """Return whether evacuations go from a host, and whether it takes VMs."""
    host = Host.objects.get(name=name)
    return host.is_lost, host.is_ready


@pytest.mark.django_db
def test_a_fenced_host_is_lost_until_its_agent_is_heard_again() -> None:
    identity = up()
    assert lost() == (False, True)
    fence("h1", actor=ANN, request_id="r", reason="x")
    assert lost() == (True, False)
    assert code_of(beat(identity)) == (409, "stale_epoch")
    assert lost() == (True, False)
    identity = replace(identity, fence_epoch=2)
    assert beat(identity, resynced=False).status_code == 200
    assert lost() == (True, False), "what the old epoch told it may be there still"
    assert beat(identity).status_code == 200
    assert lost() == (False, True)


@pytest.mark.django_db
def test_a_silent_host_is_not_lost() -> None:
    for number in range(5):
        up(f"h{number}")
    HostLease.objects.exclude(agent__host_name="h1").update(expires_at=Now() + PERIODS.lease * 99)
    for seconds in (31, 90):
        pass_time(seconds)
        swept()
    assert (liveness(), lost()) == ("down", (False, True))


@pytest.mark.django_db
def test_a_fenced_host_whose_agent_is_decommissioned_is_what_the_cloud_says() -> None:
    up()
    fence("h1", actor=ANN, request_id="r", reason="x")
    decommission("h1", actor=ANN, request_id="r", reason="x")
    assert lost() == (False, True)


@pytest.mark.django_db
def test_the_silence_of_most_agents_is_not_believed() -> None:
    for number in range(5):
        up(f"h{number}")
    pass_time(31)
    swept()
    pass_time(90)

    assert swept() == {"suspect": 0, "down": 0}
    assert set(HostLease.objects.values_list("liveness", flat=True)) == {"suspect"}
    assert set(HostAgent.objects.values_list("fence_epoch", flat=True)) == {1}

    keys = HostKey.objects.filter(agent__host_name__in=["h0", "h1", "h2"])
    keys.update(state=KeyState.REVOKED, revoked_at=database_now())
    assert swept() == {"suspect": 0, "down": 5}


@few(20)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(list(Liveness)), st.integers(-40, 200), st.integers(0, 200)),
        min_size=1,
        max_size=6,
    )
)
@pytest.mark.django_db
def test_a_sweep_agrees_with_the_rules(
    rows: list[tuple[Liveness, int, int]], settings: Any
) -> None:
    chosen = settings.HEADROOM.agents.model_copy(update={"believed_share": 1.0})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    HostAgent.objects.all().delete()
    now = database_now()
    wanted = {}
    for number, (state, over, since) in enumerate(rows):
        agent = HostAgent.objects.create(host_name=f"h{number}")
        end = now - timedelta(seconds=over + 0.5)
        before = AgentLease(
            liveness=state,
            since=now - timedelta(seconds=since + 0.5),
            renewed_at=end - PERIODS.lease,
            expires_at=end,
        )
        HostLease.objects.create(
            agent=agent,
            liveness=state.value,
            liveness_since=before.since,
            renewed_at=before.renewed_at,
            expires_at=before.expires_at,
        )
        after = after_silence(before, now=now, periods=PERIODS)
        is_down_now = after.liveness == Liveness.DOWN != state
        wanted[agent.host_name] = (after.liveness.value, 2 if is_down_now else 1)

    swept()

    found = HostLease.objects.values_list("agent__host_name", "liveness", "agent__fence_epoch")
    assert {name: (state, epoch) for name, state, epoch in found} == wanted


@pytest.mark.django_db(transaction=True)
def test_heartbeats_and_sweeps_race() -> None:
    """Whoever is first, an agent that is up has the epoch it sent, one that is down the next."""
    identity = up()
    codes: list[int] = []
    for _ in range(8):
        pass_time(200)
        HostLease.objects.update(
            liveness="suspect", liveness_since=database_now() - timedelta(seconds=100)
        )
        identity = in_epoch(identity, HostAgent.objects.get().fence_epoch)
        barrier = threading.Barrier(2)

        def beat_now(identity: Identity = identity, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            codes.append(beat(identity).status_code)
            connection.close()

        thread = threading.Thread(target=beat_now)
        thread.start()
        barrier.wait(10)
        swept()
        thread.join(30)
        epoch = HostAgent.objects.get().fence_epoch
        grown = epoch - identity.fence_epoch
        assert (codes[-1], liveness(), grown) in {(200, "up", 0), (409, "down", 1)}
    connection.close()
