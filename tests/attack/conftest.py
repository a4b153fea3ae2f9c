"""Real processes to attack: the production web server, and what it needs, at the least cost.

``web`` runs on the test database, which is this test run's own: factories write what it serves,
and the tables are emptied afterwards. An attack on the database server takes ``web_on_postgres``,
whose ``postgres`` may be stopped, paused and changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.own_postgres import OwnPostgres, own_postgres
from tests.e2e.processes import ALONE, WebServer


@pytest.fixture
def web(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    """The web server in token mode on the test database; what is left of it is killed."""
    del transactional_db
    server = WebServer(directory=tmp_path)
    server.start()
    yield server
    server.end()


@pytest.fixture
def postgres(tmp_path: Path, with_region: Path) -> Iterator[OwnPostgres]:
    """A PostgreSQL server of this test alone, which has a region."""
    with own_postgres(tmp_path, os.environ, with_region) as server:
        yield server


@pytest.fixture
def web_on_postgres(postgres: OwnPostgres, tmp_path: Path) -> Iterator[WebServer]:
    """The web server in token mode on ``postgres``."""
    server = WebServer(directory=tmp_path, overrides={"DATABASE_URL": postgres.url, **ALONE})
    server.start()
    yield server
    server.end()
