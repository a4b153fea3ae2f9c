"""No input to the agents' endpoints is answered with 500 or changes another host's state."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

import pytest
from django.test import Client
from headroom_host_agent.server.identity import Identity, new_identity
from hypothesis import given
from hypothesis import strategies as st

from hosts.agents import urls
from hosts.agents.commands import AgentCommand, command_agent
from hosts.agents.models import EnrolmentToken, HostAgent, HostKey, HostLease
from hosts.agents.observed import instances_digest
from hosts.agents.resource_models import HostResource
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.models import Host
from journal.actors import Actor
from journal.clock import database_now
from tests.examples import few
from tests.factories import make_host
from tests.hosts.agents.agents import (
    enrolled,
    enrolment,
    make_token,
    report,
    send_enrolment,
    signed,
)
from tests.hosts.agents.test_keys import rotation
from tests.hosts.agents.test_results import result
from tests.hosts.agents.workloads import agent_named, enforcing, make_workload

pytestmark = pytest.mark.django_db

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(["ok", "error", "deleted", "2026-01-02T03:04:05Z", "\x00", "a" * 300])
)
ANN = Actor(name="ann")
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
PATHS = (
    ("POST", "heartbeat"),
    ("PUT", "resources"),
    ("PUT", "instances"),
    ("PATCH", "instances"),
    ("PUT", "stats"),
    ("POST", "keys"),
    ("DELETE", "keys/{kid}"),
    ("GET", "reservations"),
    ("GET", "reservations/{gwid}"),
    ("PUT", "reservations/{gwid}/result"),
    ("PUT", "reservations/{gwid}/deleted"),
    ("DELETE", "reservations/{gwid}"),
)
FIELDS = {
    "heartbeat": ("run_id", "boot_id", "uptime_s", "resynced", "outbox_depth", "takeover", "done"),
    "instances": ("instances", "added", "removed", "base_digest", "generated_at"),
    "stats": ("units", "workloads", "generated_at", "digest"),
    "keys": ("public_key", "proof"),
}


def whole(identity: Identity, part: str, method: str, row: Workload) -> dict[str, Any] | None:
    """Return a document that a path takes, None for one that takes none."""
    agent, at = agent_named("h1"), database_now().isoformat()
    stored = Host.objects.get(name="h1").reported_instances or []
    vm = {"uuid": "a", "name": "vm", "active": True}
    units = dict.fromkeys(("cru", "mru", "hru", "sru"), 0)
    if "gwid" in part and method != "GET":
        return result(identity, row, state="ok" if "result" in part else "deleted")
    documents: dict[tuple[str, str], dict[str, Any]] = {
        ("POST", "heartbeat"): {
            "run_id": str(UUID(int=1)),
            "boot_id": "b",
            "uptime_s": 1,
            "outbox_depth": 0,
            "resynced": True,
            "takeover": False,
            "done": [{"id": one["id"], "ok": True, "message": ""} for one in agent.commands],
        },
        ("PUT", "resources"): report(),
        ("PUT", "instances"): {"instances": [vm], "generated_at": at},
        ("PATCH", "instances"): {
            "added": [vm],
            "removed": ["b"],
            "base_digest": instances_digest(stored),
            "generated_at": at,
        },
        ("PUT", "stats"): {"units": units, "workloads": {"accounting": 1}, "generated_at": at},
        ("POST", "keys"): json.loads(rotation(identity, new_identity()).body),
    }
    return documents.get((method, part))


def test_every_path_of_agents_is_asked() -> None:
    paths = {str(one.pattern) for one in urls.urlpatterns}
    shapes = {re.sub(r"<[^>]+>", "X", path) for path in paths}
    assert shapes == {"enrol", *(f"X/{re.sub('{[^}]+}', 'X', part)}" for _, part in PATHS)}
    views = {str(one.pattern): one.callback.view_class for one in urls.urlpatterns}  # type: ignore[attr-defined]  # of a class
    methods = {
        (name.upper(), re.sub(r"<[^>]+>", "X", path))
        for path, view in views.items()
        for name in view.http_method_names
        if name not in ("head", "options") and hasattr(view, name)
    }
    asked = {(method, f"X/{re.sub('{[^}]+}', 'X', part)}") for method, part in PATHS}
    assert methods == asked | {("POST", "enrol")}


def state_of(name: str) -> list[Any]:
    """Return all that is kept of a host's agent."""
    agent = agent_named(name)
    return [
        HostAgent.objects.filter(pk=agent.pk).values().get(),
        HostLease.objects.filter(agent=agent).values().get(),
        list(HostKey.objects.filter(agent=agent).order_by("pk").values()),
        list(Workload.objects.filter(agent=agent).order_by("pk").values()),
        list(WorkloadResult.objects.filter(workload__agent=agent).order_by("pk").values()),
        list(HostResource.objects.filter(host__name=name).order_by("pk").values()),
        Host.objects.filter(name=name).values().get(),
    ]


