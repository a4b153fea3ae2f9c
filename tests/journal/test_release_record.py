"""The database of today is fit for the last release, which may run beside us or be brought back.

What fails here is a change in one step that has to be made in two: the next release brings the new
without needing it, the one after it takes the old away (docs/contributing.md, Migrations).
``RECORD_RELEASE=1 ./run test tests/journal/test_release_record.py`` writes the record at a release.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import psycopg
import pytest

from config.launcher.places import this_checkout
from core.releases import own_version, parsed
from tests.e2e.processes import database_url

RECORD = this_checkout().root / "tests" / "data" / "release.json"
Record = dict[str, Any]  # Any: JSON
#: Constraints of tables that the last release writes, which it keeps as well: why.
KEPT_BY_THE_LAST_RELEASE: dict[str, str] = {
    "hosts_host_reported_together": "it writes neither of the two columns",
}


#: Per table its columns: type, and whether a writer that does not name it may leave it out.
COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable,
       is_nullable = 'YES' OR column_default IS NOT NULL OR is_identity = 'YES'
       OR is_generated = 'ALWAYS'
  FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
 WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
   AND NOT (SELECT relispartition FROM pg_class WHERE oid = table_name::regclass)
 ORDER BY 1, 2
"""
FUNCTIONS = """
SELECT one.oid::regprocedure::text, pg_get_function_result(one.oid)
  FROM pg_proc AS one
 WHERE one.pronamespace = 'public'::regnamespace AND one.prokind = 'f'
   AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = one.oid AND deptype = 'e')
 ORDER BY 1
"""
#: What refuses rows; an index that is not unique refuses none.
RULES = """
SELECT conrelid::regclass::text, conname FROM pg_constraint
 WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
 UNION
SELECT tablename::text, indexname::text FROM pg_indexes
 WHERE schemaname = 'public' AND indexdef LIKE 'CREATE UNIQUE %'
 ORDER BY 1, 2
"""


def read(link: psycopg.Connection[Any]) -> Record:
    """Return what a database has."""
    tables: dict[str, Any] = {}
    for table, column, kind, is_nullable, may_be_left_out in link.execute(COLUMNS):
        tables.setdefault(table, {})[column] = [kind, is_nullable == "YES", may_be_left_out]
    rules: dict[str, list[str]] = {}
    for table, rule in link.execute(RULES):
        rules.setdefault(table, []).append(rule)
    functions = dict(link.execute(FUNCTIONS).fetchall())
    return {"tables": tables, "functions": functions, "rules": rules}


def breaches(before: Record, now: Record) -> Iterator[str]:
    """Say what the release of before would miss, or would be refused, on the database of now."""
    for table, columns in before["tables"].items():
        if table not in now["tables"]:
            yield f"table {table} is gone"
            continue
        for told in _of_columns(columns, now["tables"][table]):
            yield f"column {table}.{told}"
    for function, result in before["functions"].items():
        if now["functions"].get(function) != result:
            yield f"function {function} is gone or returns something else"
    for table in before["tables"].keys() & now["rules"].keys():
        for rule in set(now["rules"][table]) - set(before["rules"].get(table, [])):
            if rule not in KEPT_BY_THE_LAST_RELEASE:
                yield f"constraint {rule} of {table} is new: does the last release keep it?"


def _of_columns(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for column, (kind, is_nullable, may_be_left_out) in before.items():
        kind_now, nullable_now, left_out_now = now.get(column, ("gone", True, True))
        if kind_now != kind:
            yield f"{column} is {kind_now}, was {kind}"
        if is_nullable and not nullable_now:
            yield f"{column} takes no NULL any more"
        if may_be_left_out and not left_out_now:
            yield f"{column} has lost its default"
    for column in now.keys() - before.keys():
        if not now[column][2]:
            yield f"{column} is new and has no default in the database"


@pytest.fixture
def before() -> Record:
    return dict(json.loads(RECORD.read_text(encoding="utf-8")))


@pytest.mark.django_db
def test_the_last_release_finds_what_it_needs(before: Record) -> None:
    with psycopg.connect(database_url()) as link:
        now = {"version": own_version(), **read(link)}
    if "RECORD_RELEASE" in os.environ:
        RECORD.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return
    assert parsed(before["version"]) <= parsed(now["version"])
    assert sorted(breaches(before, now)) == []


def change(record: Record, table: str, column: str, value: Any) -> None:  # Any: JSON
    record["tables"][table][column] = value


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hosts_host.name": None}, "column hosts_host.name is gone"),
        ({"hosts_host.name": ["integer", False, False]}, "column hosts_host.name is integer, was"),
        ({"hosts_host.more": ["text", False, False]}, "more is new and has no default"),
        ({"hosts_host.more": ["text", False, True]}, ""),
        ({"hosts_host.more": ["text", True, True]}, ""),
    ],
)
def test_a_step_too_far_is_told(before: Record, changes: dict[str, Any], told: str) -> None:
    after = deepcopy(before)
    for place, value in changes.items():
        table, _, column = place.partition(".")
        if value is None:
            del after["tables"][table][column]
        else:
            change(after, table, column, value)
    found = list(breaches(before, after))
    assert len(found) == bool(told)
    assert all(told in one for one in found)


def test_functions_tables_and_rules_that_changed_are_told(before: Record) -> None:
    after = deepcopy(before)
    function = next(iter(after["functions"]))
    del after["functions"][function]
    del after["tables"]["hosts_flavor"]
    after["rules"]["hosts_host"].append("hosts_host_new_rule")
    assert sorted(breaches(before, after)) == sorted(
        [
            f"function {function} is gone or returns something else",
            "table hosts_flavor is gone",
            "constraint hosts_host_new_rule of hosts_host is new: does the last release keep it?",
        ]
    )
