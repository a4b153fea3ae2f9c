"""Writing copies: exactly what the other Placement holds, with its generations (docs/gateway.md).

Copies have the origin ``upstream`` until the switch. What a copy needs and is not here yet, a
parent or an inventory, is noted as due, and so is what waits for it: nothing is stored halfway.

While each side answers for its own trees, copies leave alone what is ours: our trees, and consumers
that hold something of them. Only what is read back behind a fence is stored there as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from django.db import transaction

from capacity.locks import LockSpace, take_lock
from core.prepared import run
from journal.errors import HeadroomError
from placement.cutover.standing import lock_consumers
from placement.cutover.state import PARTED, copied_into
from placement.database import in_transaction
from placement.domain.transfer import ConsumerRecord, ProviderRecord
from placement.models import Change, CopyDue
from placement.models.changes import ALL_ROOTS
from placement.services.audit import SET_ROOTS_SQL, SET_USED_SQL
from placement.services.locking import log_changes
from placement.services.providers import TREES
from placement.services.transfer import (
    CHANGE_PROVIDERS,
    DROP_ALLOCATIONS,
    LOCK_CONSUMERS,
    LOG_TOUCHED,
    NEW_CLASSES,
    NEW_TRAITS,
    SET_ALLOCATIONS,
    SET_CONSUMERS,
    columns_of,
    held_rows,
    levels_of,
    provider_columns,
    write_consumer_rows,
    write_parts,
)

NO_UUID: Final = "00000000-0000-0000-0000-000000000000"
KNOWN: Final = "SELECT uuid::text FROM placement_provider WHERE uuid = ANY (%s::uuid[])"
OURS: Final = """
SELECT uuid::text, name FROM placement_provider
 WHERE (uuid = ANY (%s::uuid[]) OR name = ANY (%s::text[])) AND origin <> 'upstream' LIMIT 5
"""
PARK_NAMES: Final = """
UPDATE placement_provider p SET name = p.uuid::text
  FROM unnest(%s::uuid[], %s::text[]) AS n (uuid, name)
 WHERE p.name = n.name AND p.uuid <> n.uuid AND p.origin = 'upstream' RETURNING p.uuid::text
"""
NEW_COPIES: Final = """
INSERT INTO placement_provider (id, uuid, name, generation, parent_id, root_id, origin)
SELECT n.id, n.uuid, n.name, n.generation, q.id, coalesce(q.root_id, n.id),
       coalesce(q.origin, 'upstream')
  FROM (SELECT nextval(pg_get_serial_sequence('placement_provider', 'id')) AS id, g.*
          FROM unnest(%s::uuid[], %s::text[], %s::int[], %s::uuid[])
            AS g (uuid, name, generation, parent)) n
  LEFT JOIN placement_provider q ON q.uuid = n.parent
"""
CHANGE_COPIES: Final = CHANGE_PROVIDERS.format(generation="n.generation")
SET_GENERATIONS: Final = """
UPDATE placement_provider p SET generation = n.generation, updated_at = statement_timestamp()
  FROM unnest(%s::uuid[], %s::int[]) AS n (uuid, generation)
 WHERE p.uuid = n.uuid AND p.generation <> n.generation
"""
#: Inventories that the other side has no more, which consumers hold here.
LEFT_OVER: Final = """
SELECT DISTINCT p.uuid::text, k.uuid::text
  FROM placement_inventory i
  JOIN placement_provider p ON p.id = i.provider_id
  JOIN placement_resource_class c ON c.id = i.resource_class_id
  JOIN placement_allocation a
    ON a.provider_id = i.provider_id AND a.resource_class_id = i.resource_class_id
  JOIN placement_consumer k ON k.id = a.consumer_id
 WHERE p.uuid = ANY (%s::uuid[])
   AND (p.uuid, c.name) NOT IN (SELECT * FROM unnest(%s::uuid[], %s::text[]))
"""
NEEDED_BY_GONE: Final = """
SELECT p.uuid::text, k.uuid::text, child.uuid::text
  FROM placement_provider p
  LEFT JOIN placement_allocation a ON a.provider_id = p.id
  LEFT JOIN placement_consumer k ON k.id = a.consumer_id
  LEFT JOIN placement_provider child ON child.parent_id = p.id
 WHERE p.uuid = ANY (%s::uuid[]) AND (k.id IS NOT NULL OR child.id IS NOT NULL)
"""
DROP_COPIES: Final = (
    """
