"""Versions of agents: told with heartbeats, wanted in waves (spec hosts, D.15)."""

from __future__ import annotations

import json
import tomllib
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.utils import timezone
from headroom_host_agent import VERSION

from config.launcher.places import this_checkout
from hosts.agents.errors import AgentConflict
from hosts.agents.models import HostAgent
from hosts.agents.rollout_models import AgentRollout
from hosts.agents.rollouts import (
    look_at_rollout,
    resume_rollout,
    start_rollout,
    stop_rollout,
)
from hosts.models import Host
from journal.errors import InvalidInput
from journal.models import AuditEntry
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.test_leases import beat, up
from tests.hosts.agents.workloads import ANN

pytestmark = pytest.mark.django_db
WHO: dict[str, Any] = {"actor": ANN, "request_id": "r"}
ROLLED = "1.1.0"


def look() -> dict[str, int]:
    return look_at_rollout(**WHO)


def later() -> None:
    AgentRollout.objects.update(wave_at=timezone.now() - timedelta(hours=1))


def runs(name: str, version: str = ROLLED, **facts: Any) -> None:
    HostAgent.objects.filter(host_name=name).update(agent_version=version, **facts)


def wanted() -> dict[str, str]:
    return dict(HostAgent.objects.values_list("host_name", "wanted_version"))


@pytest.fixture
def agents() -> dict[str, Any]:
    made = {}
    for name, block in (("h1", "bb1"), ("h2", "bb1"), ("h3", "bb2")):
        made[name] = up(name)
        Host.objects.filter(name=name).update(building_block=block)
    return made


def test_an_agent_says_its_version_and_is_told_which_is_wanted() -> None:
    identity = up("h1")
    HostAgent.objects.update(abilities=None)
    for _ in range(2):
        answer = beat(identity, version="1.0.9", can=["resize", "resize", "later"])
        assert "wanted_version" not in json.loads(answer.content)
    agent = HostAgent.objects.get()
    assert (agent.agent_version, agent.abilities) == ("1.0.9", ["later", "resize"])
    (entry,) = AuditEntry.objects.filter(action="host_agent_version")
    assert (entry.before["can"], entry.after["version"]) == (None, "1.0.9")  # type: ignore[index]  # it has both

    HostAgent.objects.update(wanted_version=ROLLED)
    assert json.loads(beat(identity, version="1.0.9").content)["wanted_version"] == ROLLED
    beat(identity)  # of an older release: it says neither
    agent.refresh_from_db()
    assert (agent.agent_version, agent.abilities) == ("1.0.9", [])


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"version": 1}, "version"),
        ({"version": "1" * 65}, "version"),
        ({"can": "resize"}, "can"),
        ({"can": [1]}, "can"),
        ({"can": ["x" * 65]}, "can"),
        ({"can": ["x"] * 33}, "can"),
    ],
)
def test_odd_versions_are_refused(facts: dict[str, Any], field: str) -> None:
    make_host("h1")
    answer = beat(enrolled("h1"), **facts)
    assert code_of(answer) == (400, "invalid_heartbeat")
    assert json.loads(answer.content)["error"]["field"] == field


@pytest.mark.usefixtures("agents")
def test_a_version_reaches_hosts_wave_after_wave() -> None:
    assert look() == {}
    start_rollout(ROLLED, reason="fixes", **WHO)
    assert look() == {"waves": 1, "running": 0, "failing": 0, "halted": 0}
    assert wanted() == {"h1": ROLLED, "h2": ROLLED, "h3": ""}
    runs("h1")
    later()
    look()
    assert wanted()["h3"] == ""
    runs("h2")
    look()
    assert wanted()["h3"] == ROLLED
    runs("h3")
    look()
    row = AgentRollout.objects.get()
    assert (row.waves, row.is_open, row.halted_at) == (["bb1", "bb2"], False, None)
    told = AuditEntry.objects.filter(action__startswith="agent_rollout").order_by("pk")
    assert list(told.values_list("action", flat=True)) == [
        "agent_rollout_started", "agent_rollout_wave", "agent_rollout_wave", "agent_rollout_ended",
    ]  # fmt: skip
    assert look() == {}
    assert set(wanted().values()) == {ROLLED}


@pytest.mark.usefixtures("agents")
def test_it_halts_when_agents_fail_and_goes_on_when_it_is_told() -> None:
    start_rollout(ROLLED, reason="fixes", **WHO)
    look()
    runs("h1", health_problem="disk: sda")
    later()
    assert look() == {"waves": 1, "running": 1, "failing": 1, "halted": 1}
    assert wanted() == {"h1": ROLLED, "h2": "", "h3": ""}
    out = StringIO()
    call_command("host_agent", "rollout", "status", stdout=out)
    assert out.getvalue() == f"{ROLLED} is halted; waves: bb1\nfails: h1\n"
    runs("h1", health_problem="")
    look()
    assert wanted()["h2"] == ""  # until somebody says so
    resume_rollout(reason="new disk", **WHO)
    look()
    assert wanted()["h2"] == ROLLED
    stop_rollout(reason="enough", **WHO)
    assert set(wanted().values()) == {""}
    assert not AgentRollout.objects.get().is_open


def test_what_is_refused() -> None:
    for version in ("", "1 2", "../x", "1" * 65):
        with pytest.raises(InvalidInput):
            start_rollout(version, reason="x", **WHO)
    with pytest.raises(InvalidInput):
        start_rollout(ROLLED, reason=" ", **WHO)
    for of in (stop_rollout, resume_rollout):
        with pytest.raises(AgentConflict):
            of(reason="x", **WHO)
    start_rollout(ROLLED, reason="x", **WHO)
    with pytest.raises(CommandError, match="is being rolled out"):
        call_command("host_agent", "rollout", "start", "2.0", "--reason", "x")
    with pytest.raises(IntegrityError), transaction.atomic():
        AgentRollout.objects.create(version="2", reason="x", opened_by="ann")


def test_the_agent_says_the_version_that_is_installed() -> None:
    path = this_checkout().root / "clients/agent/pyproject.toml"
    assert tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"] == VERSION
