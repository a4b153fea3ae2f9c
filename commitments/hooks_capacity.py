"""What capacity asks and tells commitments (spec liquid, 13.5): the filled side of its hooks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from capacity.hooks import ReleasedReservation, ZonePosition
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.services.nudges import nudge_owners
from core.changes import changed_rows, has_deletions
from journal.clock import database_now
from journal.statements import fetch_rows, fetch_value
from scheduling.resources import ResourceVector

COMMITTED_SLOTS = """
SELECT unit.flavor_group,
       sum(coalesce(held.accepted_amount, held.requested_amount) / unit.memory_bytes)::bigint
  FROM unnest(%(groups)s::text[], %(unit_bytes)s::bigint[]) AS unit(flavor_group, memory_bytes)
  JOIN commitments_commitment AS held ON held.flavor_group_name = unit.flavor_group
 WHERE held.zone = %(zone)s AND held.resource_type = %(memory)s AND held.state = ANY (%(states)s)
   AND (held.end_time IS NULL OR held.end_time > now())
 GROUP BY unit.flavor_group
"""

COVERED = """
SELECT flavor_group_name, sum(used_memory_bytes)::bigint, sum(used_vcpus)::bigint
  FROM commitments_commitment
 WHERE zone = %(zone)s AND resource_type = %(memory)s
   AND (used_memory_bytes > 0 OR used_vcpus > 0) AND (end_time IS NULL OR end_time > now())
 GROUP BY flavor_group_name
"""

ZONES_CHANGED = f"""
SELECT done.zone
  FROM unnest(%(zones)s::text[], %(snapshots)s::text[]) AS done(zone, snapshot)
 WHERE EXISTS (
       SELECT FROM {changed_rows("commitments_commitment", "held", since="done.snapshot")}
        WHERE held.zone = done.zone)
    OR {has_deletions("commitments_commitment", since="done.snapshot")}
"""  # noqa: S608 - constants only


class CommittedMemory:
    """Reads commitments for the capacity of flavor groups."""

    def committed_slots(self, zone: str, unit_bytes: Mapping[str, int]) -> Mapping[str, int]:
        """Return what confirmed and guaranteed memory commitments hold, in smallest flavors.

        The accepted amount counts if there is one, else the requested one; floor per commitment.
        Commitments past their end do not count.
        """
        groups = sorted(unit_bytes)
        parameters: dict[str, Any] = {  # Any: database parameters
            "groups": groups,
            "unit_bytes": [unit_bytes[group] for group in groups],
            "zone": zone,
            "memory": ResourceType.MEMORY.value,
            "states": [CommitmentStatus.CONFIRMED.value, CommitmentStatus.GUARANTEED.value],
        }
        return dict(fetch_rows(COMMITTED_SLOTS, parameters))

    def covered(self, zone: str) -> Mapping[str, ResourceVector]:
        """Return what VMs in memory commitments take, as the last usage run counted them."""
        parameters: dict[str, Any] = {"zone": zone, "memory": ResourceType.MEMORY.value}
        return {
            group: ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
            for group, memory_bytes, vcpus in fetch_rows(COVERED, parameters)
        }

    def zones_changed_since(self, positions: Sequence[ZonePosition]) -> set[str]:
        """Return the zones in which a commitment was written or any was removed."""
        if not positions:
            return set()
        parameters: dict[str, Any] = {  # Any: database parameters
            "zones": [position.zone for position in positions],
            "snapshots": [position.snapshot for position in positions],
        }
        return {row[0] for row in fetch_rows(ZONES_CHANGED, parameters)}


def repair_soon(released: Sequence[ReleasedReservation], now: datetime) -> None:
    """Make the commitments of released slots due for repair. Locks them by primary key."""
    nudge_owners([one.reservation_id for one in released if one.commitment_id is not None], now)


EVERY_OTHER_GROUP = "*"

# Limes keeps a commitment one month after its end and six months after its deletion.
KEPT_BY_LIMES = timedelta(days=190)

BROKEN_AMOUNTS = """
SELECT count(DISTINCT uuid) FROM (
    SELECT commitment_uuid AS uuid, flavor_group_name AS flavor_group, requested_amount AS amount
      FROM commitments_commitment
     WHERE resource_type = %(memory)s
     UNION ALL
    SELECT commitment_uuid, before->>'flavorGroupName', (before->>'amount')::bigint
      FROM commitments_commitmentevent
     WHERE after IS NULL AND before->>'resourceType' = %(memory)s AND created_at > %(kept_since)s
) AS known
WHERE amount %% %(unit_bytes)s <> 0
  AND CASE WHEN %(is_every_other)s THEN NOT flavor_group = ANY(%(excepted)s)
           ELSE flavor_group = %(group_name)s END
"""


def count_broken_amounts(group_name: str, excepted: Collection[str], unit_bytes: int) -> int:
    """Return how many commitments of memory are no multiple of a unit.

    Ended ones count, and those whose rows are gone as long as Limes keeps them.

    Args:
        group_name: Flavor group, or ``*`` for all but ``excepted``.
        excepted: Groups with a unit of their own.
        unit_bytes: Bytes of the unit.
    """
    found: int = fetch_value(
        BROKEN_AMOUNTS,
        {
            "memory": ResourceType.MEMORY.value,
            "kept_since": database_now() - KEPT_BY_LIMES,
            "unit_bytes": unit_bytes,
            "is_every_other": group_name == EVERY_OTHER_GROUP,
            "excepted": list(excepted),
            "group_name": group_name,
        },
    )
    return found
