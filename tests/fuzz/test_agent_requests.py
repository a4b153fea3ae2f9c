"""No input to the agents' endpoints is answered with 500 or changes another host's state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosts.agents.models import HostAgent, HostKey, HostLease
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.models import Host
from tests.hosts.agents.agents import enrolled, report, signed
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


def state_of(name: str) -> list[Any]:
    """Return all that is kept of a host's agent."""
    agent = agent_named(name)
    return [
        HostAgent.objects.filter(pk=agent.pk).values().get(),
        HostLease.objects.filter(agent=agent).values().get(),
        list(HostKey.objects.filter(agent=agent).order_by("pk").values()),
        list(Workload.objects.filter(agent=agent).order_by("pk").values()),
        list(WorkloadResult.objects.filter(workload__agent=agent).order_by("pk").values()),
        Host.objects.filter(name=name).values().get(),
    ]


@st.composite
def bodies(draw: st.DrawFn, part: str) -> object:
    """Draw a body: anything, or an object with some of the fields that the path knows."""
    if draw(st.booleans()):
        return draw(ANYTHING)
    known = FIELDS.get(part.split("/", maxsplit=1)[0].partition("?")[0], ())
    return {name: draw(ANYTHING) for name in known if draw(st.booleans())}


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_signed_request_breaks_or_reaches_another_host(data: st.DataObject) -> None:
    if not HostAgent.objects.filter(host_name="h2").exists():
        enforcing("h1")
        enforcing("h2")
        make_workload(2, "h2")
    identity = enforcing_again("h1")
    theirs = Workload.objects.get(agent__host_name="h2")
    own = make_workload(1, "h1")
    before = state_of("h2")
    method, part = data.draw(st.sampled_from(PATHS))
    row = data.draw(st.sampled_from([own, theirs]))
    host = data.draw(st.sampled_from([identity.host_id, str(agent_named("h2").uuid)]))
    kid = data.draw(st.sampled_from([identity.kid, before[2][0]["kid"], "x"]))
    path = f"/hosts/v1/{host}/" + part.format(gwid=row.gwid, kid=kid)
    document = data.draw(bodies(part))
    if "gwid" in part and data.draw(st.booleans()):
        document = result(identity, row)
        name = data.draw(st.sampled_from(sorted(document)))
        document = {**document, name: data.draw(ANYTHING)}
    if part == "resources" and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(report())))
        document = report(**{name: data.draw(ANYTHING)})
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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
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
