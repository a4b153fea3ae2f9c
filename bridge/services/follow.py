"""From the log of changes to what waits to be written.

A step reads what changed since the stored position and marks it due, in the transaction that moves
the position. What is due is kept once for each object, so a day of changes costs at most every
object once, and a cluster that is away keeps nobody's log.
"""

from __future__ import annotations

from typing import Any, Final

import structlog
from django.db import transaction

from bridge.domain.kinds import ObjectKind
from core.changes import changed_rows, is_read_anew
from journal.history import MOMENT, moment_of
from journal.leases import check_leases
from journal.models import LogConsumer
from journal.statements import execute, fetch_row

log = structlog.get_logger(__name__)

CONSUMER: Final = "bridge"
#: How long the position may stay while nothing of ours changes: what it holds back in the logs.
STAY_SECONDS: Final = 30
SINCE: Final = "%(since)s::text"


def _own(table: str) -> str:
    return f"SELECT row_id FROM journal_changes('{table}', {SINCE})"  # noqa: S608 - our own names


def _parents(table: str, column: str) -> str:
    rows = changed_rows(table, "part", since=SINCE)
    return f"SELECT part.{column} FROM {rows}"  # noqa: S608 - our own names


def _bereft(kind: ObjectKind, table: str, *, which: str = "is_deletion") -> str:
    changed = f"SELECT row_id FROM journal_changes('{table}', {SINCE}) WHERE {which}"  # noqa: S608
    return (
        f"SELECT source_id FROM bridge_mirrorstate WHERE kind = '{kind.value}'"  # noqa: S608
        f" AND part_ids && ARRAY({changed})"
    )


#: For each kind: the table of its rows, and the keys of those that changed.
SOURCES: Final[dict[ObjectKind, tuple[str, tuple[str, ...]]]] = {
    ObjectKind.COMMITTED_RESOURCE: (
        "commitments_commitment",
        (
            _own("commitments_commitment"),
            _parents("commitments_instanceassignment", "commitment_id"),
            _bereft(ObjectKind.COMMITTED_RESOURCE, "commitments_instanceassignment"),
        ),
    ),
    ObjectKind.RESERVATION: (
        "capacity_reservation",
        (
            _own("capacity_reservation"),
            _parents("capacity_reservationallocation", "reservation_id"),
            _parents("failover_failoverreservation", "reservation_id"),
            _bereft(ObjectKind.RESERVATION, "capacity_reservationallocation"),
        ),
    ),
    ObjectKind.FLAVOR_GROUP_CAPACITY: ("capacity_groupcapacity", (_own("capacity_groupcapacity"),)),
    ObjectKind.PROJECT_QUOTA: ("capacity_projectquota", (_own("capacity_projectquota"),)),
    ObjectKind.HOST: (
        "hosts_host",
        (
            _own("hosts_host"),
            _parents("capacity_hostcapacity", "host_id"),
            _parents("hosts_instance", "host_id") + " WHERE part.host_id IS NOT NULL",
            _bereft(ObjectKind.HOST, "hosts_instance", which="true"),  # a VM leaves one for another
        ),
    ),
}

_MARK: Final = """
INSERT INTO bridge_mirrorstate AS known (kind, source_id, is_first)
SELECT %(kind)s, found.source_id, %(is_first)s FROM (SELECT DISTINCT * FROM ({found}) AS every
       ) AS found (source_id)
ON CONFLICT (kind, source_id) DO UPDATE
   SET is_due = true, wanted = known.wanted + 1, failures = 0,
       due_at = CASE WHEN known.is_due AND known.failures = 0
                     THEN least(known.due_at, statement_timestamp())
                     ELSE statement_timestamp() END
"""
MARK_CHANGED: Final = {
    kind: _MARK.format(found=" UNION ALL ".join(queries)) for kind, (_, queries) in SOURCES.items()
}
MARK_ALL: Final = {
    kind: _MARK.format(
        found=f"SELECT id FROM {table} UNION ALL "  # noqa: S608 - our own names
        f"SELECT source_id FROM bridge_mirrorstate WHERE kind = '{kind.value}'"
    )
    for kind, (table, _) in SOURCES.items()
}
_POSITION: Final = f"""
SELECT position, {MOMENT}, moved_at < statement_timestamp() - make_interval(secs => %(stay)s)
  FROM journal_logconsumer WHERE name = %(name)s FOR UPDATE
"""  # noqa: S608 - a constant
_MOVE: Final = """
UPDATE journal_logconsumer SET position = %(position)s, moved_at = statement_timestamp()
 WHERE name = %(name)s
"""


def register() -> None:
    """Ask that the logs are kept for us; our first step then reads everything."""
    LogConsumer.objects.get_or_create(name=CONSUMER)


def follow() -> int:
    """Mark due what changed since the last step; return how many rows.

    Raises:
        LeaseLost: another process is the bridge now.
    """
    with transaction.atomic(durable=True):
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        position, text, is_old = fetch_row(_POSITION, {"name": CONSUMER, "stay": STAY_SECONDS})
        now = moment_of(text)
        is_anew = not position or is_read_anew(position, now, reader="bridge")
        statements = MARK_ALL if is_anew else MARK_CHANGED
        values: dict[str, Any] = {"is_first": is_anew}  # Any: parameters of statements
        if not is_anew:
            values["since"] = position.split(" ", 1)[0]
        marked = sum(
            execute(statement, {**values, "kind": kind.value})
            for kind, statement in statements.items()
        )
        if marked or is_anew or is_old:
            check_leases()
            execute(_MOVE, {"name": CONSUMER, "position": text})
    if is_anew:
        log.info("mirror_reads_everything", rows=marked)
    return marked
