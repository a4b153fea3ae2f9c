"""Either side of the gateway is killed while requests are on their way to the other one.

Requests are held in the middle by a lock of ours in the other Placement's database, so that the
kill comes when they are there.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db.models import F
from pydantic import SecretStr

from config.launcher.processes import wait_until
from placement.gateway.asking import by_service_account
from placement.gateway.modes import Group
from placement.gateway.split import heal
from placement.models import Consumer, SplitWrite
from tests.e2e.placement_peers import MOUNT, PlacementServer
from tests.e2e.processes import OPEN, PATIENCE_SECONDS, Answer, WebServer
from tests.e2e.upstream_placement import UpstreamPlacement, running_upstream
from tests.placement.client import consumer_body, drift, uuid
from tests.placement.rows import make_provider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

HEADERS = {"X-Roles": "admin,service", "OpenStack-API-Version": "placement 1.36"}
#: Above the gateway's own deadline: who waits longer has been left hanging.
MOST_SECONDS = 90.0
MODES = ("hybrid", "passthrough")
TOLD = {502, 503, 504}
WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'
"""


@pytest.fixture(scope="module")
def upstream(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UpstreamPlacement]:
    del django_db_setup
    with running_upstream(tmp_path_factory.mktemp("upstream"), workers=2) as running:
        yield running


@pytest.fixture
def gateway(
    transactional_db: None, tmp_path: Path, upstream: UpstreamPlacement, settings: Any
) -> Iterator[WebServer]:
    del transactional_db
    more = upstream.settings(
        modes=json.dumps(dict.fromkeys(Group, "hybrid")),
        allow_mode_override="true",
        timeout_seconds="60",
        most_failures="1000",
    )
    section = settings.HEADROOM.gateway.model_copy(
        update={"upstream_url": upstream.url, "token": SecretStr("admin"), "timeout_seconds": 60.0}
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"gateway": section})
    with WebServer(directory=tmp_path, overrides={**OPEN, **more}) as server:
        yield server


class Both:
    """A provider of each side."""

    def __init__(self, web: WebServer, upstream: UpstreamPlacement) -> None:
        self.web, self.upstream = web, upstream
        self.ours = str(make_provider("m-ours", inventories={"VCPU": 64}).uuid)
        self.theirs = uuid()
        made = {"name": f"n-{self.theirs}", "uuid": self.theirs}
        assert self.send("POST", "/resource_providers", made).status == 200
        body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 64}}}
        path = f"/resource_providers/{self.theirs}/inventories"
        assert self.send("PUT", path, body).status == 200

    def send(self, method: str, path: str, body: Any = None, mode: str = "") -> Answer:
        headers = {**HEADERS, **({"X-Cortex-Feature-Mode": mode} if mode else {})}
        return self.web.send(method, MOUNT + path, body, token="admin", headers=headers)

    def write(self, consumer: str, *, is_split: bool, mode: str = "") -> Answer:
        amounts = {self.theirs: {"VCPU": 1}, **({self.ours: {"VCPU": 1}} if is_split else {})}
        return self.send("PUT", f"/allocations/{consumer}", consumer_body(amounts), mode)

    def held(self, consumer: str) -> tuple[bool, bool]:
        """Return whether a consumer holds something here, and there."""
        server = PlacementServer(port=self.upstream.port, prefix=MOUNT)
        try:
            there = server.get(f"/allocations/{consumer}")["allocations"]
        finally:
            server.close()
        return Consumer.objects.filter(uuid=consumer).exists(), bool(there)


@pytest.fixture
def both(gateway: WebServer, upstream: UpstreamPlacement) -> Both:
    return Both(gateway, upstream)


@contextmanager
def held_back(upstream: UpstreamPlacement, kind: str) -> Iterator[None]:
    """Hold whatever touches allocations there."""
    with psycopg.connect(upstream.database) as link:
        link.execute(f"LOCK TABLE allocations IN {kind} MODE".encode())
        yield
        link.rollback()


def wait_until_held(upstream: UpstreamPlacement, count: int) -> None:
    name = urlsplit(upstream.database).path.removeprefix("/")

    def are_held() -> bool:
        row = link.execute(WAITING, [name]).fetchone()
        return row is not None and row[0] >= count

    with psycopg.connect(upstream.database, autocommit=True) as link:
        assert wait_until(are_held, PATIENCE_SECONDS)


def outcome(run: Future[Answer]) -> int:
    """Return the status that a client saw; 0 if its connection ended."""
    try:
        return run.result(MOST_SECONDS).status
    except (OSError, http.client.HTTPException):
        return 0


def settled() -> None:
    """Let time pass in which any request has ended, and settle what is open."""
    SplitWrite.objects.update(ends_at=F("created_at") - timedelta(seconds=1))
    heal(by_service_account())
    assert not SplitWrite.objects.exists()


def test_the_other_side_is_killed_in_the_middle_of_writes(
    both: Both, upstream: UpstreamPlacement
) -> None:
    split, plain, passed = uuid(), uuid(), uuid()
    with held_back(upstream, "SHARE"), ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(both.write, split, is_split=True),
            pool.submit(both.write, plain, is_split=False),
            pool.submit(both.write, passed, is_split=False, mode="passthrough"),
        ]
        wait_until_held(upstream, len(runs))
        upstream.kill()
        assert {outcome(run) for run in runs} <= TOLD
        assert both.write(uuid(), is_split=True).status in TOLD
        assert both.send("GET", f"/resource_providers/{both.ours}").status == 200
    upstream.start()
    settled()
    assert {both.held(one) for one in (split, plain, passed)} == {(False, False)}
    # Another one: the other side may have written down who it is before it was killed.
    again = uuid()
    assert both.write(again, is_split=True).status == 204
    assert both.held(again) == (True, True)
    assert drift() == []


def test_the_other_side_is_killed_in_the_middle_of_reads(
    both: Both, upstream: UpstreamPlacement
) -> None:
    consumer = uuid()
    assert both.write(consumer, is_split=True).status == 204
    paths = (
        f"/allocations/{consumer}",
        "/usages?project_id=p",
        f"/resource_providers/{both.theirs}/usages",
        "/allocation_candidates?resources=VCPU:1",
    )
    with (
        held_back(upstream, "ACCESS EXCLUSIVE"),
        ThreadPoolExecutor(2 * len(paths)) as pool,
    ):
        runs = [pool.submit(both.send, "GET", path, None, mode) for mode in MODES for path in paths]
        wait_until_held(upstream, 4)  # as many as it has threads, or more
        upstream.kill()
        assert {outcome(run) for run in runs} <= TOLD
    upstream.start()
    for path in paths:
        assert both.send("GET", path).status == 200
    assert both.held(consumer) == (True, True)


def test_the_web_server_is_killed_in_the_middle_of_a_write(
    both: Both, upstream: UpstreamPlacement, gateway: WebServer
) -> None:
    split, plain = uuid(), uuid()
    with held_back(upstream, "SHARE"), ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(both.write, split, is_split=True),
            pool.submit(both.write, plain, is_split=False),
        ]
        wait_until_held(upstream, len(runs))
        gateway.kill()
        assert {outcome(run) for run in runs} == {0}
        gateway.start()
        # Nobody else writes what may still be carried out.
        assert both.write(split, is_split=True).status == 409
    assert wait_until(lambda: both.held(split)[1], PATIENCE_SECONDS)
    settled()
    assert both.held(split) == (True, True)
    assert both.send("DELETE", f"/allocations/{split}").status == 204
    assert both.held(split) == (False, False)
    assert drift() == []