DELETE FROM placement_provider_trait l USING placement_provider p
 WHERE p.id = l.provider_id AND p.uuid = ANY (%s::uuid[])
""",
    """
DELETE FROM placement_provider_aggregate l USING placement_provider p
 WHERE p.id = l.provider_id AND p.uuid = ANY (%s::uuid[])
""",
    """
DELETE FROM placement_inventory l USING placement_provider p
 WHERE p.id = l.provider_id AND p.uuid = ANY (%s::uuid[])
""",
    "DELETE FROM placement_provider WHERE uuid = ANY (%s::uuid[])",
)
WITHOUT_INVENTORY: Final = """
SELECT DISTINCT n.consumer::text, n.provider::text
  FROM unnest(%s::uuid[], %s::uuid[], %s::text[]) AS n (consumer, provider, class)
  LEFT JOIN placement_provider p ON p.uuid = n.provider
  LEFT JOIN placement_resource_class c ON c.name = n.class
  LEFT JOIN placement_inventory i ON i.provider_id = p.id AND i.resource_class_id = c.id
 WHERE i.id IS NULL
"""
COUNT_USAGE: Final = """
INSERT INTO placement_project_usage (project_id, user_id, type_id, resource_class_id, used)
SELECT k.project_id, k.user_id, k.type_id, o.resource_class_id, %s::int * CASE
       WHEN grouping(o.resource_class_id) = 1 THEN count(DISTINCT o.consumer_id)
       ELSE sum(o.used) END
  FROM placement_allocation o JOIN placement_consumer k ON k.id = o.consumer_id
 WHERE k.uuid = ANY (%s::uuid[])
 GROUP BY GROUPING SETS ((k.project_id, k.user_id, k.type_id, o.resource_class_id),
                         (k.project_id, k.user_id, k.type_id))
"""
SET_COPIED_CONSUMERS: Final = SET_CONSUMERS.format(
    new_generation="n.generation", generation="excluded.generation"
)
DROP_CONSUMERS: Final = "DELETE FROM placement_consumer WHERE uuid = ANY (%s::uuid[])"
DROP_NAMES: Final = (
    """
DELETE FROM placement_trait t
 WHERE starts_with(t.name, 'CUSTOM_') AND t.name <> ALL (%s::text[])
   AND NOT EXISTS (SELECT FROM placement_provider_trait l WHERE l.trait_id = t.id)
""",
    """
DELETE FROM placement_resource_class c
 WHERE starts_with(c.name, 'CUSTOM_') AND c.name <> ALL (%s::text[])
   AND NOT EXISTS (SELECT FROM placement_inventory i WHERE i.resource_class_id = c.id)
""",
)
ADD_DUE: Final = """
INSERT INTO placement_copy_due (kind, uuid) SELECT * FROM unnest(%s::text[], %s::uuid[])
    ON CONFLICT DO NOTHING
"""
CLEAR_DUE: Final = """
DELETE FROM placement_copy_due d USING unnest(%s::text[], %s::uuid[]) AS n (kind, uuid)
 WHERE d.kind = n.kind AND d.uuid = n.uuid
"""
#: Of some consumers those that hold something of ours, and providers of ours.
OUR_CONSUMERS: Final = """
SELECT DISTINCT k.uuid::text FROM placement_consumer k
  JOIN placement_allocation a ON a.consumer_id = k.id
  JOIN placement_provider p ON p.id = a.provider_id
 WHERE k.uuid = ANY (%s::uuid[]) AND p.origin <> 'upstream'
"""
OUR_PROVIDERS: Final = """
SELECT uuid::text FROM placement_provider WHERE uuid = ANY (%s::uuid[]) AND origin <> 'upstream'
"""
#: Consumers of which what is read over there is old by what we have written since.
AHEAD: Final = """
SELECT unnest(consumers)::text FROM placement_mirrored_write WHERE consumers && %s::uuid[]
 UNION
