"""Redis hangs (SIGSTOP) while requests are answered: no answer waits for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.launcher.processes import wait_until
from tests.e2e.own_redis import OwnRedis, own_redis
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, WebServer
from tests.factories import make_group, make_host

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

PROJECT = "2f6b5d0c8f0f4a0d9a3e6d1c7b5a4e11"
QUOTA = f"/commitments/v1/projects/{PROJECT}/quota"
COUNT = "commitments.reconcile_changed_quota"
#: Far less than the five seconds for which the client of a hung Redis waits.
ANSWERED_SECONDS = 3.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnRedis]:
    with own_redis(tmp_path, os.environ) as server:
        yield server


@pytest.fixture
def web(transactional_db: None, tmp_path: Path, broker: OwnRedis) -> Iterator[WebServer]:
    del transactional_db
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_host("h1", zone="az-a", memory_gib=64, vcpus=64)
    tokens = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
    overrides = {
        "REDIS_URL": broker.url,
        "GRANIAN_WORKERS": "1",
        "HEADROOM_TOKENS": json.dumps(tokens),
    }
    with WebServer(directory=tmp_path, overrides=overrides) as server:
        yield server


def seconds_of_quota(web: WebServer) -> float:
    body = {"resources": {"hw_version_hana_1_ram": {"quota": 3, "perAZ": {"az-a": {"quota": 3}}}}}
    begun = time.monotonic()
    answer = web.send("PUT", QUOTA, body)
    assert answer.status == 204, answer.body
    return time.monotonic() - begun


def sent(broker: OwnRedis) -> int:
    return [message["task"] for message in broker.messages("steady")].count(COUNT)


def test_answers_do_not_wait_for_a_hung_broker(web: WebServer, broker: OwnRedis) -> None:
    usual = seconds_of_quota(web)
    assert wait_until(lambda: sent(broker) > 0, PATIENCE_SECONDS)
    before = sent(broker)
    with broker.hung():
        took = [seconds_of_quota(web) for _ in range(5)]
        begun = time.monotonic()
        started = web.send("POST", "/api/v1/failover/rebalances", {"zone": "az-a", "apply": True})
        refused_after = time.monotonic() - begun
    print(f"usual {usual:.3f} s, hung {max(took):.3f} s, refused {refused_after:.3f} s")  # noqa: T201 - figures
    assert max(took) < ANSWERED_SECONDS
    assert refused_after < ANSWERED_SECONDS
    assert (started.status, started.json()["code"]) == (503, "broker_unavailable")
    assert int(started.headers["retry-after"]) >= 1
    seconds_of_quota(web)
    assert wait_until(lambda: sent(broker) > before, PATIENCE_SECONDS), web.log()
