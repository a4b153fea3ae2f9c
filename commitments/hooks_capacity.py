"""What capacity asks about commitments (spec liquid, 13.5): the filled side of its hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capacity.hooks import ZonePosition
from commitments.models import CommitmentState, ResourceType
from core.changes import changed_rows, has_deletions
from journal.statements import fetch_rows

COMMITTED_SLOTS = """
SELECT unit.flavor_group,
       sum(coalesce(held.accepted_amount, held.requested_amount) / unit.memory_bytes)::bigint
  FROM unnest(%(groups)s::text[], %(unit_bytes)s::bigint[]) AS unit(flavor_group, memory_bytes)
  JOIN commitments_commitment AS held ON held.flavor_group_name = unit.flavor_group
 WHERE held.zone = %(zone)s AND held.resource_type = %(memory)s AND held.state = ANY (%(states)s)
   AND (held.end_time IS NULL OR held.end_time > now())
 GROUP BY unit.flavor_group
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
            "states": [CommitmentState.CONFIRMED.value, CommitmentState.GUARANTEED.value],
        }
        return dict(fetch_rows(COMMITTED_SLOTS, parameters))

    def zones_changed_since(self, positions: Sequence[ZonePosition]) -> set[str]:
        """Return the zones in which a commitment was written or any was removed."""
        parameters: dict[str, Any] = {  # Any: database parameters
            "zones": [position.zone for position in positions],
            "snapshots": [position.snapshot for position in positions],
        }
        return {row[0] for row in fetch_rows(ZONES_CHANGED, parameters)}
