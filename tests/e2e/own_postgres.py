"""PostgreSQL servers of one test, to be stopped, started and changed under our processes.

Migrating takes longer than most of these tests: it is done once in a run, whichever of its
processes asks first, and each server begins with a copy of those files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from cloud.postgres import (
    DATABASE,
    PATIENCE_SECONDS,
    OwnPostgres,
    copy_files,
    either,
    own_postgres,
    standby_of,
)
from config.launcher.places import locked
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
MIGRATE = ("migrate", "--verbosity", "0")
IMPORT = ("import_region", str(REGION))


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory of this run that whichever of its processes comes first has filled.

    Args:
        factory: Of a process of the run, each of which has its own directory in the run's.
        name: Of the directory.
        make: Fills a directory that it makes itself.
    """
    here = factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    made = shared / name
    with locked(shared / f"{name}.lock"):
        if not made.exists():
            unfinished = shared / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(made)
    return made


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a server whose database is migrated and empty."""
    return made_once(tmp_path_factory, "migrated", partial(_fill, tmp_path_factory, MIGRATE))


@pytest.fixture(scope="session")
def with_region(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Path:
    """The files of a server whose database has a region."""
    fill = partial(_fill, tmp_path_factory, IMPORT, data=migrated)
    return made_once(tmp_path_factory, "with_region", fill)


def _fill(
    factory: pytest.TempPathFactory, command: Sequence[str], into: Path, data: Path | None = None
) -> None:
    directory = factory.mktemp("filling")
    with own_postgres(directory, os.environ, data) as server:
        manage(directory, *command, DATABASE_URL=server.url)
        server.stop()
        copy_files(server.spec.data, into)
