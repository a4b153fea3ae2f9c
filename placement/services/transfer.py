"""Copying another Placement into our tables (spec placement, 10.3, 13).

One transaction: it locks what it will write in the order of every other writer (consumers, tree
lock, providers), looks at what is here, plans, writes in sets, and counts usage anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from capacity.locks import LockSpace, take_lock
from core.prepared import Row, run
from core.sql import load_sql
from journal.actors import Actor
from journal.errors import HeadroomError
from journal.services import Change as AuditChange
from journal.services import record_changes
from placement.cutover.state import refuse_while_moving
from placement.database import in_transaction
from placement.domain.transfer import (
    ConsumerRecord,
    Contents,
    CopyPlan,
    ProviderRecord,
    plan_copy,
)
from placement.models import Change
from placement.models.changes import ALL_ROOTS
from placement.selectors.contents import read_contents
from placement.services.audit import REBUILD_PROJECT_USAGE, SET_ROOTS_SQL, SET_USED_SQL
from placement.services.locking import log_changes
from placement.services.providers import TREES

SHOWN_PROBLEMS: Final = 20

LOCK_CONSUMERS: Final = """
SELECT FROM placement_consumer WHERE uuid = ANY (%s::uuid[]) ORDER BY uuid FOR UPDATE
"""
LOCK_PROVIDERS: Final = """
SELECT id FROM placement_provider WHERE uuid = ANY (%s::uuid[]) OR name = ANY (%s)
 ORDER BY id FOR NO KEY UPDATE
"""
#: Whole trees: all of one is a copy, or nothing is.
OWN_COPIES: Final = """
UPDATE placement_provider SET origin = 'api', updated_at = statement_timestamp()
 WHERE origin = 'upstream'
   AND root_id IN (SELECT root_id FROM placement_provider WHERE uuid = ANY (%s::uuid[]))
RETURNING root_id
"""
NEW_CLASSES: Final = """
INSERT INTO placement_resource_class (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING
"""
NEW_TRAITS: Final = """
INSERT INTO placement_trait (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING
"""
NEW_AGGREGATES: Final = """
INSERT INTO placement_aggregate (uuid) SELECT unnest(%s::uuid[]) ON CONFLICT DO NOTHING
"""
NEW_PROVIDERS: Final = """
INSERT INTO placement_provider (id, uuid, name, generation, parent_id, root_id)
SELECT n.id, n.uuid, n.name, n.generation, q.id, coalesce(q.root_id, n.id)
  FROM (SELECT nextval(pg_get_serial_sequence('placement_provider', 'id')) AS id, g.*
          FROM unnest(%s::uuid[], %s::text[], %s::int[], %s::uuid[])
            AS g (uuid, name, generation, parent)) n
  LEFT JOIN placement_provider q ON q.uuid = n.parent
"""
CHANGE_PROVIDERS: Final = """
UPDATE placement_provider p
   SET name = n.name, parent_id = q.id, updated_at = statement_timestamp(),
       generation = {generation}
  FROM unnest(%s::uuid[], %s::text[], %s::int[], %s::uuid[]) AS n (uuid, name, generation, parent)
  LEFT JOIN placement_provider q ON q.uuid = n.parent
 WHERE p.uuid = n.uuid
"""
SET_INVENTORIES: Final = load_sql("placement", "set_inventories")
DROP_INVENTORIES: Final = """
DELETE FROM placement_inventory i USING placement_provider p, placement_resource_class c
 WHERE p.id = i.provider_id AND c.id = i.resource_class_id AND p.uuid = ANY (%s::uuid[])
   AND (p.uuid, c.name) NOT IN (SELECT * FROM unnest(%s::uuid[], %s::text[]))
   AND NOT EXISTS (SELECT FROM placement_allocation a
                    WHERE a.provider_id = i.provider_id
                      AND a.resource_class_id = i.resource_class_id)
"""
LINK_TRAITS: Final = (
    """
DELETE FROM placement_provider_trait l USING placement_provider p, placement_trait t
 WHERE p.id = l.provider_id AND t.id = l.trait_id AND p.uuid = ANY (%s::uuid[])
   AND (p.uuid, t.name) NOT IN (SELECT * FROM unnest(%s::uuid[], %s::text[]))
""",
    """
INSERT INTO placement_provider_trait (provider_id, trait_id)
SELECT p.id, t.id FROM unnest(%s::uuid[], %s::text[]) AS n (uuid, name)
  JOIN placement_provider p ON p.uuid = n.uuid JOIN placement_trait t ON t.name = n.name
    ON CONFLICT DO NOTHING
""",
)
LINK_AGGREGATES: Final = (
    """
DELETE FROM placement_provider_aggregate l USING placement_provider p, placement_aggregate g
 WHERE p.id = l.provider_id AND g.id = l.aggregate_id AND p.uuid = ANY (%s::uuid[])
   AND (p.uuid, g.uuid) NOT IN (SELECT * FROM unnest(%s::uuid[], %s::uuid[]))
""",
    """
INSERT INTO placement_provider_aggregate (provider_id, aggregate_id)
SELECT p.id, g.id FROM unnest(%s::uuid[], %s::uuid[]) AS n (uuid, aggregate)
  JOIN placement_provider p ON p.uuid = n.uuid JOIN placement_aggregate g ON g.uuid = n.aggregate
    ON CONFLICT DO NOTHING
""",
)
NEW_OWNERS: Final = (
    "INSERT INTO placement_project (external_id) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
    "INSERT INTO placement_user (external_id) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
    "INSERT INTO placement_consumer_type (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
)
SET_CONSUMERS: Final = """
INSERT INTO placement_consumer (uuid, project_id, user_id, type_id, generation)
SELECT n.uuid, j.id, u.id, t.id, {new_generation}
  FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::int[])
    AS n (uuid, project, owner, type, generation)
  JOIN placement_project j ON j.external_id = n.project
  JOIN placement_user u ON u.external_id = n.owner
  LEFT JOIN placement_consumer_type t ON t.name = n.type
    ON CONFLICT (uuid) DO UPDATE
   SET project_id = excluded.project_id, user_id = excluded.user_id, type_id = excluded.type_id,
       generation = {generation},
       updated_at = statement_timestamp()
"""
DROP_ALLOCATIONS: Final = """
DELETE FROM placement_allocation a USING placement_consumer k
 WHERE k.id = a.consumer_id AND k.uuid = ANY (%s::uuid[]) RETURNING a.provider_id
"""
SET_ALLOCATIONS: Final = """
INSERT INTO placement_allocation (consumer_id, provider_id, resource_class_id, used)
SELECT k.id, p.id, c.id, n.used
  FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::bigint[])
    AS n (consumer, provider, class, used)
  JOIN placement_consumer k ON k.uuid = n.consumer
  JOIN placement_provider p ON p.uuid = n.provider
  JOIN placement_resource_class c ON c.name = n.class
