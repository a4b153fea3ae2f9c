"""What a declared RAM unit must divide (spec liquid, 12.2)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from commitments.models import ResourceType
from journal.clock import database_now
from journal.statements import fetch_value

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
