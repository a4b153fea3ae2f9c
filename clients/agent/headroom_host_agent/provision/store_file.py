"""The file that a store is: made, checked, moved aside (spec hosts, D.8)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from headroom_host_agent.provision.stored import StoreError

SCHEMA = 1
_BUSY_SECONDS = 10.0
_ASIDE = ".damaged-"
_TABLES = """
CREATE TABLE reservation (
    id TEXT PRIMARY KEY, seq INTEGER NOT NULL, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL,
    digest TEXT NOT NULL, resources TEXT NOT NULL, body BLOB NOT NULL, state TEXT NOT NULL,
    runs_as TEXT NOT NULL, begun INTEGER NOT NULL
) STRICT;
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    posted_at INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER))
) STRICT;
CREATE TABLE artifact (
    name TEXT NOT NULL, kind TEXT NOT NULL, reservation TEXT NOT NULL, PRIMARY KEY (name, kind)
) STRICT;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO meta (name, value) VALUES ('resyncing', '1');
"""
_DAMAGED = "INSERT INTO meta (name, value) VALUES ('damaged', '1');"


def open_file(path: Path) -> sqlite3.Connection:
    """Return a connection to a store, which is made if there is none.

    The file is readable to its owner alone. A new one has all reservations compared before anything
    is begun: what there is on the host may be of a store before it. One beside a damaged file says
    so from its first transaction on, whoever moved the file and died.

    Raises:
        StoreError: A newer agent wrote it.
        sqlite3.DatabaseError: It is damaged.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Check an open file and create what is missing.

    Raises:
        StoreError: A newer agent wrote it.
        sqlite3.DatabaseError: It is damaged.
    """
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(state)
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if schema > SCHEMA:
        raise StoreError(
            f"{path} has schema {schema}, this agent knows {SCHEMA}: a newer agent wrote it"
        )
    if schema == 0:
        mark = _DAMAGED if _is_beside_damaged(path) else ""
        connection.executescript(
            f"BEGIN IMMEDIATE; {_TABLES} {mark} PRAGMA user_version = {SCHEMA}; COMMIT;"
        )


def _is_beside_damaged(path: Path) -> bool:
    return any(one.name.startswith(f"{path.name}{_ASIDE}") for one in path.parent.iterdir())


def move_aside(path: Path) -> None:
    """Rename a damaged file with what belongs to it, under the first free name."""
    number = 1
    while (aside := path.with_name(f"{path.name}{_ASIDE}{number}")).exists():
        number += 1
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
