"""Workloads of agents that speak to Headroom in this process."""

from __future__ import annotations

import base64
import json
from typing import Any

from django.http import HttpResponse
from headroom_host_agent.provision.documents import reservation_from_document
from headroom_host_agent.provision.signing.keys import verify
from headroom_host_agent.provision.signing.v2 import reservation_bytes, unseal
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.server.identity import Identity

from hosts.agents.models import AgentMode, HostAgent, ServerKey
from hosts.agents.workload_models import Workload
from hosts.agents.workloads import Asked, create_workloads
from journal.actors import Actor
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, signed

ANN = Actor(name="ann")


def enforcing(name: str = "h1") -> Identity:
    """Return an agent that is asked to make what its host holds."""
    make_host(name)
    identity = enrolled(name)
    HostAgent.objects.filter(host_name=name).update(mode=AgentMode.ENFORCE, abilities=["resize"])
    return identity


def agent_named(name: str = "h1") -> HostAgent:
    return HostAgent.objects.get(host_name=name)


def asked(number: int = 42, **changes: Any) -> Asked:
    known: dict[str, Any] = {
        "owner_kind": "test",
        "owner_id": str(number),
        "number": number,
        "type": "accounting",
        "user_id": "9f2c",
        "data": {"cpu_weight": 200},
        "cpus": 8,
        "memory_bytes": 34359738368,
    }
    return Asked(**(known | changes))


def make_workload(number: int = 42, name: str = "h1", **changes: Any) -> Workload:
    (row,) = create_workloads(
        agent_named(name).pk, [asked(number, **changes)], actor=ANN, request_id="r"
    )
    return row


def get(identity: Identity, path: str, query: str = "") -> HttpResponse:
    full = f"/hosts/v1/{identity.host_id}/{path}"
    pairs = tuple(tuple(pair.split("=")) for pair in query.split("&") if pair)
    request = signed(identity, method="GET", path=full, query=pairs, body=b"")
    return request.send(query=f"?{query}" if query else "")


def poll(identity: Identity, query: str = "from=0") -> dict[str, Any]:
    answer = get(identity, "reservations", query)
    assert answer.status_code == 200, answer.content
    page: dict[str, Any] = json.loads(answer.content)
    assert answer["X-Last-Id"] == str(page["last_id"])
    return page


def verified(sent: dict[str, Any]) -> Reservation:
    """Return what the server signed, as the agent's own library reads it."""
    sealed = unseal(sent)
    key = bytes(ServerKey.objects.get(kid=sealed.kid).public_key)
    assert verify(key, sealed.signature, reservation_bytes(sealed.document))
    assert base64.b64encode(sealed.signature).decode() == sent["signature"]
    return reservation_from_document(sealed.document)


def state_of(row: Workload) -> str:
    return Workload.objects.get(pk=row.pk).state
