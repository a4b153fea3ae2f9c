"""Finding what has drifted in the Placement tables, and repairing it (spec placement, 10.3, 12).

Looking is one statement per kind of finding and takes no lock. Every repair looks again under the
locks that writers take, so that it never undoes what was written meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from capacity.locks import LockSpace, take_lock
from core.chunks import in_chunks
from core.prepared import fetch, run
from hosts.listing import vms_listed_at
from journal.actors import Actor
from journal.errors import HeadroomError
from journal.services import Change as AuditChange
from journal.services import record_changes
from placement.cutover.state import refuse_while_moving
from placement.database import in_transaction
from placement.domain.errors import Conflict, NotFound
from placement.services.allocations import delete_allocations
from placement.services.locking import log_changes
from placement.services.providers import TREES

DROP_GUARD_SHARE: Final = 0.2
DROP_GUARD_ROWS: Final = 5
BATCH_ROWS: Final = 200


class AuditKind(StrEnum):
    """What may be wrong."""

    DRIFT = "drift"
    PROJECT_USAGE = "project_usage"
    EMPTY_CONSUMER = "empty_consumer"
    WRONG_ROOT = "wrong_root"
    LOOP = "loop"
    UNUSED_AGGREGATE = "unused_aggregate"
    ORPHAN = "orphan"
    MISSING = "missing"
    UNKNOWN_TRAIT = "unknown_trait"


#: What makes answers wrong.
BREAKS_ANSWERS: Final = (
    AuditKind.DRIFT,
    AuditKind.WRONG_ROOT,
    AuditKind.LOOP,
    AuditKind.EMPTY_CONSUMER,
)
REPAIRS: Mapping[AuditKind, str] = {
    AuditKind.DRIFT: "used amount is set to the sum of the allocations",
    AuditKind.PROJECT_USAGE: "usage of all projects is summed up anew",
    AuditKind.EMPTY_CONSUMER: "deleted",
    AuditKind.WRONG_ROOT: "root is set to the top of the chain of parents",
    AuditKind.LOOP: "not repaired: give one of the providers another parent",
    AuditKind.UNUSED_AGGREGATE: "deleted",
    AuditKind.ORPHAN: "allocations are given back",
    AuditKind.MISSING: "not repaired: run nova-manage placement heal_allocations for this VM",
    AuditKind.UNKNOWN_TRAIT: "not repaired: create the trait, or correct the flavor",
}


class TooManyOrphansError(HeadroomError):
    """So much would go that the list of VMs is rather incomplete than the allocations orphaned."""

    code = "too_many_orphans"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One thing that is wrong.

    Attributes:
        kind: What kind of thing.
        subject: Uuid of the provider, consumer, aggregate or VM.
        name: Its name, or what it is about.
        detail: The numbers.
        row_id: Row to repair; 0 where there is none.
    """

    kind: AuditKind
    subject: str
    name: str
    detail: str
    row_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLimits:
    """From when on something counts.

    Attributes:
        orphan_hours: Age of a consumer before it is called orphaned.
        aggregate_days: Age of an aggregate without members before it is called unused.
    """

    orphan_hours: int = 24
    aggregate_days: int = 30


