"""Migrations: each can be taken back, on a database with a region in it, and applied again."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db.migrations.loader import MigrationLoader
from psycopg import sql

from config.launcher.places import this_checkout
from tests.e2e.own_postgres import OwnPostgres, own_postgres
from tests.e2e.processes import manage

#: The state that is gone back to: that of the first half of the hardening.
BEFORE = {
    "capacity": "0014",
    "commitments": "0019",
    "failover": "0013",
    "hosts": "0009",
    "journal": "0005",
}
REGION = ("--hosts", "20", "--seed", "1", "--vms-per-host", "5", "--commitments", "10")
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


@pytest.mark.e2e
def test_migrations_are_taken_back_and_applied_again_on_a_region(
    postgres: OwnPostgres, tmp_path: Path
) -> None:
    def run(*arguments: str) -> None:
        manage(tmp_path, *arguments, DATABASE_URL=postgres.url)

    region = str(tmp_path / "region.json")
    run("migrate", "--verbosity", "0")
    run("generate_region", *REGION, "--output", region)
    run("import_region", region)
    newest, rows = schema(postgres), counts(postgres)
    assert min(rows.values()) > 0, rows

    for app, name in BEFORE.items():
        run("migrate", "--verbosity", "0", app, name)
    older = schema(postgres)
    assert older != newest
    assert counts(postgres) == rows

    run("migrate", "--verbosity", "0")
    assert schema(postgres) == newest
    assert counts(postgres) == rows
    run("import_region", region)  # triggers and functions work
    assert counts(postgres) == rows


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
