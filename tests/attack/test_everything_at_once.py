"""Stuck readers, slow bodies and a hung broker at once: probes answer and claims go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from django.db import connection, transaction

from config.launcher.processes import wait_until
from tests.attack.claims import OPERATOR, claims, make_providers, rates_of, workers_of
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
    make_providers(server)
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


@contextmanager
def locked_groups() -> Iterator[None]:
    """Keep all others from a table that every report reads."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE capacity_flavorgroup IN ACCESS EXCLUSIVE MODE")
        yield


@dataclass(kw_only=True)
class Attack:
    """Everything at once; ``probes`` and ``memory_mib`` are of its last seconds."""

    web: WebServer
    broker: OwnRedis
    probes: dict[str, tuple[int, float]] = field(default_factory=dict)
    memory_mib: float = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with (
            self.broker.hung(),
            slow_clients(self.web, SLOW_CLIENTS),
            locked_groups(),
            load(readers(self.web)),
        ):
            assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS)
            yield
            self.probes = {path: seconds_of(self.web, path) for path in PROBES}
            self.memory_mib = memory_mib(self.web)
        assert wait_until(lambda: self.web.send("GET", INFO).status == 200, NORMAL_AGAIN_SECONDS)


def test_probes_and_claims_go_on_under_all_attacks_at_once(
    web: WebServer, broker: OwnRedis
) -> None:
    assert web.send("GET", INFO).status == 200
    attack = Attack(web=web, broker=broker)
    with load(claims(web)) as claiming:
        rates = rates_of(claiming, attack)
        assert claiming.statuses().keys() == {204}
    slowest = max(seconds for _, seconds in attack.probes.values())
    rates.tell("all attacks", probe_s=round(slowest, 3), mib=round(attack.memory_mib))
    statuses = {path: status for path, (status, _) in attack.probes.items()}
    assert statuses == dict.fromkeys(PROBES, 200)
    assert slowest < PROBE_SECONDS
    assert attack.memory_mib < MOST_MEMORY_MIB