DRIFT_SQL = """
SELECT p.uuid::text, p.name, c.name || ' says ' || i.used || ' used, allocations add up to '
       || coalesce(sum(a.used), 0), p.id
  FROM placement_inventory i
  JOIN placement_provider p ON p.id = i.provider_id
  JOIN placement_resource_class c ON c.id = i.resource_class_id
  LEFT JOIN placement_allocation a
    ON a.provider_id = i.provider_id AND a.resource_class_id = i.resource_class_id
 WHERE p.origin <> 'upstream'
 GROUP BY p.id, c.id, i.used
HAVING i.used <> coalesce(sum(a.used), 0)
 ORDER BY p.id, c.id
"""
PROJECT_USAGE_SQL = """
WITH told AS (
    SELECT project_id, user_id, coalesce(type_id, -1) AS type_id,
           coalesce(resource_class_id, -1) AS class_id, sum(used) AS used
      FROM placement_project_usage GROUP BY 1, 2, 3, 4),
held AS (
    SELECT k.project_id, k.user_id, coalesce(k.type_id, -1) AS type_id,
           coalesce(o.resource_class_id, -1) AS class_id,
           CASE WHEN grouping(o.resource_class_id) = 1 THEN count(DISTINCT o.consumer_id)
                ELSE sum(o.used) END AS used
      FROM placement_allocation o JOIN placement_consumer k ON k.id = o.consumer_id
     GROUP BY GROUPING SETS ((k.project_id, k.user_id, k.type_id, o.resource_class_id),
                             (k.project_id, k.user_id, k.type_id)))
SELECT j.external_id, coalesce(c.name, 'consumers'), 'usage says ' || coalesce(t.used, 0)
       || ', allocations add up to ' || coalesce(h.used, 0), j.id
  FROM told t
  FULL JOIN held h ON h.project_id = t.project_id AND h.user_id = t.user_id
                  AND h.type_id = t.type_id AND h.class_id = t.class_id
  JOIN placement_project j ON j.id = coalesce(t.project_id, h.project_id)
  LEFT JOIN placement_resource_class c ON c.id = coalesce(t.class_id, h.class_id)
 WHERE coalesce(t.used, 0) <> coalesce(h.used, 0)
 ORDER BY j.id, 2
"""
EMPTY_CONSUMER_SQL = """
SELECT k.uuid::text, j.external_id, 'generation ' || k.generation, k.id
  FROM placement_consumer k JOIN placement_project j ON j.id = k.project_id
 WHERE NOT EXISTS (SELECT FROM placement_allocation a WHERE a.consumer_id = k.id)
 ORDER BY k.id
"""
# Providers with the root that their chain of parents leads to; those in a loop are not reached.
ROOTS_CTE = """
WITH RECURSIVE reached (id, top) AS (
    SELECT id, id FROM placement_provider WHERE parent_id IS NULL
     UNION ALL
    SELECT p.id, r.top FROM placement_provider p JOIN reached r ON p.parent_id = r.id)
"""
WRONG_ROOT_SQL = f"""
{ROOTS_CTE}
SELECT p.uuid::text, p.name, 'root is ' || stored.name || ', should be ' || right_one.name, p.id
  FROM placement_provider p
  JOIN reached r ON r.id = p.id
  JOIN placement_provider stored ON stored.id = p.root_id
  JOIN placement_provider right_one ON right_one.id = r.top
 WHERE p.root_id <> r.top
 ORDER BY p.id
"""  # noqa: S608 - constants of this module
LOOP_SQL = f"""
{ROOTS_CTE}
SELECT p.uuid::text, p.name, 'its parents never end', 0
  FROM placement_provider p LEFT JOIN reached r ON r.id = p.id
 WHERE r.id IS NULL
 ORDER BY p.id
"""  # noqa: S608 - constants of this module
UNUSED_AGGREGATE_SQL = """
SELECT g.uuid::text, g.name, 'without providers, made ' || g.created_at::date, g.id
  FROM placement_aggregate g
 WHERE NOT EXISTS (SELECT FROM placement_provider_aggregate l WHERE l.aggregate_id = g.id)
   AND g.created_at < now() - make_interval(days => %(aggregate_days)s)
 ORDER BY g.id
"""
# Only consumers on trees of hosts that we know, and only while any VM is known at all. One that
# changed after the VM list was taken cannot be in it.
ORPHAN_SQL = """
SELECT k.uuid::text, j.external_id,
       string_agg(c.name || ' ' || a.used || ' of ' || p.name, ', ' ORDER BY p.name, c.id), k.id
  FROM placement_consumer k
  JOIN placement_project j ON j.id = k.project_id
  LEFT JOIN placement_consumer_type t ON t.id = k.type_id
  JOIN placement_allocation a ON a.consumer_id = k.id
  JOIN placement_provider p ON p.id = a.provider_id
  JOIN placement_provider root ON root.id = p.root_id
  JOIN placement_resource_class c ON c.id = a.resource_class_id
 WHERE coalesce(t.name, 'INSTANCE') = 'INSTANCE'
   AND k.updated_at < least(now() - make_interval(hours => %(orphan_hours)s),
                            %(listed_at)s::timestamptz)
   AND EXISTS (SELECT FROM hosts_instance)
   AND NOT EXISTS (SELECT FROM hosts_instance v
                    WHERE hosts_provider_uuid('', v.openstack_id) = k.uuid)
   AND EXISTS (SELECT FROM hosts_host h
                WHERE hosts_provider_uuid(h.provider_uuid, h.openstack_id) = root.uuid)
 GROUP BY k.id, j.id
 ORDER BY k.id
"""
# A VM whose allocations were given back after the list was taken is gone, whatever the list says.
MISSING_SQL = """
SELECT v.openstack_id, v.name, 'on host ' || h.name || ', which is provider ' || p.uuid, 0
  FROM hosts_instance v
  JOIN hosts_host h ON h.id = v.host_id
  JOIN placement_provider p ON p.uuid = hosts_provider_uuid(h.provider_uuid, h.openstack_id)
   AND p.origin <> 'upstream'
 WHERE NOT EXISTS (SELECT FROM placement_consumer k
                    WHERE k.uuid = hosts_provider_uuid('', v.openstack_id))
   AND NOT EXISTS (SELECT FROM placement_allocation_event e
                    WHERE e.created_at >= %(listed_at)s::timestamptz
                      AND e.consumer_uuid = hosts_provider_uuid('', v.openstack_id))
 ORDER BY v.openstack_id
"""
# Nova asks for the trait with every VM of the flavor, is answered 400, and finds no host.
UNKNOWN_TRAIT_SQL = """
SELECT f.openstack_id, f.name, 'asks for trait ' || asked.trait || ', which nobody created', 0
  FROM hosts_flavor f
 CROSS JOIN LATERAL jsonb_object_keys(f.extra_specs) AS spec (key)
 CROSS JOIN LATERAL (SELECT substring(spec.key FROM '^trait[0-9A-Za-z_-]*:(.*)$')) AS asked (trait)
 WHERE asked.trait IS NOT NULL
   AND NOT EXISTS (SELECT FROM placement_trait t WHERE t.name = asked.trait)
   AND EXISTS (SELECT FROM placement_provider)
 ORDER BY f.name, asked.trait
"""
_QUERIES: Mapping[AuditKind, str] = {
    AuditKind.DRIFT: DRIFT_SQL,
    AuditKind.PROJECT_USAGE: PROJECT_USAGE_SQL,
    AuditKind.EMPTY_CONSUMER: EMPTY_CONSUMER_SQL,
    AuditKind.WRONG_ROOT: WRONG_ROOT_SQL,
    AuditKind.LOOP: LOOP_SQL,
    AuditKind.UNUSED_AGGREGATE: UNUSED_AGGREGATE_SQL,
    AuditKind.ORPHAN: ORPHAN_SQL,
    AuditKind.MISSING: MISSING_SQL,
    AuditKind.UNKNOWN_TRAIT: UNKNOWN_TRAIT_SQL,
}

