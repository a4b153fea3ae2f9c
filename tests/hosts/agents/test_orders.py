"""Orders of operators over HTTP (spec hosts, D.6): carried out once, audited, refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from pydantic import SecretStr

from hosts.agents.models import HostAgent
from hosts.models import Host
from journal.conf import AccessToken
from journal.models import AuditEntry
from tests.api.liquid_client import ADMIN, VIEWER
from tests.factories import make_commitment, make_slot, make_vm
from tests.hosts.agents.test_leases import beat, liveness, up
from tests.hosts.agents.workloads import enforcing, make_workload, poll
from tests.openapi_documents import validator

pytestmark = pytest.mark.django_db
ROLES = {ADMIN: "cloud_resource_admin", VIEWER: "cloud_resource_viewer"}
ORDERS = ("mode", "fence", "commands", "decommission", "reservations/1-1/decommission")
BODY = {"mode": "none", "command": "report", "reason": "moved"}


@pytest.fixture(autouse=True)
def _tokens(settings: Any) -> None:
    tokens = tuple(
        AccessToken(token=SecretStr(token), name=role, roles=(role,))
        for token, role in ROLES.items()
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "token", "tokens": tokens})


def order(
    name: str, body: object, *, host: str = "h1", key: str = "", token: str = ADMIN
) -> HttpResponse:
    headers = {"X-Auth-Token": token} | ({"Idempotency-Key": key} if key else {})
    return Client(raise_request_exception=False).post(  # type: ignore[return-value]  # the test client's own response
        f"/api/v1/hosts/{host}/{name}", json.dumps(body), "application/json", headers=headers
    )


def told(answer: HttpResponse, schema: str, *, status: int = 200) -> dict[str, Any]:
    """Return an answer that is as documented."""
    assert answer.status_code == status, answer.content
    content: dict[str, Any] = json.loads(answer.content)
    validator("hosts", schema).validate(content)
    return content


def refusal(answer: HttpResponse) -> tuple[int, str]:
    assert answer["Content-Type"] == "application/problem+json", answer.content
    return answer.status_code, json.loads(answer.content)["code"]


def test_a_fence_that_is_sent_again_ends_one_epoch() -> None:
    identity = up()

    first, again = (order("fence", {"reason": "burns"}, key="k1") for _ in range(2))

    content = told(first, "FencedAgent", status=202)
    assert (content["host"], content["fence_epoch"]) == ("h1", 2)
    assert (again.status_code, again.content) == (202, first.content)
    assert again["Idempotent-Replayed"] == "true"
    assert (liveness(), HostAgent.objects.get().fence_epoch) == ("down", 2)
    assert beat(identity).status_code == 409
    entry = AuditEntry.objects.get(action="host_agent_down")
    assert (entry.actor, entry.reason) == ("cloud_resource_admin", "burns")
    assert entry.request_id == content["task_id"]


def test_the_mode_of_an_agent_is_set() -> None:
    up()
    answer = order("mode", {"mode": "enforce", "reason": "tested"})
    assert told(answer, "AgentWithMode") == {"host": "h1", "mode": "enforce"}
    assert HostAgent.objects.get().mode == "enforce"
    assert AuditEntry.objects.get(action="host_agent_mode_set").reason == "tested"
    wrong = order("mode", {"mode": "all"})
    assert refusal(wrong) == (400, "invalid_input")
    assert json.loads(wrong.content)["field"] == "mode"


def test_an_agent_is_told_to_report() -> None:
    up()
    first, again = (order("commands", BODY) for _ in range(2))
    content = told(first, "ToldAgent")
    assert (content["host"], content["command"]) == ("h1", "report")
    assert told(again, "ToldAgent") == content  # it waits already
    assert HostAgent.objects.get().commands == [{"id": content["id"], "command": "report"}]
    assert refusal(order("commands", {**BODY, "command": "reboot"})) == (400, "invalid_input")


def test_an_agent_is_decommissioned_once() -> None:
    identity = up()
    answer = order("decommission", {"reason": "sold", "force": True})
    content = told(answer, "EndedAgent", status=202)
    assert (content["host"], content["is_decommissioned"]) == ("h1", True)
    entry = AuditEntry.objects.get(action="host_agent_decommissioned")
    assert entry.request_id == content["task_id"]
    assert beat(identity).status_code == 410
    assert refusal(order("decommission", {"reason": "sold"})) == (404, "unknown_agent")


@pytest.mark.parametrize("name", ORDERS)
def test_a_refused_order_changes_nothing(name: str) -> None:
    up()
    before, entries = HostAgent.objects.values().get(), AuditEntry.objects.count()
    code = "unknown_reservation" if name.startswith("reservations") else "unknown_agent"
    for host in ("h9", "a%00b", "%ff"):
        assert refusal(order(name, BODY, host=host)) in {(404, code), (404, "unknown_agent")}
    assert refusal(order(name, BODY, token=VIEWER))[0] == 403
    assert refusal(order(name, BODY, token=""))[0] == 401
    bodies: list[object] = [[], {"mode": "none", "reason": 3}, {**BODY, "reason": "a\0"}]
    if name != "mode":
        bodies += [{}, {"reason": " "}]
    for body in bodies:
        assert order(name, body).status_code == 400, body
    assert HostAgent.objects.values().get() == before
    assert AuditEntry.objects.count() == entries


def test_an_agent_that_has_something_is_not_decommissioned() -> None:
    up()
    assert order("mode", {"mode": "enforce"}).status_code == 200
    make_workload()
    assert refusal(order("decommission", {"reason": "sold"})) == (409, "agent_in_use")
    assert HostAgent.objects.get().decommissioned_at is None


@pytest.mark.parametrize("what", ["slots", "vms"])
def test_an_agent_whose_host_has_something_is_not_decommissioned(what: str) -> None:
    up()
    host = Host.objects.get()
    if what == "slots":
        make_slot(make_commitment(), host)
    else:
        make_vm(host=host)
    refused = order("decommission", {"reason": "sold"})
    assert refusal(refused) == (409, "agent_in_use")
    assert f"still has 1 {what}" in json.loads(refused.content)["detail"]
    assert order("decommission", {"reason": "sold", "force": True}).status_code == 202


def test_one_reservation_is_removed_and_those_of_others_are_not() -> None:
    identity = enforcing("h1")
    enforcing("h2")
    mine, other, theirs = make_workload(1), make_workload(2), make_workload(3, "h2")
    path, body = f"reservations/{mine.gwid}/decommission", {"reason": "broken"}

    first, again = (order(path, body) for _ in range(2))

    ending = {"host": "h1", "reservation": mine.gwid, "state": "deleting"}
    assert told(first, "EndingReservation") == told(again, "EndingReservation") == ending
    rows = {row["id"]: row["to_delete"] for row in poll(identity)["reservations"]}
    assert rows == {mine.gwid: True, other.gwid: False}
    entry = AuditEntry.objects.get(action="host_workload_deleting")
    assert (entry.object_id, entry.reason) == (mine.gwid, "broken")
    for gwid in (theirs.gwid, "9-9", "x", "1" * 60, "a%00b"):
        refused = order(f"reservations/{gwid}/decommission", body)
        assert refusal(refused) == (404, "unknown_reservation")
    assert refusal(order(path, {})) == (400, "invalid_input")
    theirs.refresh_from_db()
    assert not theirs.to_delete


def test_what_a_restored_backup_does_not_know_is_removed_with_its_type() -> None:
    identity = enforcing("h1")
    enforcing("h2")
    theirs = make_workload(3, "h2")
    path, body = "reservations/42-900001/decommission", {"reason": "restored", "type": "accounting"}

    first, again = (order(path, body) for _ in range(2))

    ending = {"host": "h1", "reservation": "42-900001", "state": "deleting"}
    assert told(first, "EndingReservation") == told(again, "EndingReservation") == ending
    (row,) = poll(identity)["reservations"]
    assert (row["id"], row["type"], row["to_delete"]) == ("42-900001", "accounting", True)
    for wrong in ({**body, "type": "Accounting"}, {**body, "type": 3}, {**body, "reason": ""}):
        assert refusal(order(path, wrong)) == (400, "invalid_input"), wrong
    assert refusal(order("reservations/x/decommission", body)) == (400, "invalid_input")
    other = f"reservations/{theirs.gwid}/decommission"
    assert refusal(order(other, body)) == (409, "agent_in_use")
    assert refusal(order(path, body, host="h9")) == (404, "unknown_agent")