@st.composite
def bodies(draw: st.DrawFn, part: str) -> object:
    """Draw a body: anything, or an object with some of the fields that the path knows."""
    if draw(st.booleans()):
        return draw(ANYTHING)
    known = FIELDS.get(part.split("/", maxsplit=1)[0].partition("?")[0], ())
    return {name: draw(ANYTHING) for name in known if draw(st.booleans())}


@few(30)
@given(data=st.data())
def test_no_signed_request_breaks_or_reaches_another_host(data: st.DataObject) -> None:
    if not HostAgent.objects.filter(host_name="h2").exists():
        enforcing("h1")
        enforcing("h2")
        make_workload(2, "h2")
    identity = enforcing_again("h1")
    for name in ("h1", "h2"):
        command_agent(name, AgentCommand.REPORT, actor=ANN, request_id="r", reason="r")
    theirs = Workload.objects.get(agent__host_name="h2")
    own = make_workload(1, "h1")
    before = state_of("h2")
    method, part = data.draw(st.sampled_from(PATHS))
    row = data.draw(st.sampled_from([own, theirs]))
    host = data.draw(st.sampled_from([identity.host_id, str(agent_named("h2").uuid)]))
    kid = data.draw(st.sampled_from([identity.kid, before[2][0]["kid"], "x"]))
    path = f"/hosts/v1/{host}/" + part.format(gwid=row.gwid, kid=kid)
    document = data.draw(bodies(part))
    sound = whole(identity, part, method, row)
    if sound is not None and data.draw(st.booleans()):
        name = data.draw(st.sampled_from([*sorted(sound), "nothing"]))
        document = sound if name == "nothing" else {**sound, name: data.draw(ANYTHING)}
    query = tuple(
        data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from(["from", "limit", "wait", "x"]),
                    st.text("0123456789-+a", max_size=21),
                ),
                max_size=3,
            )
        )
    )
    request = signed(identity, document, method=method, path=path, query=query)
    encoded = "&".join(f"{key}={value.replace('+', '%2B')}" for key, value in query)

    answer = request.send(query=f"?{encoded}" if encoded else "")

    assert answer.status_code < 500, answer.content
    if answer.status_code >= 400:
        assert set(json.loads(answer.content)["error"]) <= {"code", "message", "field", "details"}
    assert state_of("h2") == before


def enforcing_again(name: str) -> Any:
    """Return an agent whose key is fresh: the last example may have rotated or revoked it."""
    HostKey.objects.filter(agent__host_name=name).delete()
    identity = enrolled(name)
    HostAgent.objects.filter(host_name=name).update(mode="enforce")
    agent = agent_named(name)
    assert str(agent.uuid) == identity.host_id
    return identity


@few(20)
@given(
    body=st.binary(max_size=200) | ANYTHING.map(lambda value: json.dumps(value).encode()),
    method=st.sampled_from(["GET", "PUT", "POST", "PATCH", "DELETE"]),
    part=st.sampled_from([part for _, part in PATHS]),
    headers=st.dictionaries(
        st.sampled_from(
            [
                "X-Host-Id",
                "X-Host-Key",
                "X-Host-Timestamp",
                "X-Host-Nonce",
                "X-Host-Epoch",
                "X-Host-Signature",
            ]
        ),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=90),
    ),
)
def test_no_unsigned_request_is_taken(
    body: bytes, method: str, part: str, headers: dict[str, str]
) -> None:
    path = "/hosts/v1/4b6c8a4e-5a4f-4a53-9d0e-0f5b3c1d2e3f/" + part.format(gwid="1-1", kid="k")
    answer: Any = Client().generic(method, path, body, headers=headers)
    assert answer.status_code in (400, 401, 405), answer.content
    enrolment: Any = Client().generic("POST", "/hosts/v1/enrol", body, headers=headers)
    assert enrolment.status_code in (400, 401), enrolment.content


@few(20)
@given(data=st.data())
def test_no_enrolment_breaks_or_reaches_another_host(data: st.DataObject) -> None:
    if not Host.objects.exists():
        make_host("h1")
        enforcing("h2")
    HostAgent.objects.filter(host_name="h1").delete()
    EnrolmentToken.objects.all().delete()
    token = make_token(data.draw(st.sampled_from(["*", "h1", "h2", "x"])))
    before = state_of("h2")
    identity = new_identity()
    name = data.draw(st.sampled_from(["h1", "h2", "unknown", "h1\x00", "é" * 300]))
    document = {**enrolment(identity, token, name), "boot_id": "b", "labels": {"rack": "1"}}
    field = data.draw(st.sampled_from([*sorted(document), "more", "nothing"]))
    if field != "nothing":
        document[field] = data.draw(ANYTHING)

    answer = send_enrolment(document)

    assert answer.status_code < 500, answer.content
    taken = HostAgent.objects.filter(host_name="h1").exists()
    assert taken == (answer.status_code == 201)
    assert EnrolmentToken.objects.get().uses_left == (0 if taken else 1)
    assert state_of("h2") == before