REBUILD_PROJECT_USAGE = "SELECT placement_rebuild_project_usage()"
LOCK_SQL = """
SELECT id FROM placement_provider WHERE id = ANY (%s) ORDER BY id FOR NO KEY UPDATE
"""
# Writers of allocations hold the provider's lock: what is summed here cannot change meanwhile.
SET_USED_SQL = """
UPDATE placement_inventory i SET used = s.used
  FROM (SELECT n.id, coalesce(sum(a.used), 0) AS used
          FROM placement_inventory n
          LEFT JOIN placement_allocation a
            ON a.provider_id = n.provider_id AND a.resource_class_id = n.resource_class_id
         WHERE n.provider_id = ANY (%s)
         GROUP BY n.id) s
 WHERE i.id = s.id AND i.used <> s.used
RETURNING i.provider_id
"""
ROOTS_OF_SQL = "SELECT DISTINCT root_id FROM placement_provider WHERE id = ANY (%s)"
DELETE_EMPTY_SQL = """
DELETE FROM placement_consumer k
 WHERE k.id = ANY (%s)
   AND NOT EXISTS (SELECT FROM placement_allocation a WHERE a.consumer_id = k.id)
"""
SET_ROOTS_SQL = f"""
{ROOTS_CTE}
UPDATE placement_provider p SET root_id = r.top
  FROM reached r, placement_provider old
 WHERE p.id = r.id AND old.id = p.id AND p.root_id <> r.top
RETURNING p.root_id, old.root_id
"""  # noqa: S608 - constants of this module
DELETE_AGGREGATES_SQL = """
DELETE FROM placement_aggregate g
 WHERE g.id = ANY (%s)
   AND NOT EXISTS (SELECT FROM placement_provider_aggregate l WHERE l.aggregate_id = g.id)
"""
COUNT_CONSUMERS_SQL = "SELECT count(*) FROM placement_consumer"
GENERATIONS_SQL = "SELECT uuid::text, generation FROM placement_consumer WHERE id = ANY (%s)"


