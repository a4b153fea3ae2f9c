"""Migrations: a new database, one of the release before, and one that stopped half way."""

from __future__ import annotations

import ast
import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db.migrations.loader import MigrationLoader
from psycopg import sql

from config.launcher.places import this_checkout
from tests.e2e.own_postgres import OwnPostgres, own_postgres
from tests.e2e.processes import manage

#: A database of the release before this one, as ``pg_dump --inserts`` writes it: migrated one by
#: one, with a region in it.
BEFORE = this_checkout().root / "tests" / "data" / "database-before.sql.gz"
REGION = ("--hosts", "12", "--seed", "1", "--vms-per-host", "4", "--commitments", "10")
REGION_TABLES = (
    "hosts_host",
    "hosts_instance",
    "commitments_commitment",
    "capacity_reservation",
    "capacity_hostcapacity",
)
#: Everything of the schema as text, without what only says in which order it was made.
SCHEMA = """
SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable
       || ' ' || coalesce(column_default, '')
  FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' '
                 || pg_get_constraintdef(oid)
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'function ' || pg_get_functiondef(one.oid)
            FROM pg_proc AS one
           WHERE one.pronamespace = 'public'::regnamespace AND one.prokind = 'f'
             AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = one.oid AND deptype = 'e')
UNION ALL SELECT 'options ' || relname || ' ' || array_to_string(reloptions, ' ')
            FROM pg_class
           WHERE relnamespace = 'public'::regnamespace AND reloptions IS NOT NULL
UNION ALL SELECT 'view ' || viewname || ' ' || definition
            FROM pg_views WHERE schemaname = 'public'
"""


def schema(postgres: OwnPostgres) -> set[str]:
    with postgres.connect() as link:
        return {str(line) for (line,) in link.execute(SCHEMA).fetchall()}


def spelled_alike(lines: set[str]) -> set[str]:
    """Leave out casts and brackets, which a dump and its restore spell otherwise."""
    return {re.sub(r"::(character varying|text)\b(\[\])?|[()]", "", line) for line in lines}


def counts(postgres: OwnPostgres) -> dict[str, int]:
    """Return how many rows each table of the region has."""
    found = {}
    with postgres.connect() as link:
        for name in REGION_TABLES:
            statement = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))
            found[name] = int(str((link.execute(statement).fetchone() or (0,))[0]))
    return found


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[OwnPostgres]:
    with own_postgres(tmp_path, os.environ) as server:
        yield server


@pytest.fixture
def before(postgres: OwnPostgres) -> OwnPostgres:
    """A database of the release before."""
    text = gzip.decompress(BEFORE.read_bytes()).decode()
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("\\"))
    with postgres.connect() as link:
        link.execute(plain.encode())
    return postgres


@pytest.fixture
def newest(tmp_path: Path, migrated: Path) -> Iterator[OwnPostgres]:
    """A database that was migrated from nothing."""
    directory = tmp_path / "newest"
    directory.mkdir()
    with own_postgres(directory, os.environ, migrated) as server:
        yield server


@pytest.mark.e2e
def test_a_database_of_the_release_before_goes_on_with_its_data(
    before: OwnPostgres, newest: OwnPostgres, tmp_path: Path
) -> None:
    rows, older = counts(before), schema(before)
    assert min(rows.values()) > 0, rows
    manage(tmp_path, "migrate", "--verbosity", "0", DATABASE_URL=before.url)
    manage(tmp_path, "migrate", "--check", DATABASE_URL=before.url)
    assert counts(before) == rows
    now = schema(before)
    assert now != older
    assert spelled_alike(now) == spelled_alike(schema(newest))
    region = str(tmp_path / "region.json")
    manage(tmp_path, "generate_region", *REGION, "--output", region, DATABASE_URL=before.url)
    manage(tmp_path, "import_region", region, DATABASE_URL=before.url)  # functions work
    assert counts(before) == rows


@pytest.mark.e2e
def test_an_app_is_taken_back_and_applied_again(newest: OwnPostgres, tmp_path: Path) -> None:
    def run(*arguments: str) -> None:
        manage(tmp_path, *arguments, "--verbosity", "0", DATABASE_URL=newest.url)

    whole = schema(newest)
    run("migrate", "failover", "zero")
    run("migrate", "placement", "zero")
    assert schema(newest) != whole
    run("migrate")
    assert schema(newest) == whole


@pytest.mark.e2e
@pytest.mark.parametrize("app", ["hosts", "placement"])
def test_a_database_that_stopped_half_way_is_refused_in_one_line(
    before: OwnPostgres, tmp_path: Path, app: str
) -> None:
    with before.connect() as link:
        link.execute(
            "DELETE FROM django_migrations WHERE id = (SELECT max(id) FROM django_migrations"
            " WHERE app = %s)",
            [app],
        )
    with pytest.raises(AssertionError) as refused:
        manage(tmp_path, "migrate", DATABASE_URL=before.url)
    (line,) = str(refused.value).partition("\nassert ")[0].splitlines()[-1:]
    assert line.startswith("CommandError: the database lacks 1 of the migrations up to " + app)
    assert "docs/operations.md" in line


def ours() -> dict[tuple[str, str], Path]:
    """Return our migrations and their files."""
    root = this_checkout().root
    files = {
        (app, name): root / app / "migrations" / f"{name}.py"
        for app, name in sorted(MigrationLoader(None).disk_migrations)
    }
    return {key: path for key, path in files.items() if path.is_file()}


def test_every_migration_can_be_taken_back() -> None:
    loader = MigrationLoader(None)
    wrong = [
        (app, name, str(operation))
        for app, name in ours()
        for operation in loader.disk_migrations[app, name].operations
        if not operation.reversible
    ]
    assert wrong == []


def test_no_migration_imports_another() -> None:
    """The text of an older one may be changed, squashed or deleted without any other noticing."""
    wrong = []
    for (app, name), path in ours().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                imported = [node.module or ""]
            if any(module == "importlib" or ".migrations" in module for module in imported):
                wrong.append(f"{app}.{name}")
    assert wrong == []
