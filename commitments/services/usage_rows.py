"""Writing the usage of one project: one statement per kind of write (spec commitments, 14.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from commitments.models import ProjectUsage
from commitments.selectors.usage_reads import SEPARATOR
from journal.statements import execute

DELETE_ASSIGNMENTS = """
DELETE FROM commitments_instanceassignment AS held
 USING unnest(%s::text[], %s::text[]) AS gone (vm_uuid, resource_type)
 WHERE held.vm_uuid = gone.vm_uuid AND held.resource_type = gone.resource_type
   AND held.commitment_id = ANY (%s)
"""

UPSERT_ASSIGNMENTS = """
INSERT INTO commitments_instanceassignment AS held
       (vm_uuid, resource_type, commitment_id, position, created_at, updated_at)
SELECT vm_uuid, resource_type, commitment_id, position, statement_timestamp(), statement_timestamp()
  FROM unnest(string_to_array(%s, chr(31)), string_to_array(%s, chr(31)),
              string_to_array(%s, chr(31))::bigint[], string_to_array(%s, chr(31))::int[])
       AS wanted (vm_uuid, resource_type, commitment_id, position)
    ON CONFLICT (vm_uuid, resource_type) DO UPDATE
   SET commitment_id = excluded.commitment_id, position = excluded.position
 WHERE (held.commitment_id, held.position)
       IS DISTINCT FROM (excluded.commitment_id, excluded.position)
"""

UPDATE_COMMITMENTS = """
UPDATE commitments_commitment AS row
   SET used_memory_bytes = fresh.used_memory_bytes, used_vcpus = fresh.used_vcpus,
       last_usage_reconcile_at = fresh.reconciled_at,
       usage_observed_generation = fresh.generation, status_summary = fresh.summary
  FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::timestamptz[], %s::bigint[], %s::text[])
       AS fresh (id, used_memory_bytes, used_vcpus, reconciled_at, generation, summary)
 WHERE row.id = fresh.id
"""

UPSERT_PROJECT = """
INSERT INTO commitments_projectusage AS row
       (project_id, assigned_vms, uncovered_vms, next_change_at, is_due, written_xid)
VALUES (%(project_id)s, %(assigned_vms)s, %(uncovered_vms)s, %(next_change_at)s, false,
        CASE WHEN %(has_written)s THEN pg_current_xact_id()::text::bigint END)
    ON CONFLICT (project_id) DO UPDATE
   SET assigned_vms = excluded.assigned_vms, uncovered_vms = excluded.uncovered_vms,
       next_change_at = excluded.next_change_at, is_due = false,
       written_xid = coalesce(excluded.written_xid, row.written_xid)
"""

Assignment = tuple[str, str]
"""Server uuid and resource type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedVMs:
    """VMs that a commitment is to cover.

    Attributes:
        commitment_id: Key of the commitment.
        resource_type: Its resource type.
        vm_uuids: Its VMs in order.
    """

    commitment_id: int
    resource_type: str
    vm_uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentUsage:
    """Observed columns of one commitment; memory in bytes."""

    commitment_id: int
    used_memory_bytes: int
    used_vcpus: int
    reconciled_at: datetime | None
    generation: int | None
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFigures:
    """What a project's bookkeeping row is to say."""

    assigned_vms: int = 0
    uncovered_vms: int = 0
    next_change_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChanges:
    """Which assignments have to go, and which to be made or moved.

    Attributes:
        commitment_ids: Commitments whose VMs differ.
        gone: Assignments that end.
        fresh: Assignment -> commitment and position, made or moved.
    """

    commitment_ids: tuple[int, ...]
    gone: tuple[Assignment, ...]
    fresh: Mapping[Assignment, tuple[int, int]]

    @property
    def count(self) -> int:
        """Number of assignments that change."""
        return len(self.gone) + len(self.fresh)


def assignment_changes(
    wanted: Sequence[WantedVMs], stored: Mapping[int, Mapping[str, str]]
) -> AssignmentChanges:
    """Return what has to change; commitments that cover what they should cost one comparison.

    Args:
        wanted: Every commitment that covers or covered VMs.
        stored: Mapping commitment key -> resource type -> uuids in order, joined by SEPARATOR.
    """
    present: dict[Assignment, tuple[int, int]] = {}
    target: dict[Assignment, tuple[int, int]] = {}
    differing: list[int] = []
    for one in wanted:
        key, kind, uuids = one.commitment_id, one.resource_type, one.vm_uuids
        held = stored.get(key, {})
        if held == ({kind: SEPARATOR.join(uuids)} if uuids else {}):
            continue
        differing.append(key)
        for held_kind, joined in held.items():
            for position, uuid in enumerate(joined.split(SEPARATOR)):
                present[uuid, held_kind] = (key, position)
        for position, uuid in enumerate(uuids):
            target[uuid, kind] = (key, position)
    return AssignmentChanges(
        commitment_ids=tuple(differing),
        gone=tuple(assignment for assignment in present if assignment not in target),
        fresh={
            assignment: place
            for assignment, place in target.items()
            if present.get(assignment) != place
        },
    )


def write_assignments(changes: AssignmentChanges) -> None:
    """Make the stored assignments the wanted ones; a VM of another project's past is taken over."""
    if changes.gone:
        uuids, kinds = zip(*changes.gone, strict=True)
        execute(DELETE_ASSIGNMENTS, [list(uuids), list(kinds), list(changes.commitment_ids)])
    if changes.fresh:
        uuids, kinds = zip(*changes.fresh, strict=True)
        owners, positions = zip(*changes.fresh.values(), strict=True)
        # Joined texts take half of the time that lists take to be made into arrays.
        columns = (uuids, kinds, map(str, owners), map(str, positions))
        execute(UPSERT_ASSIGNMENTS, [SEPARATOR.join(column) for column in columns])


def write_commitments(rows: Sequence[CommitmentUsage]) -> None:
    """Write the observed columns of commitments; they are locked already."""
    if not rows:
        return
    execute(
        UPDATE_COMMITMENTS,
        [
            [row.commitment_id for row in rows],
            [row.used_memory_bytes for row in rows],
            [row.used_vcpus for row in rows],
            [row.reconciled_at for row in rows],
            [row.generation for row in rows],
            [row.summary for row in rows],
        ],
    )


def write_project(project_id: str, figures: ProjectFigures, *, has_written: bool) -> None:
    """Bring the bookkeeping row of a project up to date, if anything in it changes.

    Args:
        figures: What it is to say.
        has_written: Whether this transaction changed commitments.
    """
    row = ProjectUsage.objects.filter(project_id=project_id).first()
    present = row and ProjectFigures(
        assigned_vms=row.assigned_vms,
        uncovered_vms=row.uncovered_vms,
        next_change_at=row.next_change_at,
    )
    if row is not None and present == figures and not row.is_due and not has_written:
        return
    execute(
        UPSERT_PROJECT,
        {
            "project_id": project_id,
            "assigned_vms": figures.assigned_vms,
            "uncovered_vms": figures.uncovered_vms,
            "next_change_at": figures.next_change_at,
            "has_written": has_written,
        },
    )
