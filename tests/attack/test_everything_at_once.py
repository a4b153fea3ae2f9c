"""Stuck readers, slow bodies and a hung broker at once: probes answer and claims go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.db import connection, transaction

from config.launcher.processes import wait_until
from tests.attack.claims import OPERATOR, claims, make_provider, rate_of, tell, workers_of
from tests.attack.load import Asked, load, request_of
from tests.attack.test_web_server import INFO, PROBE_SECONDS, seconds_of, slow_clients
from tests.e2e.own_redis import OwnRedis, own_redis
from tests.e2e.processes import (
    ADMIN,
    PATIENCE_SECONDS,
    WebServer,
    someone_waits_for_a_lock,
    wait_until_database_is_ours,
)
from tests.factories import make_group

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

READERS, SLOW_CLIENTS = 30, 24
MOST_MEMORY_MIB = 600
PROBES = ("/livez", "/healthz", "/readyz")
NORMAL_AGAIN_SECONDS = 10.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnRedis]:
    with own_redis(tmp_path, os.environ) as server:
        yield server


@pytest.fixture
def web(transactional_db: None, tmp_path: Path, broker: OwnRedis) -> Iterator[WebServer]:
    del transactional_db
    make_group()
    overrides = {"REDIS_URL": broker.url, "HEADROOM_TOKENS": json.dumps(OPERATOR)}
    server = WebServer(directory=tmp_path, overrides=overrides)
    server.start()
    make_provider(server)
    yield server
    server.end()
    wait_until_database_is_ours()


def readers(web: WebServer) -> Asked:
    """Return the load of those who read what is locked, again when they are refused."""
    request = request_of("GET", INFO, {"X-Auth-Token": ADMIN})
    return Asked(port=web.port, connections=READERS, request=request, is_patient=True)


def memory_mib(web: WebServer) -> float:
    """Return the memory of the largest process that answers requests."""
    return max(int(worker.memory_info().rss) for worker in workers_of(web)) / (1 << 20)


def lock_groups() -> None:
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE capacity_flavorgroup IN ACCESS EXCLUSIVE MODE")


def test_probes_and_claims_go_on_under_all_attacks_at_once(
    web: WebServer, broker: OwnRedis
) -> None:
    assert web.send("GET", INFO).status == 200
    with load(claims(web)) as claiming:
        rate_of(claiming)  # the first ones load what all need
        before = rate_of(claiming)
        with ExitStack() as attack:
            attack.enter_context(broker.hung())
            attack.enter_context(slow_clients(web, SLOW_CLIENTS))
            attack.enter_context(transaction.atomic())
            lock_groups()
            attack.enter_context(load(readers(web)))
            assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS)
            beside = rate_of(claiming)
            probes = {path: seconds_of(web, path) for path in PROBES}
            memory = memory_mib(web)
        assert wait_until(lambda: web.send("GET", INFO).status == 200, NORMAL_AGAIN_SECONDS)
        after = rate_of(claiming)
        assert claiming.statuses().keys() == {204}
    slowest = max(seconds for _, seconds in probes.values())
    tell("all attacks", before, beside, after, probe_s=round(slowest, 3), mib=round(memory))
    assert {path: status for path, (status, _) in probes.items()} == dict.fromkeys(PROBES, 200)
    assert slowest < PROBE_SECONDS
    assert memory < MOST_MEMORY_MIB
