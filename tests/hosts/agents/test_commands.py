"""What heartbeats are answered: readiness and commands (spec hosts, C.3, D.6)."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from headroom_host_agent.server.identity import Identity

from hosts.agents.commands import MOST_OPEN, AgentCommand
from hosts.agents.models import HostAgent
from hosts.domain.readiness import host_readiness
from hosts.models import Host
from journal.models import AuditEntry
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.test_leases import beat, up

UP: dict[str, Any] = {"state": "up", "status": "enabled", "maintenance": "", "held_off": ""}


def told(identity: Identity, **facts: Any) -> dict[str, Any]:
    answer = beat(identity, **facts)
    assert answer.status_code == 200, answer.content
    content: dict[str, Any] = json.loads(answer.content)
    return content


def tell(command: str, host: str = "h1", reason: str = "test") -> None:
    call_command("host_agent", "tell", host, command, "--reason", reason, stdout=StringIO())


@pytest.mark.parametrize(
    ("conditions", "facts", "reason", "message"),
    [
        ({}, {}, "Ready", ""),
        ({}, {"maintenance": "ha"}, "Ready", ""),
        ({"Ready": "True", "HypervisorDisabled": "False"}, {}, "Ready", ""),
        ({"Offboarded": "True", "Terminating": "True"}, {"state": "down"}, "Offboarded", ""),
        ({"Terminating": "True"}, {"maintenance": "manual"}, "Terminating", ""),
        ({"Evicting": "True"}, {"maintenance": "auto"}, "Evicting", ""),
        ({"Evicting": "False"}, {"maintenance": "auto"}, "Evicted", ""),
        ({}, {"maintenance": "termination", "state": "down"}, "Maintenance", ""),
        ({}, {"state": "unknown"}, "ServiceDown", "it is unknown"),
        ({}, {"state": "down", "status": "disabled"}, "ServiceDown", "it is down"),
        ({}, {"status": "disabled", "held_off": "x"}, "ServiceDisabled", ""),
        ({"Ready": "Unknown"}, {"held_off": "x"}, "Conditions", "Ready is Unknown"),
        ({"Tainted": "True", "Ready": "True"}, {"held_off": "cold"}, "SlotsHeldOff", "cold"),
    ],
)
def test_readiness_is_the_first_rule_that_says_no(
    conditions: dict[str, object], facts: dict[str, str], reason: str, message: str
) -> None:
    found = host_readiness(conditions, **(UP | facts))
    assert (found.is_ready, found.reason, found.message) == (reason == "Ready", reason, message)


@pytest.mark.django_db
def test_each_heartbeat_says_whether_the_host_is_ready() -> None:
    identity = up()
    ready = {"is_ready": True, "reason": "Ready", "message": ""}
    assert told(identity)["readiness"] == ready
    Host.objects.update(maintenance="manual")
    assert told(identity)["readiness"] == {**ready, "is_ready": False, "reason": "Maintenance"}
    make_host("h2")
    other = enrolled("h2")  # not up: the other way through the code
    assert told(other)["readiness"] == ready
    Host.objects.all().delete()
    assert told(other)["readiness"]["reason"] == "Unknown"
    assert told(identity)["readiness"]["reason"] == "Unknown"


@pytest.mark.django_db
def test_a_command_is_told_until_the_agent_says_that_it_is_done() -> None:
    identity = up()
    tell("report")
    tell("report")  # it waits already
    tell("rotate-key")

    report, rotate = told(identity)["commands"]
    assert [report["command"], rotate["command"]] == ["report", "rotate-key"]
    assert told(identity)["commands"] == [report, rotate]

    failed = {"id": rotate["id"], "ok": False, "message": "no room"}
    done = [{"id": report["id"], "ok": True}, failed, {"id": "x", "ok": True}]
    assert told(identity, done=done)["commands"] == []
    assert told(identity, done=done)["commands"] == []
    entries = AuditEntry.objects.filter(action__startswith="host_agent_command").order_by("id")
    assert list(entries.values_list("action", "after__command", "reason", "actor")) == [
        ("host_agent_commanded", "report", "test", "command:host_agent"),
        ("host_agent_commanded", "rotate-key", "test", "command:host_agent"),
        ("host_agent_command_done", "report", "", "host:h1"),
        ("host_agent_command_failed", "rotate-key", "no room", "host:h1"),
    ]


@pytest.mark.django_db
def test_what_cannot_be_told_is_refused() -> None:
    up()
    for host, reason in (("h9", "test"), ("h1", " ")):
        with pytest.raises(CommandError):
            tell("report", host, reason)
    waiting = [{"id": str(number), "command": "x"} for number in range(MOST_OPEN)]
    HostAgent.objects.update(commands=waiting)
    with pytest.raises(CommandError, match="wait for the agent"):
        tell("report")
    assert set(AgentCommand.values) == {"report", "resync", "cleanup", "rotate-key"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "done",
    [
        {},
        "x",
        [1],
        [{}],
        [{"id": 1, "ok": True}],
        [{"id": "a", "ok": 1}],
        [{"id": "a", "ok": True, "message": None}],
        [{"id": "a", "ok": True, "more": 1}],
        [{"id": "a" * 65, "ok": True}],
        [{"id": "a", "ok": True}] * (MOST_OPEN + 1),
    ],
)
def test_malformed_words_about_commands_are_refused(done: object) -> None:
    assert code_of(beat(up(), done=done)) == (400, "invalid_heartbeat")