RETURNING provider_id
"""
LOG_TOUCHED: Final = """
INSERT INTO placement_change (root_id, kind) SELECT DISTINCT root_id, 2
  FROM placement_provider WHERE id = ANY (%s) OR uuid = ANY (%s::uuid[])
"""
#: No generation falls by an import.
CHANGE_IMPORTED: Final = CHANGE_PROVIDERS.format(
    generation="greatest(p.generation + 1, n.generation)"
)
IMPORT_CONSUMERS: Final = SET_CONSUMERS.format(
    new_generation="greatest(n.generation, 1)",
    generation="greatest(placement_consumer.generation + 1, excluded.generation)",
)


class CannotCopyError(HeadroomError):
    """The source contradicts itself, or what is here."""

    code = "cannot_copy_placement"


def plan_import(source: Contents) -> CopyPlan:
    """Return what an import would write now; nothing is locked or changed.

    Copies that a cut-over left count as what is here: their trees become ours.
    """
    return plan_copy(source, read_contents(with_copies=True))


def import_contents(source: Contents, *, actor: Actor, request_id: str) -> CopyPlan:
    """Write what another Placement holds into our tables, all or nothing; return what was written.

    What exists here and not there stays, copies as copies. Generations never fall, so that what
    clients know of either side is not mistaken for current.

    Args:
        source: What the other holds.

    Raises:
        CannotCopyError: the source cannot be copied; nothing was changed.
        WrongPhaseError: a cloud moves; likewise.
        Busy: the rows were locked for too long.
    """

    def write() -> CopyPlan:
        refuse_while_moving("an import")
        run(LOCK_CONSUMERS, [sorted(source.consumers)])
        take_lock(LockSpace.PROVIDER_TREES, [TREES])
        names = sorted(record.name for record in source.providers.values())
        run(LOCK_PROVIDERS, [sorted(source.providers), names])
        plan = plan_import(source)
        refuse_problems(plan)
        roots = [row[0] for row in run(OWN_COPIES, [_uuids_here(source, plan)]).fetchall()]
        log_changes(set(roots))
        if not plan.is_empty:
            _apply(plan)
        if roots or not plan.is_empty:
            entry = AuditChange(
                action="placement_imported",
                object_type="Placement",
                object_id="placement",
                after=plan.counts | {"copies": len(roots)},
            )
            record_changes([entry], actor=actor, request_id=request_id)
        return plan

    return in_transaction(write)


def _uuids_here(source: Contents, plan: CopyPlan) -> list[str]:
    return sorted({plan.renamed.get(uuid, uuid) for uuid in source.providers})


def refuse_problems(plan: CopyPlan) -> None:
    """Raise when a plan cannot be carried out.

    Raises:
        CannotCopyError: with the first problems in words.
    """
    if plan.problems:
        shown = "; ".join(plan.problems[:SHOWN_PROBLEMS])
        more = len(plan.problems) - SHOWN_PROBLEMS
        message = shown + (f"; and {more} more" if more > 0 else "")
        raise CannotCopyError(message, problems=len(plan.problems))


def _apply(plan: CopyPlan) -> None:
    run(NEW_CLASSES, [list(plan.new_classes)])
    run(NEW_TRAITS, [list(plan.new_traits)])
    for level in levels_of(plan.new_providers):
        run(NEW_PROVIDERS, provider_columns(level))
    if plan.changed_providers:
        run(CHANGE_IMPORTED, provider_columns(plan.changed_providers))
        run(SET_ROOTS_SQL)
    providers = (*plan.new_providers, *plan.changed_providers)
    touched = {row[0] for row in _drop_allocations(plan.changed_consumers)}
    write_parts(providers)
    touched |= {row[0] for row in _write_consumers(plan.changed_consumers)}
    run(SET_USED_SQL, [sorted(touched)])
    run(REBUILD_PROJECT_USAGE)
    log_changes([ALL_ROOTS], Change.Kind.NAMES)
    run(LOG_TOUCHED, [sorted(touched), [record.uuid for record in providers]])


def levels_of(providers: Sequence[ProviderRecord]) -> list[list[ProviderRecord]]:
    """Split providers, parents first, into runs in which none is the parent of another."""
    levels: list[list[ProviderRecord]] = []
    level_of: dict[str, int] = {}
    for record in providers:
        level = level_of.get(record.parent, -1) + 1
        level_of[record.uuid] = level
        if level == len(levels):
            levels.append([])
        levels[level].append(record)
    return levels


def provider_columns(providers: Sequence[ProviderRecord]) -> list[list[str | int | None]]:
    """Return uuids, names, generations and parents of providers."""
    return [
        [record.uuid for record in providers],
        [record.name for record in providers],
        [record.generation for record in providers],
        [record.parent or None for record in providers],
    ]


def write_parts(providers: Sequence[ProviderRecord]) -> None:
    """Write inventories, traits and aggregates of providers, and remove what they have no more."""
    uuids = [record.uuid for record in providers]
    rows = [
        (record.uuid, name, fields)
        for record in providers
        for name, fields in sorted(record.inventories.items())
    ]
    holders, names = [row[0] for row in rows], [row[1] for row in rows]
    amounts = [
        [getattr(fields, column) for _, _, fields in rows]
        for column in ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")
    ]
    run(SET_INVENTORIES, [holders, names, *amounts])
    run(DROP_INVENTORIES, [uuids, holders, names])
    aggregates = sorted({uuid for record in providers for uuid in record.aggregates})
    run(NEW_AGGREGATES, [aggregates])
    for statements, kind in ((LINK_TRAITS, "traits"), (LINK_AGGREGATES, "aggregates")):
        pairs = [
            (record.uuid, name) for record in providers for name in sorted(getattr(record, kind))
        ]
        columns = [[pair[0] for pair in pairs], [pair[1] for pair in pairs]]
        run(statements[0], [uuids, *columns])
        run(statements[1], columns)


def _drop_allocations(consumers: Sequence[ConsumerRecord]) -> list[Row]:
    return run(DROP_ALLOCATIONS, [[record.uuid for record in consumers]]).fetchall()


def _write_consumers(consumers: Sequence[ConsumerRecord]) -> list[Row]:
    write_consumer_rows(consumers, IMPORT_CONSUMERS)
    return run(SET_ALLOCATIONS, columns_of(held_rows(consumers), 4)).fetchall()


def write_consumer_rows(consumers: Sequence[ConsumerRecord], statement: str) -> None:
    """Write consumers by a statement that takes their columns, after whom and what they name."""
    owners = (
        sorted({record.project for record in consumers}),
        sorted({record.user for record in consumers}),
        sorted({record.type_name for record in consumers if record.type_name}),
    )
    for new_owners, names in zip(NEW_OWNERS, owners, strict=True):
        run(new_owners, [names])
    columns: list[list[str | int | None]] = [
        [record.uuid for record in consumers],
        [record.project for record in consumers],
        [record.user for record in consumers],
        [record.type_name or None for record in consumers],
        [record.generation for record in consumers],
    ]
    run(statement, columns)


def held_rows(consumers: Sequence[ConsumerRecord]) -> list[tuple[str, str, str, int]]:
    """Return consumer, provider, resource class and amount of all that consumers hold."""
    return [
        (record.uuid, provider, name, used)
        for record in consumers
        for provider, amounts in sorted(record.allocations.items())
        for name, used in sorted(amounts.items())
    ]


def columns_of(rows: Iterable[tuple[object, ...]], count: int) -> list[list[object]]:
    """Return the first columns of rows, as statements take them; empty ones of no rows."""
    return [list(part) for part in zip(*rows, strict=True)][:count] or [[] for _ in range(count)]