SELECT unnest(consumers)::text FROM placement_write_fence WHERE consumers && %s::uuid[]
"""
LOWER: Final = "DELETE FROM placement_write_fence WHERE id = %s RETURNING roots"

Due = tuple[str, str]
"""A kind of :class:`placement.models.CopyDue`, and a UUID."""


class CopyingEndedError(HeadroomError):
    """The other Placement is not the truth any more: nothing may be copied from it."""

    code = "placement_copying_ended"


class NotACopyError(HeadroomError):
    """A provider of our own is in the way of a copy."""

    code = "placement_cutover_taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What was read of the other Placement, to be stored together.

    Attributes:
        names: Classes and traits, where they were read.
        done: What is not due any more once this is stored.
        due: What is due because of what was read.
        fence: Number of the fence behind which it was read, 0 if it was not.
    """

    names: tuple[frozenset[str], frozenset[str]] | None = None
    generations: Mapping[str, int] = field(default_factory=dict)
    providers: Sequence[ProviderRecord] = ()
    gone_providers: Collection[str] = ()
    consumers: Sequence[ConsumerRecord] = ()
    gone_consumers: Collection[str] = ()
    done: Collection[Due] = ()
    due: Collection[Due] = ()
    fence: int = 0


@dataclass(slots=True)
class _Later:
    """What cannot be stored yet, and what waits for our own writes to arrive over there."""

    due: set[Due] = field(default_factory=set)
    quietly: set[Due] = field(default_factory=set)

    def provider(self, uuid: str) -> None:
        self.due.add((CopyDue.Kind.PROVIDER, uuid))

    def consumer(self, uuid: str) -> None:
        self.due.add((CopyDue.Kind.CONSUMER, uuid))


def store(given: Slice) -> set[Due]:
    """Store a slice, all or nothing; return what of it could not be stored yet.

    Of one that was read behind a fence nothing is stored if that is not all of it.

    Locks consumers by uuid, the trees, then providers.

    Raises:
        CopyingEndedError: writes go to us by now.
        NotACopyError: a provider of our own has a name or UUID of one of them.
    """

    def write() -> set[Due]:
        phase = copied_into()
        if phase is None:
            raise CopyingEndedError("the other Placement is not the truth any more")
        later = _Later()
        lock_consumers(_consumers_of(given))
        if given.fence:
            fenced = run(LOWER, [given.fence]).fetchall()
            if not fenced:
                return set()  # somebody else brought it to its end
            log_changes(root for root in fenced[0][0] if root != ALL_ROOTS)
        part = given if given.fence or phase not in PARTED else _without_ours(given, later)
        consumers = _consumers_of(part)
        run(LOCK_CONSUMERS, [sorted(consumers)])
        take_lock(LockSpace.PROVIDER_TREES, [TREES])
        if not given.fence:
            _refuse_ours(part.providers)
        if part.names is not None:
            run(NEW_CLASSES, [sorted(part.names[0])])
            run(NEW_TRAITS, [sorted(part.names[1])])
        run(COUNT_USAGE, [-1, sorted(consumers)])
        touched = {row[0] for row in run(DROP_ALLOCATIONS, [sorted(consumers)]).fetchall()}
        run(SET_GENERATIONS, [list(part.generations), list(part.generations.values())])
        _write_providers(part.providers, later)
        touched |= _write_consumers(part.consumers, later)
        run(COUNT_USAGE, [1, sorted(consumers)])
        _drop_consumers(part)
        _drop_providers(part.gone_providers, later)
        run(SET_USED_SQL, [sorted(touched)])
        if part.names is not None and (given.fence or phase not in PARTED):
            run(DROP_NAMES[0], [sorted(part.names[1])])
            run(DROP_NAMES[1], [sorted(part.names[0])])
        if part.names is not None or part.providers or part.gone_providers:
            log_changes([ALL_ROOTS], Change.Kind.NAMES)
        run(LOG_TOUCHED, [sorted(touched), [record.uuid for record in part.providers]])
        if given.fence and later.due:
            transaction.set_rollback(True)
            return later.due
        run(CLEAR_DUE, _columns(part.done))
        run(ADD_DUE, _columns(later.due | later.quietly | set(part.due)))
        return later.due

    return in_transaction(write)


def _columns(due: Iterable[Due]) -> list[list[str]]:
    ordered = sorted((str(kind), uuid) for kind, uuid in due)
    return [[row[0] for row in ordered], [row[1] for row in ordered]]


def _consumers_of(part: Slice) -> set[str]:
    return {record.uuid for record in part.consumers} | set(part.gone_consumers)


