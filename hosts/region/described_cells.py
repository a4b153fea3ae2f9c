"""NUMA cells of hosts, as their own objects describe them (spec hosts, C.2, D.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from core.chunks import in_chunks
from journal.statements import fetch_rows

#: Hosts of a statement.
_PART: Final = 500
# Of each host that is named, its cells become what is told: of one that tells of none, what was
# told before goes, and what its agent reports counts again.
_KEEP: Final = """
WITH named AS (
    SELECT id, name FROM hosts_host WHERE name = ANY (%(hosts)s)
), cells AS (
    SELECT DISTINCT ON (named.id, told.cell, told.resource)
           named.id AS host_id, told.cell, told.resource, told.capacity, told.effective,
           told.allocated
      FROM unnest(%(names)s::text[], %(cells)s::bigint[], %(resources)s::text[],
                  %(capacities)s::bigint[], %(effective)s::bigint[], %(allocated)s::bigint[])
           AS told (name, cell, resource, capacity, effective, allocated)
      JOIN named ON named.name = told.name
     ORDER BY named.id, told.cell, told.resource
), gone AS (
    DELETE FROM hosts_hostcell AS known USING named
     WHERE known.host_id = named.id
       AND (known.is_described OR EXISTS (SELECT FROM cells WHERE cells.host_id = named.id))
       AND NOT EXISTS (SELECT FROM cells WHERE cells.host_id = known.host_id
                          AND cells.cell = known.cell AND cells.resource = known.resource)
    RETURNING known.host_id
), stored AS (
    INSERT INTO hosts_hostcell AS known
           (host_id, cell, resource, capacity, effective_capacity, allocated, is_described)
    SELECT host_id, cell, resource, capacity, effective, allocated, true FROM cells
        ON CONFLICT (host_id, cell, resource) DO UPDATE
       SET capacity = excluded.capacity, effective_capacity = excluded.effective_capacity,
           allocated = excluded.allocated, is_described = true
     WHERE (known.capacity, known.effective_capacity, known.allocated, known.is_described)
           IS DISTINCT FROM (excluded.capacity, excluded.effective_capacity, excluded.allocated,
                             true)
    RETURNING known.host_id
)
SELECT host_id FROM gone UNION SELECT host_id FROM stored
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedCell:
    """What one NUMA cell has of one resource.

    Attributes:
        resource: ``cpu`` or ``memory``, the latter in bytes.
        effective: What may be promised; None where nothing is said.
    """

    cell: int
    resource: str
    capacity: int
    effective: int | None = None
    allocated: int = 0


def keep_described_cells(told: Mapping[str, Sequence[DescribedCell]]) -> int:
    """Store what objects say of cells, by the name of the host; return how many hosts differed."""
    changed = 0
    for names in in_chunks(sorted(told), _PART):
        rows = [(name, cell) for name in names for cell in told[name]]
        parameters = {
            "hosts": list(names),
            "names": [name for name, _ in rows],
            "cells": [cell.cell for _, cell in rows],
            "resources": [cell.resource for _, cell in rows],
            "capacities": [cell.capacity for _, cell in rows],
            "effective": [cell.effective for _, cell in rows],
            "allocated": [cell.allocated for _, cell in rows],
        }
        changed += len(fetch_rows(_KEEP, parameters))
    return changed
