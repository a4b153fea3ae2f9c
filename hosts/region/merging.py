"""Writing what was staged: rows that are new or differ, in small parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from core.chunks import in_chunks
from hosts.region.registry import registry
from hosts.region.run import ImportRun
from hosts.region.writing import ROWS_PER_PART, settle, write_part
from journal.statements import fetch_rows, fetch_value
from journal.statistics import analyze_grown_tables

VMS_OF_HOSTS: Final = """
SELECT vm.host_id, vm.status, count(*)
  FROM hosts_host AS host JOIN hosts_instance AS vm ON vm.host_id = host.id
 WHERE host.name = ANY(%s)
 GROUP BY vm.host_id, vm.status
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """How staged rows become rows of a table.

    Attributes:
        table: Target table.
        key: Its unique column that identifies a row.
        columns: Compared and written columns, the key among them.
        staged: Where the rows stand; the staging table of ``table`` when empty.
        on_insert: Further columns of new rows, with their SQL values.
        has_generation: The row's ``generation`` grows when it changes.
        host: Column that names the host whose room a row is about; empty for none.
        zone: Column of hosts whose change concerns the planners of both zones; empty for none.
        writing: Called with the keys that are about to be written, in the transaction in which
            they are; None for nothing.
    """

    table: str
    key: str
    columns: Sequence[str]
    staged: str = ""
    on_insert: Mapping[str, str] = field(default_factory=dict)
    has_generation: bool = False
    host: str = ""
    zone: str = ""
    writing: Callable[[list[str]], None] | None = None

    @property
    def source(self) -> str:
        """Table that the rows come from."""
        return self.staged or f"stage_{self.table}"

    @property
    def differs(self) -> str:
        """SQL condition: a row ``i`` of the source is not what ``t`` of the table says."""
        compared = [name for name in self.columns if name != self.key]
        old = ", ".join(f"t.{name}" for name in compared)
        new = ", ".join(f"i.{name}" for name in compared)
        return f"t.{self.key} IS NULL OR ({old}) IS DISTINCT FROM ({new})"


def merge(run: ImportRun, plan: Merge, *, section: str) -> None:
    """Insert new rows, update those that differ, and touch no other.

    Each part locks its rows in the order of their key and settles the rooms of their hosts.

    Args:
        section: Section whose counts grow.
    """
    changed = fetch_rows(_changed_statement(plan))
    counts = run.report.of(section)
    counts.unchanged += fetch_value(f"SELECT count(*) FROM {plan.source}") - len(changed)  # noqa: S608 - names from code
    for rows in in_chunks(changed, ROWS_PER_PART):
        keys = [key for key, *_ in rows]
        moved = {key: (old, new) for key, old, new in rows if old is not None and old != new}
        zones = {zone for both in moved.values() for zone in both}
        work = partial(_merge_part, run, plan, keys, leaving=sorted(moved))
        written = write_part(run, work, zones=zones - {""})
        analyze_grown_tables()
        counts.created += sum(is_new for is_new, _ in written)
        counts.updated += sum(not is_new for is_new, _ in written)
        counts.unchanged += len(keys) - len(written)


def _changed_statement(plan: Merge) -> str:
    zones = f"t.{plan.zone}, i.{plan.zone}" if plan.zone else "NULL, NULL"
    nearby = f"i.{plan.host}, " if plan.host in plan.columns else ""
    return f"""
        SELECT i.{plan.key}, {zones}
          FROM {plan.source} AS i LEFT JOIN {plan.table} AS t ON t.{plan.key} = i.{plan.key}
         WHERE {plan.differs}
         ORDER BY {nearby} i.{plan.key}
    """  # noqa: S608 - names from code


def _merge_part(
    run: ImportRun, plan: Merge, keys: list[str], *, leaving: list[str]
) -> list[tuple[bool, int | None]]:
    """Write the rows of some keys; return of each written one whether it is new, and its host.

    Args:
        leaving: Hosts, by name, that go to another zone with their VMs.
    """
    if leaving and run.live is not None:
        vms = {(host, status): count for host, status, count in fetch_rows(VMS_OF_HOSTS, [leaving])}
        registry.expect_fewer(vms)
    if plan.writing is not None:
        plan.writing(keys)
    before = []
    if plan.host:
        query = f"SELECT DISTINCT {plan.host} FROM {plan.table} WHERE {plan.key} = ANY(%s)"  # noqa: S608 - names from code
        before = fetch_rows(query, [keys])
    written: list[tuple[bool, int | None]] = fetch_rows(_merge_statement(plan), [keys])
    hosts = [host_id for (host_id,) in before] + [host_id for _, host_id in written]
    settle(run, {host_id for host_id in hosts if host_id is not None})
    return written


def _merge_statement(plan: Merge) -> str:
    on_insert = {
        **plan.on_insert,
        "created_at": "statement_timestamp()",
        "updated_at": "statement_timestamp()",
    }
    target = ", ".join([*plan.columns, *on_insert])
    chosen = ", ".join([*(f"i.{name}" for name in plan.columns), *on_insert.values()])
    assignments = [f"{name} = excluded.{name}" for name in plan.columns if name != plan.key]
    if plan.has_generation:
        assignments.append(f"generation = {plan.table}.generation + 1")
    return f"""
        INSERT INTO {plan.table} ({target})
        SELECT {chosen}
          FROM {plan.source} AS i LEFT JOIN {plan.table} AS t ON t.{plan.key} = i.{plan.key}
         WHERE i.{plan.key} = ANY(%s) AND ({plan.differs})
         ORDER BY i.{plan.key}
        ON CONFLICT ({plan.key}) DO UPDATE SET {", ".join(assignments)}
        RETURNING (xmax = 0), {f"{plan.table}.{plan.host}" if plan.host else "NULL"}
    """  # noqa: S608 - names from code