def usage_drift() -> tuple[AuditFinding, ...]:
    """Return the inventories whose used amount is not the sum of their allocations.

    One statement, so that a write that is under way is seen whole or not at all.
    """
    return tuple(
        AuditFinding(
            kind=AuditKind.DRIFT, subject=row[0], name=row[1], detail=row[2], row_id=row[3]
        )
        for row in fetch(DRIFT_SQL)
    )


def flavors_with_unknown_traits() -> tuple[AuditFinding, ...]:
    """Return the flavors that ask for a trait that nobody created, a finding for each trait."""
    return tuple(
        AuditFinding(kind=AuditKind.UNKNOWN_TRAIT, subject=row[0], name=row[1], detail=row[2])
        for row in fetch(UNKNOWN_TRAIT_SQL)
    )


def find_problems(limits: AuditLimits | None = None) -> tuple[AuditFinding, ...]:
    """Return everything that is wrong, kind by kind, in order of rows."""
    known = limits or AuditLimits()
    parameters: dict[str, Any] = {  # Any: SQL parameters
        "orphan_hours": known.orphan_hours,
        "aggregate_days": known.aggregate_days,
        "listed_at": vms_listed_at(),
    }
    return tuple(
        AuditFinding(kind=kind, subject=row[0], name=row[1], detail=row[2], row_id=row[3])
        for kind, sql in _QUERIES.items()
        for row in fetch(sql, parameters if "%(" in sql else ())
    )


def repair_problems(
    findings: Sequence[AuditFinding], *, actor: Actor, request_id: str, is_forced: bool = False
) -> Mapping[AuditKind, int]:
    """Repair what can be repaired, each kind in short transactions of its own; return how much.

    Args:
        findings: What :func:`find_problems` returned; what has been repaired since is left alone.
        actor: Who repairs.
        is_forced: Give orphaned allocations back however many they are.

    Raises:
        TooManyOrphansError: more than a fifth of all consumers would go, and at least five; nothing
            was changed.
        WrongPhaseError: orphaned allocations are not given back while a cloud moves; all else, of
            which the other Placement knows nothing, was repaired.
    """
    by_kind: dict[AuditKind, list[AuditFinding]] = {kind: [] for kind in AuditKind}
    for finding in findings:
        by_kind[finding.kind].append(finding)
    if not is_forced:
        _refuse_mass_deletion(by_kind[AuditKind.ORPHAN])
    return {
        AuditKind.DRIFT: _repair_drift(by_kind[AuditKind.DRIFT], actor, request_id),
        AuditKind.PROJECT_USAGE: _repair_project_usage(
            by_kind[AuditKind.PROJECT_USAGE], actor, request_id
        ),
        AuditKind.EMPTY_CONSUMER: _delete(by_kind[AuditKind.EMPTY_CONSUMER], DELETE_EMPTY_SQL),
        AuditKind.WRONG_ROOT: _repair_roots(by_kind[AuditKind.WRONG_ROOT], actor, request_id),
        AuditKind.UNUSED_AGGREGATE: _delete(
            by_kind[AuditKind.UNUSED_AGGREGATE], DELETE_AGGREGATES_SQL
        ),
        AuditKind.ORPHAN: _give_back(by_kind[AuditKind.ORPHAN], actor, request_id),
    }


