"""Commands of the server, and lists of VMs as changes (spec hosts, D.6, D.10)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from headroom_host_agent.process.observer import Observer, instances_digest
from headroom_host_agent.process.orders import Orders
from headroom_host_agent.provision.options import Usage
from headroom_host_agent.provision.units import Units
from headroom_host_agent.resources.facts import InstanceAllocation
from headroom_host_agent.server.client import RefusedError, Request, ServerError
from headroom_host_agent.server.identity import Enrolled, Identity, new_identity
from headroom_host_agent.server.refusals import EndedError

from hosts.agents.observed import instances_digest as digest_of_server
from tests.agent.process.served import Headroom, Run, served, until


def command(identity: str, name: str) -> dict[str, str]:
    return {"id": identity, "command": name}


def test_each_command_is_carried_out_once_and_told_with_the_next_heartbeat() -> None:
    calls: list[str] = []
    failures: list[Exception] = [ServerError("cut"), RefusedError(409, "too_many_keys", "3", {})]

    def fail() -> None:
        calls.append("fail")
        raise failures.pop(0)

    orders = Orders({"report": lambda: calls.append("report"), "rotate-key": fail})
    told = [command("1", "report"), command("2", "rotate-key"), command("3", "reboot")]

    orders.take(told)
    assert calls == ["report", "fail"]
    first = orders.done()
    assert [(one["id"], one["ok"]) for one in first] == [("1", True), ("3", False)]
    assert orders.done() == first  # that heartbeat was not taken
    orders.take(told)  # it was, but the answer is older than what it said
    assert calls == ["report", "fail", "fail"]
    assert [(one["id"], one["ok"]) for one in orders.done()] == [("2", False)]
    orders.take([])
    assert orders.done() == []
    orders.take([command("1", "report")])  # told anew
    assert calls[-1] == "report"


@pytest.mark.parametrize("told", [None, "x", [1], [{}], [{"id": 1, "command": "report"}]])
def test_what_is_no_command_does_nothing(told: object) -> None:
    orders = Orders({"report": lambda: pytest.fail("carried out")})
    orders.take(told)
    assert orders.done() == []


def test_a_running_agent_does_what_it_is_told_and_says_so(
    tmp_path: Path,
) -> None:
    headroom = Headroom()
    with served(headroom) as url:
        run = Run(tmp_path, url, headroom)
        with run.running() as agent:
            until(lambda: agent.parts.store.cursor == 0 and headroom.polls)
            headroom.assign("1-1")
            until(lambda: headroom.said("1-1"))
            headroom.commands = [command("a", "resync"), command("b", "cleanup")]
            headroom.commands.append(command("c", "nothing of ours"))
            until(lambda: any("done" in one for one in headroom.beats))
            (done,) = (one["done"] for one in headroom.beats if "done" in one)
            assert {one["id"]: one["ok"] for one in done} == {"a": True, "b": True, "c": False}
            headroom.commands = []
            until(lambda: headroom.polls.count(0) > 1)
            until(lambda: agent.readiness == headroom.readiness)
        assert not run.errors
    assert headroom.said("1-1") == [("ok", 1)]


class Wire:
    """Keeps what is sent; refuses what it is told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.refusals: list[Exception | None] = []
        self.kept: list[dict[str, Any]] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC)

    def signed(self, _: Identity, request: Request) -> Mapping[str, object]:
        if request.path.endswith("/stats"):
            return {}
        document = json.loads(request.body)
        self.sent.append((request.method, document))
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal
        if request.method == "PUT":
            self.kept = document["instances"]
        else:
            assert document["base_digest"] == instances_digest(self.kept)
            gone = {*document["removed"], *(row["uuid"] for row in document["added"])}
            rows = [row for row in self.kept if row["uuid"] not in gone]
            self.kept = rows + document["added"]
        return {}


def vm(name: str, state: str = "Running") -> InstanceAllocation:
    return InstanceAllocation(id=name, name=name, state=state, vcpus=1, memory_bytes=1)


def observer(wire: Wire, vms: list[InstanceAllocation], folder: Path) -> Observer:
    usage = Usage(units=Units(), workloads={})
    return Observer(
        wire,  # type: ignore[arg-type]  # what it calls of a client
        Enrolled(folder, new_identity()),
        instances=lambda: vms,
        usage=lambda: usage,
        interval_seconds=60,
    )


def test_a_list_is_sent_whole_once_and_as_changes_from_then_on(tmp_path: Path) -> None:
    wire, vms = Wire(), [vm("a"), vm("b")]
    observing = observer(wire, vms, tmp_path)
    observing.tell()
    vms[:] = [vm("b", "Stopped"), vm("c")]
    observing.tell()
    observing.tell()

    assert [method for method, _ in wire.sent] == ["PUT", "PATCH", "PATCH"]
    assert wire.sent[1][1]["removed"] == ["a"]
    assert [row["uuid"] for row in wire.sent[1][1]["added"]] == ["b", "c"]
    assert (wire.sent[2][1]["added"], wire.sent[2][1]["removed"]) == ([], [])
    assert {row["uuid"]: row["active"] for row in wire.kept} == {"b": False, "c": True}
    stored = [{"id": row["uuid"], **row} for row in wire.kept]
    assert instances_digest(wire.kept) == digest_of_server(stored)


def test_the_whole_list_follows_when_the_server_has_another(tmp_path: Path) -> None:
    wire, vms = Wire(), [vm("a")]
    observing = observer(wire, vms, tmp_path)
    observing.tell()
    wire.kept = []
    wire.refusals = [RefusedError(409, "digest_mismatch", "another", {})]
    observing.tell()
    assert [method for method, _ in wire.sent] == ["PUT", "PATCH", "PUT"]
    assert [row["uuid"] for row in wire.kept] == ["a"]

    wire.refusals = [ServerError("cut"), ServerError("cut")]
    observing.tell()
    observing.tell()  # nothing is known of what the server keeps
    assert [method for method, _ in wire.sent[3:]] == ["PATCH", "PUT", "PUT"]
    observing.forget()
    observing.tell()
    assert wire.sent[-1][0] == "PUT"
    wire.refusals = [RefusedError(410, "decommissioned", "gone", {})]
    with pytest.raises(EndedError):
        observing.tell()
