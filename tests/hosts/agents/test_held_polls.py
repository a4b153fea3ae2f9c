"""``./run serve agents``: polls over HTTP that are held without a database connection."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings as django_settings
from django.db.models.functions import Now
from headroom_host_agent.server.identity import Identity

from config.launcher.demo import ADDRESS, answers_healthz, choose_port
from config.launcher.processes import wait_until
from hosts.agents.enrolment import revoke_key
from hosts.agents.leases import fence
from hosts.agents.models import AgentMode, HostAgent, HostKey
from hosts.agents.waking import wake
from hosts.agents.workloads import Asked, create_workloads
from journal.actors import Actor
from journal.metrics import metric_name
from tests.e2e.own_redis import own_redis
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, Answer, Process, others_in_database
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, signed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

ANN = Actor(name="ann")


class Role(Process):
    """The process that holds polls, and requests to it."""

    port: int
    metrics_port: int

    def __init__(self, directory: Path, **overrides: str) -> None:
        super().__init__(role="agents", directory=directory, overrides=overrides)
        self.port, self.metrics_port = choose_port(0), choose_port(0)
        self.overrides |= {
            "HEADROOM_AGENTS__POLL_PORT": str(self.port),
            "HEADROOM_AGENTS__METRICS_PORT": str(self.metrics_port),
            "HEADROOM_PROCESS": "web",
            "HEADROOM_SECRET_KEY": django_settings.SECRET_KEY,
        }

    def start(self) -> None:
        super().start()
        assert wait_until(lambda: answers_healthz(self.port), PATIENCE_SECONDS), self.log()

    def send(
        self,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
    ) -> Answer:
        link = http.client.HTTPConnection(ADDRESS, self.port, timeout=PATIENCE_SECONDS)
        try:
            link.request(method, path, body=body, headers=headers or {})
            response = link.getresponse()
            names = {name.lower(): text for name, text in response.getheaders()}
            return Answer(status=response.status, headers=names, body=response.read())
        finally:
            link.close()

    def poll(
        self, identity: Identity, *, after: int = 0, wait: int = 0, **signed_as: Any
    ) -> Answer:
        query = {"from": str(after), "wait": str(wait)}
        path = f"/hosts/v1/{identity.host_id}/reservations"
        usual = {"method": "GET", "path": path, "body": b"", "query": tuple(query.items())}
        asked = signed(identity, **(usual | signed_as))
        text = "&".join(f"{name}={value}" for name, value in query.items())
        return self.send(f"{path}?{text}", asked.headers)

    def told(self, metric: str) -> float:
        """Return what a metric without labels says."""
        link = http.client.HTTPConnection(ADDRESS, self.metrics_port, timeout=PATIENCE_SECONDS)
        try:
            link.request("GET", "/metrics", headers={"Authorization": f"Bearer {ADMIN}"})
            page = link.getresponse().read().decode()
        finally:
            link.close()
        (line,) = [one for one in page.splitlines() if one.startswith(f"{metric_name(metric)} ")]
        return float(line.split()[1])

    def waiters(self) -> int:
        return int(self.send("/livez").json()["waiters"])


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[Role]:
    made = Role(tmp_path_factory.mktemp("role"))
    made.start()
    yield made
    made.end()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def held(
    role: Role, pool: ThreadPoolExecutor, *polls: tuple[Identity, int]
) -> list[Future[Answer]]:
    """Poll for the longest time; return once each is held."""
    answers = [pool.submit(role.poll, who, after=after, wait=25) for who, after in polls]
    assert wait_until(lambda: role.waiters() == len(polls), PATIENCE_SECONDS), role.log()
    return answers


def agents(*names: str) -> list[Identity]:
    for name in names:
        make_host(name)
    found = [enrolled(name) for name in names]
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    return found


def ask_for(identity: Identity, number: int) -> None:
    agent = HostAgent.objects.get(uuid=identity.host_id)
    asked = Asked(owner_kind="slot", owner_id=str(number), number=number, type="accounting", cpus=1)
    create_workloads(agent.pk, [asked], actor=ANN, request_id="r")


def ids(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [one["id"] for one in answer.json()["reservations"]]


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["code"]


def test_a_poll_is_held_until_there_is_something_for_its_host(
    role: Role, pool: ThreadPoolExecutor
) -> None:
    one, other = agents("h1", "h2")
    assert ids(role.poll(one)) == []
    first, second = held(role, pool, (one, 0), (other, 0))
    assert role.told("host_poll_waiters") == 2
    assert role.told("host_poll_seconds_count") >= 1

    ask_for(one, 42)

    answer = first.result(PATIENCE_SECONDS)
    assert [name.partition("-")[0] for name in ids(answer)] == ["42"]
    assert answer.headers["x-last-id"] == "1"
    assert answer.headers["x-request-id"]
    assert not second.done()
    assert ids(role.poll(one, after=0, wait=25)) == ids(answer)  # at once: it is there already
    ask_for(other, 43)
    assert len(ids(second.result(PATIENCE_SECONDS))) == 1


def test_what_changed_while_a_poll_was_held_is_looked_at_again(
    role: Role, pool: ThreadPoolExecutor
) -> None:
    fenced, revoked, gone = agents("h1", "h2", "h3")
    answers = held(role, pool, (fenced, 0), (revoked, 0), (gone, 0))

    fence("h1", actor=ANN, request_id="r", reason="to see")
    revoke_key(pk=HostKey.objects.get(kid=revoked.kid).pk, actor=ANN, request_id="r")
    HostAgent.objects.filter(uuid=gone.host_id).update(decommissioned_at=Now())
    wake([UUID(one.host_id) for one in (fenced, revoked, gone)])

    found = [answer.result(PATIENCE_SECONDS) for answer in answers]
    assert [code(answer) for answer in found] == [
        (409, "stale_epoch"),
        (401, "key_revoked"),
        (410, "decommissioned"),
    ]
    assert found[2].json()["error"]["details"]["end_of_stream"] is True


def test_a_poll_is_verified_before_it_is_held(role: Role) -> None:
    one, other = agents("h1", "h2")
    path = f"/hosts/v1/{one.host_id}/reservations"
    asked = signed(one, method="GET", path=path, body=b"")

    assert role.send(path, asked.headers).status == 200
    assert code(role.send(path, asked.headers)) == (401, "replayed")
    assert code(role.send(f"{path}?wait=25", asked.headers)) == (401, "bad_signature")
    assert code(role.send(path)) == (400, "bad_auth_header")
    assert code(role.poll(one, kid=other.kid, wait=25)) == (401, "unknown_key")
    assert code(role.poll(one, after=7, wait=25)) == (400, "bad_cursor")
    assert code(role.poll(one, fence_epoch=9, wait=25)) == (409, "stale_epoch")
    assert role.waiters() == 0


def test_nothing_that_is_sent_is_an_error_of_ours(role: Role) -> None:
    (one,) = agents("h1")
    path = f"/hosts/v1/{one.host_id}/reservations"

    assert code(role.send("/hosts/v1/enrol", method="POST")) == (404, "not_found")
    assert role.send(path, method="POST").status == 405
    assert role.send(path, body=bytes(100_000)).status == 413
    assert role.send(path, {"Transfer-Encoding": "chunked"}, method="PUT", body=b"x").status < 500
    assert role.send(f"{path}?wait=%ff%00&from=-1&&&=&from").status == 400
    with socket.create_connection((ADDRESS, role.port), PATIENCE_SECONDS) as raw:
        raw.sendall(f"GET {path}?wait=".encode() + b"\xff\xfe HTTP/1.1\r\nHost: h\r\n\r\n")
        assert raw.recv(100).split()[1] == b"400"
    assert role.send("/readyz").json()["ready"] is True


def test_who_goes_away_while_a_poll_is_held_disturbs_nobody(role: Role) -> None:
    (one,) = agents("h1")
    path = f"/hosts/v1/{one.host_id}/reservations"
    asked = signed(one, method="GET", path=path, body=b"", query=(("wait", "25"),))
    fields = "".join(f"{name}: {text}\r\n" for name, text in asked.headers.items())
    with socket.create_connection((ADDRESS, role.port), PATIENCE_SECONDS) as raw:
        raw.sendall(f"GET {path}?wait=25 HTTP/1.1\r\nHost: h\r\n{fields}\r\n".encode())
        assert wait_until(lambda: role.waiters() == 1, PATIENCE_SECONDS), role.log()

    ask_for(one, 42)

    assert wait_until(lambda: role.waiters() == 0, PATIENCE_SECONDS), role.log()
    assert len(ids(role.poll(one))) == 1
    assert "exception" not in role.log()


def test_few_sessions_are_enough_a_broker_is_missed_for_a_second_and_the_end_answers(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    who = agents(*(f"h{number}" for number in range(8)))
    before = others_in_database()[0]
    with own_redis(tmp_path, os.environ) as broker:
        role = Role(
            tmp_path,
            REDIS_URL=broker.url,
            HEADROOM_AGENTS__POLL_THREADS="1",
            HEADROOM_AGENTS__POLL_MOST_WAITERS="7",
        )
        role.start()
        try:
            answers = held(role, pool, *((one, 0) for one in who[:7]))
            assert others_in_database()[0] <= before + 3
            beyond = role.poll(who[7], wait=25)
            assert ids(beyond) == []
            assert beyond.headers["retry-after"] == "2"

            broker.child.process.kill()
            for number, one in enumerate(who[:6]):
                ask_for(one, number)  # its wake goes to another broker
            told = [ids(answer.result(PATIENCE_SECONDS)) for answer in answers[:6]]
            assert [first.partition("-")[0] for (first,) in told] == ["0", "1", "2", "3", "4", "5"]

            assert role.stop() == 0
            assert ids(answers[6].result(PATIENCE_SECONDS)) == []
        finally:
            role.end()
