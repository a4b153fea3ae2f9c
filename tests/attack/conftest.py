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

from tests.e2e.conftest import lasting_web, web
from tests.e2e.own_postgres import OwnPostgres, own_postgres
from tests.e2e.processes import ALONE, WebServer

__all__ = ["lasting_web", "web"]


@pytest.fixture
def postgres(tmp_path: Path, with_region: Path) -> Iterator[OwnPostgres]:
    """A PostgreSQL server of this test alone, which has a region."""
    with own_postgres(tmp_path, os.environ, with_region) as server:
        yield server


@pytest.fixture
def web_on_postgres(postgres: OwnPostgres, tmp_path: Path) -> Iterator[WebServer]:
    """The web server in token mode on ``postgres``."""
    with WebServer(directory=tmp_path, overrides={"DATABASE_URL": postgres.url, **ALONE}) as server:
        yield server
