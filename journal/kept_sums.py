"""Sums over many rows for the metrics page, kept by a task between scrapes.

A sum over all reservations of a large region costs PostgreSQL more than a whole scrape may. The
task ``journal.keep_sums`` carries such statements out and keeps what they say; a scrape reads that
by one key. What is missing, too old, or of another statement (that of another release) is summed
up at the scrape, so that the page is never wrong, only dear: ``metrics_sums_age_seconds`` tells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.backends.utils import CursorWrapper

from journal.metrics import once_per_scrape

log = structlog.get_logger(__name__)

#: What one sum may take: no scrape waits for it.
LIMIT_MILLISECONDS: Final = 60_000
#: Sums that the task kept so many of its intervals ago are not told any more.
INTERVALS_TOLD: Final = 10

READ: Final = """
SELECT name, digest, figures FROM journal_keptsums
 WHERE computed_at > clock_timestamp() - make_interval(secs => %(most_seconds)s)
"""
KEEP: Final = """
INSERT INTO journal_keptsums (name, digest, figures, computed_at)
VALUES (%(name)s, %(digest)s, %(figures)s, clock_timestamp())
    ON CONFLICT (name) DO UPDATE
   SET digest = excluded.digest, figures = excluded.figures, computed_at = excluded.computed_at
"""
OLDEST: Final = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - computed_at)), 0)::float8
  FROM journal_keptsums WHERE name = ANY(%(names)s)
"""

Rows = Sequence[Sequence[Any]]  # Any: what statements and JSON tell
Parameters = Mapping[str, Any]  # Any: likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A statement and its parameters, all of which JSON can tell."""

    statement: str
    parameters: Parameters

    @property
    def digest(self) -> str:
        """What rows of this very query are kept under."""
        text = self.statement + json.dumps(dict(self.parameters), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def rows(self, cursor: CursorWrapper) -> Rows:
        """Carry it out."""
        cursor.execute(self.statement, self.parameters)
        rows: Rows = cursor.fetchall()
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Rows that are kept between scrapes.

    Attributes:
        name: Unique among all sums.
        query: What to sum up, as the settings and the region's size have it now.
    """

    name: str
    query: Callable[[CursorWrapper], Query]


_known: Final[dict[str, Sums]] = {}


def kept_sums(
    name: str,
    statement: str | Callable[[], str],
    parameters: Callable[[CursorWrapper], Parameters] = lambda _: {},
) -> Sums:
    """Have rows kept by the task; their values are texts, numbers, booleans and nulls."""

    def query(cursor: CursorWrapper) -> Query:
        text = statement if isinstance(statement, str) else statement()
        return Query(statement=text, parameters=parameters(cursor))

    sums = _known[name] = Sums(name=name, query=query)
    return sums


def read_sums(cursor: CursorWrapper, *wanted: Sums) -> list[Rows]:
    """Return the rows of each, as last kept or else as of now."""
    kept = once_per_scrape(_read_kept, cursor)
    queries = {sums.name: sums.query(cursor) for sums in wanted}
    return [
        json.loads(kept[name, query.digest]) if (name, query.digest) in kept else query.rows(cursor)
        for name, query in queries.items()
    ]


def _read_kept(cursor: CursorWrapper) -> dict[tuple[str, str], str]:
    """Return name and digest -> rows as JSON, of all that is kept and not too old."""
    most_seconds = INTERVALS_TOLD * settings.HEADROOM.metrics.sums_every_seconds
    cursor.execute(READ, {"most_seconds": most_seconds})
    return {(name, digest): figures for name, digest, figures in cursor.fetchall()}


def keep_sums() -> int:
    """Sum up everything that is kept, on a standby where one is fresh; return how many.

    Each is a transaction of its own.

    Raises:
        DatabaseError: The first one that failed did; all others are kept.
    """
    failure: DatabaseError | None = None
    for sums in _known.values():
        try:
            _keep(sums)
        except DatabaseError as error:
            log.warning("metrics_sums_not_kept", name=sums.name, error=str(error))
            failure = failure or error
    if failure is not None:
        raise failure
    return len(_known)


def _keep(sums: Sums) -> None:
    from journal.standby.asking import (  # noqa: PLC0415 - its counters are declared beside sums
        PATIENCE_SECONDS,
        from_standby,
    )

    sum_up = partial(_summed_up, sums)
    kept = from_standby(sum_up, reader="sums", patience_seconds=PATIENCE_SECONDS) or sum_up()
    with connection.cursor() as cursor:
        cursor.execute(KEEP, kept)


def _summed_up(sums: Sums) -> Parameters:
    """Return what is kept of sums as of now."""
    with transaction.atomic(), connection.cursor() as cursor:
        limit = [str(LIMIT_MILLISECONDS)]
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", limit)
        query = sums.query(cursor)
        figures = json.dumps(query.rows(cursor), default=_number)
    return {"name": sums.name, "digest": query.digest, "figures": figures}


def _number(value: object) -> float:
    """Tell a sum of PostgreSQL as metrics do."""
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{value!r} is nothing that sums are kept of")


def known_sums() -> list[str]:
    """Return the names of all sums that are kept."""
    return list(_known)
