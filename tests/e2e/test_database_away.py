"""PostgreSQL goes away under a running web server: every API says so, and goes on afterwards."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from config.launcher.processes import wait_until
from tests.api.scheduler_client import RECORDED
from tests.e2e.own_postgres import OwnPostgres, own_postgres
from tests.e2e.processes import ADMIN, Answer, WebServer

pytestmark = [pytest.mark.django_db, pytest.mark.e2e]

PROJECT = "2f6b5d0c8f0f4a0d9a3e6d1c7b5a4e11"
PROVIDER = "11111111-1111-4111-8111-111111111111"
MOST_CONNECTIONS = 40
PATIENCE_SECONDS = 30.0
EMPTY_BATCH: dict[str, Any] = {"az": "az-a", "byProject": {}}
HISTORY = {"read_only": False, "skip_inflight": True}

Call = tuple[str, str, Any]
READS: dict[str, Call] = {
    "LIQUID info": ("GET", "/commitments/v1/info", None),
    "LIQUID capacity": ("POST", "/commitments/v1/report-capacity", {"allAZs": ["az-a"]}),
    "LIQUID usage": ("POST", f"/commitments/v1/projects/{PROJECT}/report-usage", {"allAZs": []}),
    "operators: drills": ("GET", "/api/v1/failover/drills", None),
    "operators: simulation": ("POST", "/api/v1/failover/simulations", {"failed": {}}),
    "operators: drain": ("POST", "/api/v1/failover/drain-check", {"hosts": ["nobody"]}),
    "operators: candidates": (
        "POST",
        "/api/v1/placement/simulate",
        {"query": "resources=VCPU:1"},
    ),
    "operators: Placement pages": ("GET", "/api/v1/placement/providers", None),
    "Placement": ("GET", "/placement/resource_providers", None),
    "Placement candidates": ("GET", "/placement/allocation_candidates?resources=VCPU:1", None),
}
WRITES: dict[str, Call] = {
    "LIQUID change": ("POST", "/commitments/v1/change-commitments", EMPTY_BATCH),
    "LIQUID quota": ("PUT", f"/commitments/v1/projects/{PROJECT}/quota", {"resources": {}}),
    "operators: replan": ("POST", "/api/v1/failover/replans", {"vm": "nobody", "apply": True}),
    "Placement provider": (
        "POST",
        "/placement/resource_providers",
        {"name": "p", "uuid": PROVIDER},
    ),
}
OTHERS: dict[str, Call] = {
    "scheduler": ("POST", "/scheduler/nova/external", "recorded"),
    "operators: what if": ("POST", "/api/v1/commitments/what-if", {"batch": EMPTY_BATCH}),
    "operators: explain": ("POST", "/api/v1/scheduling/explain", "recorded"),
}
PLACEMENT = {"OpenStack-API-Version": "placement 1.39"}
#: A session that the admin has to look up.
BROWSER = {"Cookie": "sessionid=abcdefghijklmnopqrstuvwxyz012345"}


def recorded() -> Any:
    return json.loads(RECORDED.read_text(encoding="utf-8"))["request"]


def asked(web: WebServer, call: Call) -> Answer:
    method, path, body = call
    return web.send(method, path, recorded() if body == "recorded" else body, headers=PLACEMENT)


def statuses(web: WebServer, calls: dict[str, Call]) -> dict[str, int]:
    return {name: asked(web, call).status for name, call in calls.items()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("away")


@pytest.fixture(scope="module")
def postgres(directory: Path, with_region: Path) -> Iterator[OwnPostgres]:
    with own_postgres(directory, os.environ, with_region) as server:
        yield server


@pytest.fixture(scope="module")
def web(postgres: OwnPostgres, directory: Path) -> Iterator[WebServer]:
    """A web server of one process, on a database with a region in it; it outlives every outage."""
    tokens = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
    overrides = {
        "DATABASE_URL": postgres.url,
        "GRANIAN_WORKERS": "1",
        "HEADROOM_TOKENS": json.dumps(tokens),
    }
    with WebServer(directory=directory, overrides=overrides) as server:
        yield server


def assert_unavailable(answer: Answer, name: str) -> None:
    """Check that an answer tells the caller to come back, in the shape of its family."""
    assert answer.status == 503, (name, answer.status, answer.body)
    assert int(answer.headers["retry-after"]) >= 1, name
    assert b"Traceback" not in answer.body
    assert b"psycopg" not in answer.body
    kind = answer.headers["content-type"]
    if name.startswith("LIQUID"):
        assert kind == "text/plain; charset=utf-8"
        assert answer.body.startswith(b"service temporarily unavailable: ")
        assert b"\n" not in answer.body
    elif name.startswith("Placement"):
        (error,) = answer.json()["errors"]
        assert (error["status"], error["code"]) == (503, "placement.undefined_code")
        assert error["request_id"] == answer.headers["x-openstack-request-id"]
    elif name.startswith("operators"):
        assert kind == "application/problem+json"
        assert answer.json()["status"] == 503
    else:
        assert answer.json()["error"].startswith("service temporarily unavailable")


def assert_all_unavailable(web: WebServer, calls: dict[str, Call]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        answers = {name: pool.submit(asked, web, call) for name, call in calls.items()}
        for name, answer in answers.items():
            assert_unavailable(answer.result(), name)


def whole_log(web: WebServer) -> str:
    return (web.directory / "web.log").read_text(errors="replace")


def test_every_api_says_that_the_database_is_away_and_goes_on_when_it_is_back(
    web: WebServer, postgres: OwnPostgres
) -> None:
    calls = READS | WRITES | OTHERS
    before = statuses(web, calls)
    odd = {401, 403, 404, 405}
    assert {name: got for name, got in before.items() if got >= 500 or got in odd} == {}
    with postgres.stopped():
        assert_all_unavailable(web, calls)
        page = web.send("GET", "/admin/", headers=BROWSER)
        assert (page.status, page.headers["retry-after"]) == (503, "5")
        assert web.send("GET", "/healthz").status == 200
        assert web.send("GET", "/readyz").status == 503
        assert web.send("GET", "/metrics").status == 200
    after = statuses(web, calls)
    assert {name: got for name, got in after.items() if got >= 500} == {}
    assert web.send("GET", "/admin/", headers=BROWSER).status == 302

    postgres.stop()  # a standby may be behind: nothing is told from it
    postgres.standby_signal.touch()
    postgres.start()
    assert_all_unavailable(web, calls)
    postgres.standby_signal.unlink()

    postgres.stop()  # a server without room for our sessions
    postgres.start(max_connections=str(MOST_CONNECTIONS))
    with contextlib.ExitStack() as held:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                held.enter_context(postgres.connect())
        assert_all_unavailable(web, calls)
    assert "Traceback" not in whole_log(web)


def test_requests_that_lose_their_session_in_the_middle_are_told_so(
    web: WebServer, postgres: OwnPostgres
) -> None:
    """They wait for a row or table that we hold while the operator ends their sessions."""
    waiting = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    end = """
        SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    tables = "placement_provider, capacity_flavorgroup, hosts_host, journal_auditentry"
    calls = {
        name: (READS | WRITES)[name]
        for name in ("LIQUID info", "operators: simulation", "Placement", "Placement provider")
    }
    with ThreadPoolExecutor(len(calls)) as pool, postgres.connect() as ours:
        ours.execute("BEGIN")
        ours.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE".encode())
        with postgres.connect() as operator:
            pending = {name: pool.submit(asked, web, call) for name, call in calls.items()}

            def all_wait() -> bool:
                row = operator.execute(waiting).fetchone()
                return row is not None and row[0] == len(calls)

            assert wait_until(all_wait, PATIENCE_SECONDS), whole_log(web)
            operator.execute(end)
            for name, answer in pending.items():
                assert_unavailable(answer.result(), name)
        ours.execute("ROLLBACK")
    assert all(status < 500 for status in statuses(web, calls).values())
    assert "Traceback" not in whole_log(web)
