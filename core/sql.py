"""SQL as files: statements by name, and functions and triggers, which ``migrate`` applies.

``<app>/sql/NAME.sql`` holds the current text of one statement, of one function with its triggers,
or of an app's triggers that call functions of others (ADR 0028). What a file creates bears the
file's digest as its comment, so the database itself says what it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from hashlib import blake2b
from pathlib import Path
from typing import Self

from django.conf import settings
from django.core.management.base import CommandError
from django.db import Error, ProgrammingError, connection, transaction
from django.db.backends.utils import CursorWrapper

from core.releases import newer_version, record_version
from journal.deadlines import in_milliseconds
from journal.outages import is_retryable, sqlstate_of

ROOT = Path(__file__).parents[1]
MARK = "headroom "
CREATED = re.compile(
    r"^CREATE OR REPLACE (?:FUNCTION (?P<function>\w+)"
    r"|TRIGGER (?P<trigger>\w+)\s.*?\sON (?P<table>\w+))",
    re.MULTILINE | re.DOTALL,
)
HEAD = re.compile(r"\A(?:--.*\n)*")
OTHER_RESULT = "42P13"  # invalid_function_definition: told for another type of the result

# Held until the end of the transaction; its key is of no other lock (capacity.locks has the rest).
ALONE = """
SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;
SELECT pg_advisory_xact_lock(hashtextextended('headroom sql', 0))
"""
#: Beyond it nobody is kept waiting behind us: those who write a table wait for who waits for it.
SHORTLY = "SELECT set_config('lock_timeout', %s, true)"
PRESENT = """
SELECT 'FUNCTION ' || proname, obj_description(oid, 'pg_proc'), 'FUNCTION ' || oid::regprocedure
  FROM pg_proc
 WHERE pronamespace = current_schema()::regnamespace
   AND obj_description(oid, 'pg_proc') LIKE 'headroom %'
 UNION ALL
SELECT format('TRIGGER %s ON %s', tgname, relname), obj_description(one.oid, 'pg_trigger'),
       format('TRIGGER %I ON %I', tgname, relname)
  FROM pg_trigger AS one JOIN pg_class AS place ON place.oid = tgrelid
 WHERE relnamespace = current_schema()::regnamespace
   AND obj_description(one.oid, 'pg_trigger') LIKE 'headroom %'
"""
OF_NAME = """
SELECT oid::regprocedure::text FROM pg_proc
 WHERE pronamespace = current_schema()::regnamespace AND proname = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlFile:
    """A file that creates something.

    Attributes:
        place: ``app/sql/name.sql``.
        created: What it creates, as ``FUNCTION name`` and ``TRIGGER name ON table``.
    """

    place: str
    text: str
    created: tuple[str, ...]

    @classmethod
    def of(cls, place: str, text: str) -> Self:
        """Find what a text creates; one that creates nothing is a statement."""
        created = tuple(
            f"FUNCTION {one['function']}"
            if one["function"]
            else f"TRIGGER {one['trigger']} ON {one['table']}"
            for one in CREATED.finditer(text)
        )
        return cls(place=place, text=text, created=created)

    @property
    def mark(self) -> str:
        """Return the comment on what it creates."""
        return f"{MARK}{self.place} {blake2b(self.text.encode(), digest_size=8).hexdigest()}"

    @property
    def functions(self) -> frozenset[str]:
        """Return the names of the functions it creates."""
        return frozenset(
            one.removeprefix("FUNCTION ") for one in self.created if one.startswith("FUNCTION ")
        )

    @property
    def words(self) -> frozenset[str]:
        """Return the words of the text without its comments."""
        return frozenset(re.findall(r"\w+", re.sub("--.*", "", self.text)))


