"""The ledger holds where all that may be read from a standby is read from one that stands still.

Claims and change requests go through the production web server while its standby replays nothing
more: reports and lists tell of before, decisions must not.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from django.db import connections
from django.utils import timezone

from capacity.models import Reservation
from config.launcher.processes import wait_until
from core import sessions
from hosts.models import Host
from placement.models import Allocation
from placement.tasks import reconcile_hosts
from tests.attack.claims import OPERATOR, placement
from tests.attack.test_standby_reads import LONG, comes_from_standby, hold_replay, reads
from tests.claims import assert_claims_are_the_ledger
from tests.e2e.own_postgres import PATIENCE_SECONDS, OwnPostgres, own_postgres, standby_of
from tests.e2e.processes import WebServer
from tests.factories import make_group, make_hosts, make_project
from tests.ledger import assert_ledger_holds
from tests.placement.client import consumer_body, placement_settings

pytestmark = pytest.mark.e2e

ZONE, GROUP, PROJECT = "az-a", "general", "owner"
RESOURCE = f"hw_version_{GROUP}_ram"
HOSTS = 3
CLIENTS, ROUNDS = 4, 12
ASKED = {"VCPU": 2, "MEMORY_MB": 8192}
CLAIMS = {"HEADROOM_ALLOCATION_SOURCE": "placement", "HEADROOM_PLACEMENT__HOST_INVENTORIES": "host"}


@pytest.fixture
def primary(tmp_path: Path, migrated: Path) -> Iterator[OwnPostgres]:
    with own_postgres(tmp_path, os.environ, migrated) as server:
        yield server


@pytest.fixture
def on_primary(
    primary: OwnPostgres, monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any
) -> Any:
    """Return what makes that server's database this test's own for a while."""
    address = urlsplit(primary.url)
    own = {
        **connections.settings["default"],
        "NAME": address.path.strip("/"),
        "USER": address.username,
        "HOST": parse_qs(address.query)["host"][0],
        "PORT": "",
    }
    monkeypatch.setitem(connections.settings, "primary", own)

    @contextmanager
    def there() -> Iterator[None]:
        with django_db_blocker.unblock():  # no test's database is asked
            usual, connections["default"] = connections["default"], connections["primary"]
            sessions._local.session = None  # the thread has kept that of the usual one
            try:
                yield
            finally:
                connections["default"] = usual
                sessions._local.session = None
                connections["primary"].close()
                del connections["primary"]  # other tests have another server of that name

    return there


@pytest.fixture
def web(
    primary: OwnPostgres, tmp_path: Path, on_primary: Any, settings: Any
) -> Iterator[WebServer]:
    placement_settings(settings, host_inventories="host", host_providers=True)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})
    with on_primary():
        make_group(GROUP, flavors=[("small", 8192, 2)], ram_unit_gib=1)
        make_project(PROJECT)
        make_hosts(HOSTS, zone=ZONE, memory_gib=96, vcpus=24)
        reconcile_hosts()
    with standby_of(primary, tmp_path) as standby:
        server = WebServer(
            directory=tmp_path,
            overrides={
                "DATABASE_URL": primary.url,
                "HEADROOM_REPLICA_URLS": standby.url,
                "HEADROOM_REPLICAS__MOST_LAG_SECONDS": LONG,
                "HEADROOM_REPLICAS__LOOK_SECONDS": "0.1",
                "HEADROOM_REPLICAS__SEARCHES": "true",
                "HEADROOM_TOKENS": json.dumps(OPERATOR),
                **CLAIMS,
            },
        )
        server.start()
        assert wait_until(lambda: comes_from_standby(server), PATIENCE_SECONDS), server.log()
        hold_replay(standby)
        yield server
        server.end()


def batch(version: int, uuid: str, amount_gib: int, *, is_new: bool) -> dict[str, Any]:
    before, after = (0, amount_gib) if is_new else (amount_gib, 0)
    told = {
        "uuid": uuid,
        "oldStatus": None if is_new else "confirmed",
        "newStatus": "confirmed" if is_new else None,
        "amount": amount_gib,
        "expiresAt": (timezone.now() + timedelta(days=365)).isoformat(),
    }
    totals = {
        "totalConfirmedBefore": before,
        "totalConfirmedAfter": after,
        "totalGuaranteedBefore": 0,
        "totalGuaranteedAfter": 0,
    }
    return {
        "az": ZONE,
        "dryRun": False,
        "infoVersion": version,
        "byProject": {PROJECT: {"byResource": {RESOURCE: {**totals, "commitments": [told]}}}},
    }


def live(web: WebServer, number: int) -> Counter[str]:
    """Claim, give back, commit and end, and read what others may read from the standby."""
    draw, done = Random(number), Counter[str]()  # noqa: S311 - no secret
    mine: list[str] = []
    version = web.send("GET", "/commitments/v1/info").json()["version"]
    for _ in range(ROUNDS):
        words = ",".join(f"{name}:{amount}" for name, amount in ASKED.items())
        found = placement(web, "GET", f"allocation_candidates?resources={words}&limit=5")
        assert found.status == 200, found.body
        for one in found.json()["allocation_requests"][:1]:
            vm = str(uuid4())
            body = consumer_body({next(iter(one["allocations"])): ASKED}, project_id=PROJECT)
            body["consumer_type"] = "INSTANCE"
            granted = placement(web, "PUT", f"allocations/{vm}", body).status
            done[f"claim {granted}"] += 1
            mine += [vm] if granted == 204 else []
        if mine and draw.random() < 0.3:
            done[f"delete {placement(web, 'DELETE', f'allocations/{mine.pop()}').status}"] += 1
        uuid = str(uuid4())
        for is_new in (True, False) if draw.random() < 0.5 else (True,):
            asked = batch(version, uuid, 8, is_new=is_new)
            answer = web.send("POST", "/commitments/v1/change-commitments", asked)
            done[
                f"change {answer.status} {answer.json() == {} if answer.status == 200 else ''}"
            ] += 1
            if answer.status != 200 or answer.json():
                break
        web.send("POST", "/commitments/v1/report-capacity", {"allAZs": [ZONE]})
        web.send("GET", "/api/v1/hosts")
    return done


def test_claims_and_changes_decide_by_the_primary_whatever_a_standby_says(
    web: WebServer, on_primary: Any
) -> None:
    before = reads(web).get("standby", 0.0)
    with ThreadPoolExecutor(CLIENTS) as pool:
        done = sum(pool.map(lambda number: live(web, number), range(CLIENTS)), Counter[str]())
    assert reads(web)["standby"] > before
    assert reads(web, "candidates")["primary"] > 0, "which has what the standby lacks"
    statuses = {int(what.split()[1]) for what in done}
    assert statuses <= {200, 204, 409, 503}, done
    with on_primary():
        assert_claims_are_the_ledger()
        assert_ledger_holds()
        assert Allocation.objects.exists(), done
        assert Reservation.objects.filter(kind="committed").exists(), done
        # What was granted fills the region, which the standby still takes for empty.
        room = Host.objects.count() * 96 // 8
        assert done["claim 204"] + done["change 200 True"] > room // 2, done
