"""Many polls looked at together: each gets what it would get alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.db import connection, connections
from django.db.models.functions import Now
from headroom_host_agent.server.identity import Identity

from hosts.agents.enrolment import revoke_key
from hosts.agents.errors import AgentRefused
from hosts.agents.models import AgentMode, HostAgent, HostKey, RequestNonce
from hosts.agents.poll_views import EmptyPoll, KnownPoll, first_looks
from hosts.agents.signed import SentRequest, keys_of
from hosts.agents.workloads import Asked, create_workloads
from journal.actors import Actor
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, signed

ANN = Actor(name="ann")


def agents(count: int) -> list[Identity]:
    names = [f"h{number}" for number in range(count)]
    for name in names:
        make_host(name)
    found = [enrolled(name) for name in names]
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    return found


def poll(identity: Identity, *, after: int = 0, **changes: Any) -> SentRequest:
    query = (("from", str(after)), ("wait", "25"))
    path = f"/hosts/v1/{identity.host_id}/reservations"
    asked = signed(
        identity, **({"method": "GET", "path": path, "body": b"", "query": query} | changes)
    )
    return SentRequest(
        method=asked.method,
        path=asked.path,
        query=urlencode(query),
        headers={name.lower(): text for name, text in asked.headers.items()},
        body=asked.body,
        path_id=UUID(asked.path.split("/")[3]),
    )


def code(known: KnownPoll) -> str:
    if isinstance(known, AgentRefused):
        return known.code
    return "empty" if isinstance(known, EmptyPoll) else "something"


def test_each_poll_gets_what_it_would_get_alone(
    django_assert_num_queries: Any,  # Any: a fixture of pytest-django
    db: None,
) -> None:
    quiet, asked, gone, fenced, revoked, ahead = agents(6)
    work = Asked(owner_kind="slot", owner_id="1", number=1, type="accounting", cpus=1)
    pk = HostAgent.objects.get(uuid=asked.host_id).pk
    create_workloads(pk, [work], actor=ANN, request_id="r")
    HostAgent.objects.filter(uuid=gone.host_id).update(decommissioned_at=Now())
    HostAgent.objects.filter(uuid=fenced.host_id).update(fence_epoch=2)
    revoke_key(pk=HostKey.objects.get(kid=revoked.kid).pk, actor=ANN, request_id="r")
    twice = poll(quiet)
    other = f"/hosts/v1/{asked.host_id}/reservations"
    polls = {
        "empty": [twice, poll(asked, after=1)],
        "something": [poll(asked), poll(ahead, after=7)],  # the view knows that 7 is too much
        "replayed": [SentRequest(**{name: getattr(twice, name) for name in SentRequest.__slots__})],
        "decommissioned": [poll(gone)],
        "stale_epoch": [poll(fenced)],
        "key_revoked": [poll(revoked)],
        "unknown_key": [poll(quiet, kid=asked.kid), poll(quiet, kid="A" * 16)],
        "clock_skew": [poll(quiet, timestamp=int(time.time()) - 1000)],
        "wrong_host": [poll(quiet, path=other)],
        "bad_signature": [poll(quiet, query=())],
        "bad_auth_header": [poll(quiet, nonce="no")],
    }

    with django_assert_num_queries(3, connection=connection):
        known = first_looks([one for sent in polls.values() for one in sent])

    assert {name: {code(known[one]) for one in sent} for name, sent in polls.items()} == {
        name: {name} for name in polls
    }
    empty = known[polls["empty"][1]]
    assert isinstance(empty, EmptyPoll)
    assert (empty.before.change_seq, empty.page.last_id, empty.wait_seconds) == (1, 1, 25)
    assert RequestNonce.objects.count() == 7


@pytest.mark.django_db(transaction=True)
def test_of_one_request_that_comes_to_many_at_once_one_is_taken() -> None:
    polls = [poll(one) for one in agents(6)]
    orders: list[Callable[[], list[SentRequest]]] = [
        lambda: polls,
        lambda: polls[::-1],
        lambda: polls[3:] + polls[:3],
        lambda: polls[::2] + polls[1::2],
    ]
    RequestNonce.objects.bulk_create(
        RequestNonce(agent=agent, nonce="0" * 32, seen_at="2026-01-01T00:00:00Z")
        for agent in HostAgent.objects.all()
    )  # all want to forget these as well
    start = Barrier(len(orders))

    def take(order: Callable[[], list[SentRequest]]) -> int:
        try:
            start.wait()
            return sum(not isinstance(found, AgentRefused) for found in keys_of(order()))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(orders)) as pool:
        taken = list(pool.map(take, orders))

    assert sum(taken) == len(polls)
    assert RequestNonce.objects.count() == len(polls)
