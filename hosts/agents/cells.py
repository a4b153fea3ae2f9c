"""NUMA cells of hosts, taken from reports of their agents (spec hosts, A.14, D.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hosts.agents.cell_models import CellResource, HostCell
from hosts.agents.models import AgentMode, HostAgent
from hosts.domain.capacity import ONE
from hosts.models.hosts import Host

#: After a CTE ``kept`` with the name of the host, if the report is newer than what is kept. A cell
#: that is told twice counts once.
STORE_CELLS: Final = """
ours AS (
    SELECT host.id FROM kept JOIN hosts_host AS host ON host.name = kept.host_name
     WHERE NOT EXISTS (SELECT FROM hosts_hostcell AS told
                        WHERE told.host_id = host.id AND told.is_described)
), cells AS (
    SELECT DISTINCT ON (host.id, told.cell, told.resource)
           host.id AS host_id, told.cell, told.resource, told.capacity, told.allocated
      FROM ours AS host
     CROSS JOIN unnest(%(cells)s::bigint[], %(cell_resources)s::text[],
                       %(cell_capacities)s::bigint[], %(cell_allocated)s::bigint[])
           AS told (cell, resource, capacity, allocated)
     ORDER BY host.id, told.cell, told.resource
), gone AS (
    DELETE FROM hosts_hostcell AS known
     USING ours AS host
     WHERE known.host_id = host.id
       AND NOT EXISTS (SELECT FROM cells WHERE cells.host_id = known.host_id
                          AND cells.cell = known.cell AND cells.resource = known.resource)
), stored AS (
    INSERT INTO hosts_hostcell AS known (host_id, cell, resource, capacity, allocated)
    SELECT host_id, cell, resource, capacity, allocated FROM cells
        ON CONFLICT (host_id, cell, resource) DO UPDATE
       SET capacity = excluded.capacity, allocated = excluded.allocated
     WHERE (known.capacity, known.allocated) IS DISTINCT FROM (excluded.capacity,
                                                               excluded.allocated))
"""


class _Told(NamedTuple):
    cell: int
    resource: str
    capacity: int
    allocated: int


def cell_columns(agent: HostAgent, report: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Return what a report says of NUMA cells, as parameters.

    Nothing is known of them from an agent that is not asked for anything.
    """
    cells = () if agent.mode == AgentMode.NONE else report["numa"]
    told = [row for cell in cells for row in _of_cell(cell)]
    return {
        "cells": [row.cell for row in told],
        "cell_resources": [row.resource for row in told],
        "cell_capacities": [row.capacity for row in told],
        "cell_allocated": [row.allocated for row in told],
    }


def forget_cells(host_name: str) -> None:
    """Forget what an agent said of its host's cells."""
    HostCell.objects.filter(host__name=host_name, is_described=False).delete()


def effective_of(cell: HostCell, host: Host) -> int:
    """Return what may be promised of a cell: as it is said, else by the ratio of its host."""
    if cell.effective_capacity is not None:
        return cell.effective_capacity
    ratios = {CellResource.CPU: host.vcpus_ratio, CellResource.MEMORY: host.memory_ratio}
    return _bounded(int(cell.capacity * ratios.get(CellResource(cell.resource), ONE)))


def _of_cell(cell: Mapping[str, Any]) -> tuple[_Told, ...]:  # Any: JSON
    number, cpus, pools = cell["cell"], set(cell["cpus"]), cell["hugepages"]
    locked = _bounded(sum(pool["bytes"] for pool in pools))
    free = sum(pool["available"] * pool["page_size_bytes"] for pool in pools)
    found = (
        _Told(number, CellResource.CPU.value, len(cpus), len(cpus & set(cell["pinned_cpus"]))),
        _Told(number, CellResource.MEMORY.value, cell["memory_bytes"], locked),
        _Told(number, CellResource.HUGEPAGES.value, locked, max(0, locked - free)),
    )
    return found if pools else found[:2]


def _bounded(amount: int) -> int:
    return min(amount, 2**63 - 1)
