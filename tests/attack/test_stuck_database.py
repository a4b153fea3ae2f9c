"""A table that is locked for long: who reads it is told so in time, all is normal afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from config.launcher.processes import wait_until
from tests.e2e.own_postgres import OwnPostgres, own_postgres
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, Answer, WebServer, manage

pytestmark = [pytest.mark.django_db, pytest.mark.e2e]

READERS = 30
PLACEMENT = {"OpenStack-API-Version": "placement 1.39"}
SHORT = {"HEADROOM_DEADLINES__WEB_LOCK_SECONDS": "1"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stuck")


@pytest.fixture(scope="module")
def postgres(directory: Path, with_region: Path) -> Iterator[OwnPostgres]:
    with own_postgres(directory, os.environ, with_region) as server:
        yield server


@pytest.fixture(scope="module")
def web(directory: Path, postgres: OwnPostgres) -> Iterator[WebServer]:
    """A web server whose requests wait a second for locks, until the last test kills it."""
    manage(directory, "configure_database", DATABASE_URL=postgres.url, **SHORT)
    tokens = [{"token": ADMIN, "name": "operator", "roles": ["admin"]}]
    overrides = {"DATABASE_URL": postgres.url, "HEADROOM_TOKENS": json.dumps(tokens), **SHORT}
    with WebServer(directory=directory, overrides=overrides) as server:
        yield server


def read(web: WebServer) -> Answer:
    return web.send("GET", "/placement/resource_providers", headers=PLACEMENT)


def waiting(postgres: OwnPostgres) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with postgres.connect() as link:
        return int(str((link.execute(query).fetchone() or (0,))[0]))


def lock_providers(link: psycopg.Connection[tuple[object, ...]]) -> None:
    link.execute("LOCK TABLE placement_provider IN ACCESS EXCLUSIVE MODE")


def test_stuck_readers_are_told_so_and_leave_nothing_behind(
    web: WebServer, postgres: OwnPostgres
) -> None:
    assert read(web).status == 200
    with ThreadPoolExecutor(READERS) as pool:
        with postgres.connect() as link, link.transaction():
            lock_providers(link)
            answers = [pool.submit(read, web) for _ in range(READERS)]
            told = [answer.result(PATIENCE_SECONDS) for answer in answers]
            assert {answer.status for answer in told} == {503}
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in told)
            assert wait_until(lambda: waiting(postgres) == 0, PATIENCE_SECONDS)
        assert read(web).status == 200


def test_statements_of_a_killed_server_end(web: WebServer, postgres: OwnPostgres) -> None:
    """Nothing tells the database that its clients are gone; it looks itself."""
    with postgres.connect() as link:
        link.execute("ALTER ROLE CURRENT_USER IN DATABASE headroom SET lock_timeout = '10min'")
        link.execute("ALTER ROLE CURRENT_USER IN DATABASE headroom SET statement_timeout = 0")
    web.kill()
    web.start()
    with postgres.connect() as link, ThreadPoolExecutor(4) as pool, link.transaction():
        lock_providers(link)
        asked = [pool.submit(read, web) for _ in range(4)]
        assert wait_until(lambda: waiting(postgres) > 0, PATIENCE_SECONDS)
        web.kill()
        assert all(one.exception(PATIENCE_SECONDS) is not None for one in asked)
        assert wait_until(lambda: waiting(postgres) == 0, PATIENCE_SECONDS)
