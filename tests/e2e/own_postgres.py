"""PostgreSQL servers of one test, to be stopped, started and changed under our processes.

Migrating takes longer than most of these tests: it is done once in a session, and each server
begins with a copy of those files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.postgres import (
    DATABASE,
    PATIENCE_SECONDS,
    OwnPostgres,
    either,
    own_postgres,
    standby_of,
)
from tests.e2e.processes import manage

__all__ = [
    "DATABASE",
    "PATIENCE_SECONDS",
    "OwnPostgres",
    "either",
    "migrated",
    "own_postgres",
    "standby_of",
    "with_region",
]

REGION = Path(__file__).parents[1] / "data" / "mini-cloud-region.json"


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of a server whose database is migrated and empty."""
    directory = tmp_path_factory.mktemp("migrated")
    with own_postgres(directory, os.environ) as server:
        manage(directory, "migrate", "--verbosity", "0", DATABASE_URL=server.url)
        server.stop()
        yield server.spec.data


@pytest.fixture(scope="session")
def with_region(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Path]:
    """The files of a server whose database has a region."""
    directory = tmp_path_factory.mktemp("with_region")
    with own_postgres(directory, os.environ, migrated) as server:
        manage(directory, "import_region", str(REGION), DATABASE_URL=server.url)
        server.stop()
        yield server.spec.data