def _without_ours(part: Slice, later: _Later) -> Slice:
    """Return a slice without what is ours: we know it better than whom it was read from."""
    consumers = _consumers_of(part)
    ours = {row[0] for row in run(OUR_CONSUMERS, [sorted(consumers)]).fetchall()}
    named = {record.uuid for record in part.providers} | set(part.gone_providers)
    named |= {*part.generations, *(one for each in part.consumers for one in each.allocations)}
    taken = {row[0] for row in run(OUR_PROVIDERS, [sorted(named)]).fetchall()}
    old = {record.uuid for record in part.consumers if not taken.isdisjoint(record.allocations)}
    old -= ours
    if old:
        ahead = {row[0] for row in run(AHEAD, [sorted(old), sorted(old)]).fetchall()}
        later.quietly |= {(str(CopyDue.Kind.CONSUMER), uuid) for uuid in old & ahead}
        for uuid in old - ahead:
            later.consumer(uuid)
    return replace(
        part,
        generations={uuid: one for uuid, one in part.generations.items() if uuid not in taken},
        providers=[record for record in part.providers if record.uuid not in taken],
        gone_providers=[uuid for uuid in part.gone_providers if uuid not in taken],
        consumers=[record for record in part.consumers if record.uuid not in ours | old],
        gone_consumers=[uuid for uuid in part.gone_consumers if uuid not in ours],
    )


def _refuse_ours(providers: Sequence[ProviderRecord]) -> None:
    uuids, names = [row.uuid for row in providers], [row.name for row in providers]
    taken = run(OURS, [uuids, names]).fetchall()
    if taken:
        told = ", ".join(f"{name} ({uuid})" for uuid, name in taken)
        raise NotACopyError(f"providers of our own are in the way of copies: {told}")


def _write_providers(providers: Sequence[ProviderRecord], later: _Later) -> None:
    """Write providers whose parents are here or come along; note the others."""
    parents = {record.parent for record in providers if record.parent}
    uuids = {record.uuid for record in providers}
    known = {row[0] for row in run(KNOWN, [sorted(uuids | parents)]).fetchall()}
    ready: list[ProviderRecord] = []
    waiting = list(providers)
    placed = set(known)
    while True:
        able = [record for record in waiting if not record.parent or record.parent in placed]
        if not able:
            break
        ready += able
        placed |= {record.uuid for record in able}
        waiting = [record for record in waiting if record.uuid not in placed or record in able]
        waiting = [record for record in waiting if record not in able]
    for record in waiting:
        later.provider(record.uuid)
        later.provider(record.parent)
    columns = [[record.uuid for record in ready], [record.name for record in ready]]
    for row in run(PARK_NAMES, columns).fetchall():
        later.provider(row[0])
    for level in levels_of([record for record in ready if record.uuid not in known]):
        run(NEW_COPIES, provider_columns(level))
    run(CHANGE_COPIES, provider_columns([record for record in ready if record.uuid in known]))
    run(SET_ROOTS_SQL)
    run(NEW_CLASSES, [sorted({name for record in ready for name in record.inventories})])
    run(NEW_TRAITS, [sorted({name for record in ready for name in record.traits})])
    write_parts(ready)
    rows = [(record.uuid, name) for record in ready for name in record.inventories]
    held = [[record.uuid for record in ready], [row[0] for row in rows], [row[1] for row in rows]]
    for provider, consumer in run(LEFT_OVER, held).fetchall():
        later.provider(provider)
        later.consumer(consumer)


def _write_consumers(consumers: Sequence[ConsumerRecord], later: _Later) -> set[int]:
    """Write consumers of which all inventories are here, note the others; return providers' ids."""
    held = held_rows(consumers)
    lacking = run(WITHOUT_INVENTORY, columns_of(held, 3)).fetchall()
    late = {row[0] for row in lacking}
    for consumer, provider in lacking:
        later.consumer(consumer)
        later.provider(provider)
    ready = [record for record in consumers if record.uuid not in late]
    run(DROP_CONSUMERS, [sorted(late)])
    write_consumer_rows(ready, SET_COPIED_CONSUMERS)
    rows = [row for row in held if row[0] not in late]
    return {row[0] for row in run(SET_ALLOCATIONS, columns_of(rows, 4)).fetchall()}


def _drop_consumers(part: Slice) -> None:
    run(DROP_CONSUMERS, [sorted(part.gone_consumers)])


def _drop_providers(gone: Collection[str], later: _Later) -> None:
    """Drop providers that are gone over there, but those that something here still needs."""
    needed = run(NEEDED_BY_GONE, [sorted(gone)]).fetchall()
    for provider, consumer, child in needed:
        later.provider(provider)
        if consumer:
            later.consumer(consumer)
        if child:
            later.provider(child)
    free = sorted(set(gone) - {row[0] for row in needed})
    for statement in DROP_COPIES:
        run(statement, [free])
