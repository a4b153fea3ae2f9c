"""Reading everything that a Placement service holds from its database.

The tables are those of openstack-placement; PostgreSQL is read with our own driver, SQLite with
the standard library's, MySQL and MariaDB with PyMySQL where it is installed.
"""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit
from uuid import UUID

import psycopg

from journal.errors import HeadroomError
from placement.domain.transfer import Contents
from placement.selectors.contents import contents_of_rows

QUERIES: Final[Mapping[str, str]] = {
    "classes": "SELECT name FROM resource_classes",
    "trait_names": "SELECT name FROM traits",
    "providers": (
        "SELECT p.uuid, p.name, q.uuid, p.generation FROM resource_providers p "
        "LEFT JOIN resource_providers q ON q.id = p.parent_provider_id"
    ),
    "inventories": (
        "SELECT p.uuid, c.name, i.total, i.reserved, i.min_unit, i.max_unit, i.step_size, "
        "i.allocation_ratio FROM inventories i "
        "JOIN resource_providers p ON p.id = i.resource_provider_id "
        "JOIN resource_classes c ON c.id = i.resource_class_id"
    ),
    "traits": (
        "SELECT p.uuid, t.name FROM resource_provider_traits l "
        "JOIN resource_providers p ON p.id = l.resource_provider_id "
        "JOIN traits t ON t.id = l.trait_id"
    ),
    "aggregates": (
        "SELECT p.uuid, g.uuid FROM resource_provider_aggregates l "
        "JOIN resource_providers p ON p.id = l.resource_provider_id "
        "JOIN placement_aggregates g ON g.id = l.aggregate_id"
    ),
    "consumers": (
        "SELECT k.uuid, j.external_id, u.external_id, t.name, k.generation FROM consumers k "
        "JOIN projects j ON j.id = k.project_id JOIN users u ON u.id = k.user_id "
        "LEFT JOIN consumer_types t ON t.id = k.consumer_type_id"
    ),
    "allocations": (
        "SELECT a.consumer_id, p.uuid, c.name, a.used FROM allocations a "
        "JOIN resource_providers p ON p.id = a.resource_provider_id "
        "JOIN resource_classes c ON c.id = a.resource_class_id"
    ),
}
MYSQL_PORT: Final = 3306


class PeerDatabaseError(HeadroomError):
    """The other Placement's database cannot be read."""

    code = "placement_peer_database_failed"


class Connection(Protocol):
    """What is needed of a database connection."""

    def cursor(self) -> Any:  # Any: a DB-API cursor
        """Return a cursor."""

    def close(self) -> None:
        """Close it."""


def read_database(url: str) -> Contents:
    """Return what a Placement database holds, as of one moment.

    Args:
        url: ``postgresql://``, ``sqlite:///FILE`` or ``mysql://``; a driver named after ``+`` is
            ignored, so that the service's own setting can be given.

    Raises:
        PeerDatabaseError: it cannot be read.
    """
    try:
        with _connected(url) as connection:
            rows = {name: _rows(connection, sql) for name, sql in QUERIES.items()}
    except HeadroomError:
        raise
    except Exception as error:  # each driver has errors of its own
        raise PeerDatabaseError(f"the database cannot be read: {error}") from error
    aggregates = [(provider, str(UUID(uuid))) for provider, uuid in rows["aggregates"]]
    return contents_of_rows(
        classes=[row[0] for row in rows.pop("classes")],
        traits=[row[0] for row in rows.pop("trait_names")],
        rows={**rows, "aggregates": aggregates},
    )


def _rows(connection: Connection, sql: str) -> list[tuple[Any, ...]]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql)
        return [tuple(row) for row in cursor.fetchall()]


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    scheme, _, rest = url.partition("://")
    kind = scheme.partition("+")[0]
    if kind in {"postgresql", "postgres"}:
        with psycopg.connect(f"postgresql://{rest}") as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield connection
    elif kind == "sqlite":
        with closing(sqlite3.connect(f"file:{rest[1:]}?mode=ro", uri=True)) as opened:
            opened.execute("BEGIN")
            yield opened
    elif kind == "mysql":
        with closing(_connect_mysql(url)) as mysql:
            yield mysql
    else:
        raise PeerDatabaseError(
            f"{kind or url}: allowed are postgresql://, sqlite:/// and mysql://"
        )


def _connect_mysql(url: str) -> Connection:
    try:
        driver = importlib.import_module("pymysql")
    except ImportError as error:
        raise PeerDatabaseError(
            "reading MySQL or MariaDB needs PyMySQL: pip install PyMySQL"
        ) from error
    parts = urlsplit(url)
    connection: Connection = driver.connect(
        host=parts.hostname or "localhost",
        port=parts.port or MYSQL_PORT,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=unquote(parts.path.lstrip("/")),
        charset="utf8mb4",
    )
    _begin_snapshot(
        connection, ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "BEGIN")
    )
    return connection


def _begin_snapshot(connection: Connection, statements: Sequence[str]) -> None:
    with closing(connection.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)