def _refuse_mass_deletion(orphans: Sequence[AuditFinding]) -> None:
    total = fetch(COUNT_CONSUMERS_SQL)[0][0]
    if len(orphans) >= DROP_GUARD_ROWS and len(orphans) > total * DROP_GUARD_SHARE:
        raise TooManyOrphansError(
            f"{len(orphans)} of {total} consumers would lose their allocations: "
            "check that all VMs were imported, then ask with --force",
            orphans=len(orphans),
            consumers=total,
        )


def _repair_drift(findings: Sequence[AuditFinding], actor: Actor, request_id: str) -> int:
    repaired = 0
    for batch in in_chunks(sorted({finding.row_id for finding in findings}), BATCH_ROWS):

        def write(ids: list[int] = batch) -> int:
            run(LOCK_SQL, [ids])
            changed = [row[0] for row in run(SET_USED_SQL, [ids]).fetchall()]
            if changed:
                roots = [row[0] for row in run(ROOTS_OF_SQL, [changed]).fetchall()]
                log_changes(roots)
                _audit(
                    [each for each in findings if each.row_id in set(changed)], actor, request_id
                )
            return len(changed)

        repaired += in_transaction(write)
    return repaired


def _repair_project_usage(findings: Sequence[AuditFinding], actor: Actor, request_id: str) -> int:
    if not findings:
        return 0

    def write() -> int:
        run(REBUILD_PROJECT_USAGE)
        _audit(findings, actor, request_id)
        return len(findings)

    return in_transaction(write)


def _repair_roots(findings: Sequence[AuditFinding], actor: Actor, request_id: str) -> int:
    if not findings:
        return 0

    def write() -> int:
        take_lock(LockSpace.PROVIDER_TREES, [TREES])
        moved = run(SET_ROOTS_SQL).fetchall()
        log_changes(root for pair in moved for root in pair)
        if moved:
            _audit(findings, actor, request_id)
        return len(moved)

    return in_transaction(write)


def _delete(findings: Sequence[AuditFinding], sql: str) -> int:
    """Delete rows that nobody refers to; a row that found a user meanwhile stays."""
    ids = [finding.row_id for finding in findings]
    deleted = 0
    for batch in in_chunks(ids, BATCH_ROWS):
        deleted += in_transaction(partial(_run_on, sql, batch))
    return deleted


def _run_on(sql: str, ids: list[int]) -> int:
    return run(sql, [ids]).rowcount


def _give_back(findings: Sequence[AuditFinding], actor: Actor, request_id: str) -> int:
    """Delete the allocations of consumers that did not change since they were looked at."""
    ids = [finding.row_id for finding in findings]
    generations = {row[0]: int(row[1]) for row in fetch(GENERATIONS_SQL, [ids])}
    given_back = 0
    for finding in findings:

        def write(one: AuditFinding = finding) -> None:
            refuse_while_moving("giving orphaned allocations back")
            delete_allocations(
                one.subject,
                generation=generations.get(one.subject, -1),
                actor=actor,
                request_id=request_id,
            )
            _audit([one], actor, request_id)

        with suppress(NotFound, Conflict):
            in_transaction(write)
            given_back += 1
    return given_back


_OBJECT_TYPES: Mapping[AuditKind, str] = {
    AuditKind.ORPHAN: "Consumer",
    AuditKind.PROJECT_USAGE: "ConsumerProject",
}


def _audit(findings: Sequence[AuditFinding], actor: Actor, request_id: str) -> None:
    record_changes(
        [
            AuditChange(
                action=f"placement_{finding.kind}_repaired",
                object_type=_OBJECT_TYPES.get(finding.kind, "ResourceProvider"),
                object_id=finding.subject,
                reason=finding.detail,
            )
            for finding in findings
        ],
        actor=actor,
        request_id=request_id,
    )
