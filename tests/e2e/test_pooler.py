"""Every role behind PgBouncer in transaction mode, which gives each transaction another session."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from capacity.models import CapacityComputation, Reservation, ReservationKind
from commitments.models import Commitment
from config.celery_app import app
from config.launcher.processes import wait_until
from config.queues import QUEUES
from journal.models import Heartbeat, KeptSums
from placement.models import Allocation, Inventory, ResourceProvider
from tests.api.scheduler_client import NovaClient
from tests.e2e.own_pooler import SESSIONS, OwnPooler, own_pooler
from tests.e2e.own_postgres import REGION
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, Process, WebServer, Worker, manage
from tests.e2e.test_check_commitments import outcomes, run, url_of
from tests.factories import make_group, make_hosts
from tests.ledger import assert_ledger_holds
from tests.placement.rows import make_provider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

ROLES = ["admin", "cloud_resource_admin", "cloud_resource_scheduler"]
TOKENS = json.dumps([{"token": ADMIN, "name": "operator", "roles": ROLES}])
VERSION = {"OpenStack-API-Version": "placement 1.39"}
CLIENTS = 8
CLAIMS = 48
#: What stays with a session: settings, statements, locks, tables, cursors, channels. A pooler gives
#: them to the next client. ``headroom.server`` is true of the session itself, whoever uses it.
LEFT = """
SELECT 'setting ' || name FROM pg_settings
 WHERE source = 'session' AND name NOT IN %(followed)s
UNION ALL SELECT 'statement ' || name FROM pg_prepared_statements
UNION ALL SELECT 'lock ' || objid FROM pg_locks
           WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL SELECT 'table ' || relname FROM pg_class
           WHERE relpersistence = 't' AND pg_table_is_visible(oid)
UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable
UNION ALL SELECT 'channel ' || channel FROM pg_listening_channels() AS channel
"""
#: PgBouncer itself sets these as each client has them; the last two are of a transaction, and begin
#: anew with each.
FOLLOWED = (
    "('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'headroom.server', "
    "'transaction_isolation', 'transaction_read_only')"
)


@pytest.fixture
def pooler(transactional_db: None, tmp_path: Path) -> Iterator[OwnPooler]:
    del transactional_db
    with own_pooler(tmp_path / "pgbouncer.log") as running:
        yield running


@pytest.fixture
def web(pooler: OwnPooler, tmp_path: Path) -> Iterator[WebServer]:
    overrides = {"DATABASE_URL": pooler.url, "HEADROOM_TOKENS": TOKENS}
    with WebServer(directory=tmp_path, overrides=overrides) as server:
        yield server


@pytest.fixture
def background(pooler: OwnPooler, tmp_path: Path) -> Iterator[tuple[Worker, Process]]:
    """A worker of all queues, and beat."""
    app.control.purge()
    place = tmp_path / "worker"
    place.mkdir()
    overrides = {"DATABASE_URL": pooler.url}
    worker = Worker(directory=place, queue=",".join(QUEUES), processes=2, overrides=overrides)
    worker.start()
    place = tmp_path / "beat"
    place.mkdir()
    beat = Process(role="beat", directory=place, overrides=overrides)
    beat.start()
    yield worker, beat
    beat.end()
    worker.forget()
    app.control.purge()


def claim(web: WebServer, providers: list[UUID], number: int) -> int:
    """Take two cores of a provider for a consumer of its own; return the status."""
    provider = str(providers[number % len(providers)])
    body = {
        "allocations": {provider: {"resources": {"VCPU": 2}}},
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    path = f"/placement/allocations/{uuid4()}"
    return web.send("PUT", path, body, headers=VERSION).status


def look(web: WebServer, number: int) -> int:
    """Ask what takes a snapshot of all providers, and what reads one; return the status."""
    paths = (
        "/placement/allocation_candidates?resources=VCPU:1",
        "/placement/resource_providers",
        "/metrics",
    )
    return web.send("GET", paths[number % len(paths)], headers=VERSION).status


def schedule(web: WebServer, number: int) -> int:
    """Ask where a VM should go, which holds room for it there; return the status."""
    uuid = f"00000000-0000-4000-8000-{number:012d}"
    body = NovaClient(("h1", "h2", "h3")).body(instance_uuid=uuid)
    return web.send("POST", "/scheduler/nova/external", body).status


def left_behind(pooler: OwnPooler) -> set[str]:
    """Return what is left in the sessions; each transaction looks at another one."""
    found: set[str] = set()
    sessions: set[object] = set()
    with pooler.connect() as link:
        while len(sessions) < SESSIONS:
            rows = link.execute(
                f"SELECT pg_backend_pid()::text UNION ALL {LEFT % {'followed': FOLLOWED}}"
            ).fetchall()
            sessions.add(rows[0][0])
            found |= {str(text) for (text,) in rows[1:]}
    return found


def test_decisions_claims_and_calls_hold_behind_a_pooler(
    web: WebServer, pooler: OwnPooler, tmp_path: Path
) -> None:
    make_group("g", flavors=[("g-small", 16384, 4), ("g-large", 32768, 8)])
    make_hosts(3, zone="az-a", memory_gib=1024, vcpus=256)
    providers = [make_provider(f"p{n}", inventories={"VCPU": CLAIMS}).uuid for n in range(3)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        decided = pool.submit(run, url_of(web), "--zone=az-a", "--no-cleanup", folder=tmp_path)
        asked = [
            pool.submit(ask, web, number)
            for number in range(CLAIMS)
            for ask in (lambda web, number: claim(web, providers, number), look, schedule)
        ]
        statuses = [one.result(PATIENCE_SECONDS) for one in asked]
        lines = decided.result(PATIENCE_SECONDS)

    assert set(statuses) == {200, 204}, web.log()
    assert outcomes(lines) == {"passed"}, lines
    assert Commitment.objects.filter(state="confirmed").exists()
    assert Allocation.objects.count() == CLAIMS
    assert set(Inventory.objects.values_list("used", flat=True)) == {2 * CLAIMS // 3}
    held = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
    assert held.values("vm_uuid").distinct().count() == CLAIMS
    assert_ledger_holds()
    assert left_behind(pooler) == set()


def test_tasks_run_behind_a_pooler(background: tuple[Worker, Process], pooler: OwnPooler) -> None:
    worker, beat = background
    make_group("g", flavors=[("g-small", 16384, 4)])
    make_hosts(3, zone="az-a", memory_gib=1024, vcpus=256)
    for task in ("journal.keep_sums", "capacity.refresh_group_capacity", "journal.prune"):
        app.send_task(task)

    def is_done() -> bool:
        return (
            Heartbeat.objects.filter(name="beat").exists()
            and KeptSums.objects.exists()
            and CapacityComputation.objects.exists()
            and ResourceProvider.objects.filter(name="h1").exists()
        )

    assert wait_until(is_done, PATIENCE_SECONDS), beat.log() + worker.log()
    assert "Error" not in worker.log()
    assert left_behind(pooler) == set()


def test_a_region_is_imported_behind_a_pooler(pooler: OwnPooler, tmp_path: Path) -> None:
    """Beside others who get all other sessions, so that none is met again by chance."""
    command = ("import_region", str(REGION))
    ended = threading.Event()

    def work() -> None:
        with pooler.connect() as link:
            while not ended.is_set():
                link.execute("SELECT 1")

    with ThreadPoolExecutor(CLIENTS) as pool:
        others = [pool.submit(work) for _ in range(CLIENTS)]
        try:
            first = manage(tmp_path, *command, DATABASE_URL=pooler.url)
            again = manage(tmp_path, *command, DATABASE_URL=pooler.url)
        finally:
            ended.set()
        for one in others:
            one.result(PATIENCE_SECONDS)
    assert first != again
    assert_ledger_holds()
    assert left_behind(pooler) == set()