@cache
def load_sql(app: str, name: str) -> str:
    """Return the statement of ``<app>/sql/<name>.sql``, without the comment at its head.

    Parameters stand in it as for psycopg: ``%(name)s``, and ``%%`` for a percent sign.
    """
    text = (ROOT / app / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return HEAD.sub("", text).rstrip().removesuffix(";")


def created_files() -> list[SqlFile]:
    """Return the files of all apps that create something, in order."""
    paths = sorted(ROOT.glob("*/sql/*.sql"))
    return ordered(
        SqlFile.of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in paths
    )


def ordered(files: Iterable[SqlFile]) -> list[SqlFile]:
    """Return those that create something, each after those whose functions it names."""
    creating = [one for one in files if one.created]
    makers = {name: one for one in creating for name in one.functions}
    needed = {
        one: [makers[word] for word in sorted(one.words & makers.keys()) if makers[word] != one]
        for one in creating
    }
    return list(TopologicalSorter(needed).static_order())


def apply_sql(files: Iterable[SqlFile] | None = None) -> list[str]:
    """Give the database the current functions and triggers; return the places of those it lacked.

    One transaction under a lock: who comes second finds nothing to do. What an earlier text created
    and no file creates now is dropped. What a newer release brought is left as it is.

    Raises:
        CommandError: the server refuses a file; names it, and the line.
        OperationalError: somebody holds a lock for too long; nothing was applied.
    """
    known = created_files() if files is None else list(files)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(ALONE)
        if newer_version():
            return []
        cursor.execute(
            SHORTLY, [in_milliseconds(settings.HEADROOM.deadlines.migration_lock_seconds)]
        )
        present = _present(cursor)
        lacking = _lacking(known, present)
        for file in lacking:
            _apply(cursor, file)
        current = {one for file in known for one in file.created}
        gone = [identity for (one, _), identity in present.items() if one not in current]
        for identity in sorted(gone, reverse=True):  # triggers before functions
            cursor.execute(f"DROP {identity}")
        record_version()
    return [file.place for file in lacking]


def unapplied_sql() -> str:
    """Return how many files the database lacks, in words; nothing when it has all or newer ones."""
    if newer_version():
        return ""
    with connection.cursor() as cursor:
        lacking = _lacking(created_files(), _present(cursor))
    return f"{len(lacking)} SQL files are not applied" if lacking else ""


def _present(cursor: CursorWrapper) -> dict[tuple[str, str], str]:
    """Return what files created, by name and mark, with the identity by which it is dropped."""
    cursor.execute(PRESENT)
    return {(name, mark): identity for name, mark, identity in cursor.fetchall()}


def _lacking(files: Iterable[SqlFile], present: Iterable[tuple[str, str]]) -> list[SqlFile]:
    known = set(present)
    return [file for file in files if any((one, file.mark) not in known for one in file.created)]


def _apply(cursor: CursorWrapper, file: SqlFile) -> None:
    before = {name: _identities(cursor, name) for name in file.functions}
    try:
        try:
            with transaction.atomic():
                cursor.execute(file.text)
        except ProgrammingError as error:
            if sqlstate_of(error) != OTHER_RESULT:
                raise
            _drop_functions(cursor, (one for known in before.values() for one in known))
            before = {}
            cursor.execute(file.text)
        for name, known in before.items():
            if _identities(cursor, name) > known:  # other parameters make another function
                _drop_functions(cursor, known)
        for one in file.created:
            cursor.execute(f"COMMENT ON {one} IS '{file.mark}'")
    except Error as error:
        if is_retryable(error):
            raise
        raise CommandError(_explained(file, error)) from error


def _identities(cursor: CursorWrapper, name: str) -> set[str]:
    cursor.execute(OF_NAME, [name])
    return {identity for (identity,) in cursor.fetchall()}


def _drop_functions(cursor: CursorWrapper, identities: Iterable[str]) -> None:
    for identity in identities:
        cursor.execute(f"DROP FUNCTION {identity}")


def _explained(file: SqlFile, error: Error) -> str:
    told = getattr(error.__cause__, "diag", None)
    position = int(getattr(told, "statement_position", None) or 1)
    line = file.text.count("\n", 0, position - 1) + 1
    return f"{file.place}:{line}: {getattr(told, 'message_primary', None) or error}"
