"""The scheduling host table of this process, refreshed by change (design, "Concurrency").

The first use loads every host; later uses read only rows whose ``changed_xid`` is at or above the
``xmin`` of the last read, and the deletion log. A transaction that has already written reads a
private copy, so that a rollback never leaves its rows in the shared table.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db import connection

from hosts.models import HostState, HostStatus, Maintenance
from scheduling.resources import ResourceVector
from scheduling.table import HostRow, HostTable

SELECT_HOSTS = """
SELECT host.id, host.name, host.zone, host.hypervisor_type, host.traits, host.allowed_projects,
       host.state = %(up)s AND host.status = %(enabled)s AND host.maintenance = ANY(%(harmless)s),
       room.effective_memory_bytes, room.effective_vcpus,
       room.allocated_memory_bytes, room.allocated_vcpus,
       room.committed_memory_bytes, room.committed_vcpus,
       room.failover_memory_bytes, room.failover_vcpus,
       room.in_flight_memory_bytes, room.in_flight_vcpus
  FROM hosts_host AS host JOIN capacity_hostcapacity AS room ON room.host_id = host.id
"""

CHANGED_SINCE = """
 WHERE host.id IN (
       SELECT id FROM hosts_host WHERE changed_xid >= %(xmin)s
        UNION
       SELECT host_id FROM capacity_hostcapacity WHERE changed_xid >= %(xmin)s)
"""

DELETED_SINCE = """
SELECT row_id FROM journal_deletedrow WHERE table_name = 'hosts_host' AND changed_xid >= %s
"""

SNAPSHOT_POSITION = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       pg_current_xact_id_if_assigned() IS NOT NULL
"""

CONDITION_PARAMETERS = {
    "up": HostState.UP.value,
    "enabled": HostStatus.ENABLED.value,
    "harmless": [Maintenance.NONE.value, Maintenance.HA.value],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    table: HostTable
    xmin: int


class HostTableCache:
    """Keeps one :class:`HostTable` per process; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._position: _Position | None = None

    def current(self) -> HostTable:
        """Return a table as of now, including the caller's own uncommitted writes."""
        with self._lock:
            xmin, has_written = _snapshot_position()
            fresh = _refreshed(self._position, xmin)
            if not has_written:
                self._position = fresh
            return fresh.table

    def reset(self) -> None:
        """Forget the table; the next use loads every host."""
        with self._lock:
            self._position = None


_cache = HostTableCache()


def current_host_table() -> HostTable:
    """Return this process's host table, brought up to date."""
    return _cache.current()


def reset_host_table() -> None:
    """Forget this process's host table, as after a truncation in tests."""
    _cache.reset()


def load_host_table() -> HostTable:
    """Return a table built from every host anew: the oracle of the incremental one."""
    return HostTable.from_rows(_read_rows(None))


def _refreshed(position: _Position | None, xmin: int) -> _Position:
    if position is None:
        return _Position(table=HostTable.from_rows(_read_rows(None)), xmin=xmin)
    with connection.cursor() as cursor:
        cursor.execute(DELETED_SINCE, [position.xmin])
        gone = {int(row[0]) for row in cursor.fetchall()}
    changed = _read_rows(position.xmin)
    removed = _removed_names(position.table, gone, changed)
    if not removed and not changed:
        return _Position(table=position.table, xmin=xmin)
    return _Position(table=position.table.replace_rows(changed, removed=removed), xmin=xmin)


def _removed_names(table: HostTable, gone: set[int], changed: Sequence[HostRow]) -> frozenset[str]:
    """Return the names that no host bears any more: of deleted hosts, and of renamed ones."""
    touched = gone | {row.host_id for row in changed}
    if not touched:
        return frozenset()
    rows = np.flatnonzero(np.isin(table.host_ids, np.fromiter(touched, dtype=np.int64)))
    return frozenset(table.names[row] for row in rows) - {row.name for row in changed}


def _snapshot_position() -> tuple[int, bool]:
    with connection.cursor() as cursor:
        cursor.execute(SNAPSHOT_POSITION)
        row = cursor.fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM returns one row
    return int(row[0]), bool(row[1])


def _read_rows(xmin: int | None) -> Sequence[HostRow]:
    parameters: dict[str, Any] = dict(CONDITION_PARAMETERS)  # Any: parameters of several types
    statement = SELECT_HOSTS
    if xmin is not None:
        statement += CHANGED_SINCE
        parameters["xmin"] = xmin
    with connection.cursor() as cursor:
        cursor.execute(statement + " ORDER BY host.id", parameters)
        return [
            HostRow(
                host_id=row[0],
                name=row[1],
                zone=row[2],
                hypervisor_type=row[3],
                traits=row[4],
                allowed_projects=row[5],
                is_ready=row[6],
                effective=ResourceVector(memory_bytes=row[7], vcpus=row[8]),
                allocated=ResourceVector(memory_bytes=row[9], vcpus=row[10]),
                committed=ResourceVector(memory_bytes=row[11], vcpus=row[12]),
                failover=ResourceVector(memory_bytes=row[13], vcpus=row[14]),
                in_flight=ResourceVector(memory_bytes=row[15], vcpus=row[16]),
            )
            for row in cursor.fetchall()
        ]
