"""Commitments that hold empty slots of sizes that no flavor has any more (spec commitments, 6.7).

The same question as ``commitments.domain.renewal.outdated_slots``, for many commitments at once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from journal.statements import fetch_rows

# Of groups whose flavors changed size since they are known. One slot may be smaller than every
# flavor: the remainder, which is placed as the smallest one.
OUTDATED: Final = """
SELECT slot.commitment_id
  FROM capacity_reservation AS slot
  JOIN capacity_flavorgroup AS owner ON owner.name = slot.flavor_group_name
  JOIN hosts_flavor AS smallest ON smallest.id = owner.smallest_flavor_id
 WHERE {chosen} AND slot.kind = 'committed' AND NOT slot.is_divided
   AND owner.resized_at IS NOT NULL AND NOT owner.is_retired
   AND slot.target_host_id IS NOT DISTINCT FROM slot.confirmed_host_id
   AND NOT EXISTS (SELECT FROM capacity_reservationallocation AS vm
                    WHERE vm.reservation_id = slot.id)
   AND NOT EXISTS (SELECT FROM capacity_flavorgroupmember AS member
                     JOIN hosts_flavor AS flavor ON flavor.id = member.flavor_id
                    WHERE member.group_id = owner.id AND flavor.name = slot.resource_name
                      AND flavor.memory_bytes = slot.memory_bytes AND flavor.vcpus = slot.vcpus)
 GROUP BY slot.commitment_id
HAVING count(*) > 1
    OR NOT bool_and(slot.resource_name = smallest.name AND slot.vcpus = smallest.vcpus
                    AND slot.memory_bytes < smallest.memory_bytes)
"""


def commitments_with_outdated_slots(commitment_ids: Collection[int]) -> set[int]:
    """Return which of some commitments hold empty slots that the planner would build otherwise."""
    if not commitment_ids:
        return set()
    return {
        row[0]
        for row in fetch_rows(
            OUTDATED.format(chosen="slot.commitment_id = ANY(%s)"), [list(commitment_ids)]
        )
    }
