"""What consumers hold of NUMA cells, where a host's cells are providers of their own.

A cell is a provider in the tree of its host with the trait ``HW_NUMA_ROOT``; its number ends its
name. Of a host where vCPUs or memory are held elsewhere too, nobody knows in which cell they are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from journal.statements import fetch_rows
from placement.selectors.allocated import HOST_ROOT

_USED: Final = f"""
SELECT host.name, part.name,
       EXISTS (SELECT FROM placement_provider_trait AS link
                 JOIN placement_trait AS trait ON trait.id = link.trait_id
                WHERE link.provider_id = part.id AND trait.name = 'HW_NUMA_ROOT'),
       coalesce(sum(has.used) FILTER (WHERE class.name IN ('VCPU', 'PCPU')), 0)::bigint,
       coalesce(sum(has.used) FILTER (WHERE class.name = 'MEMORY_MB'), 0)::bigint * 1048576
  FROM hosts_host AS host
  JOIN placement_provider AS root ON {HOST_ROOT}
  JOIN placement_provider AS part ON part.root_id = root.id
  LEFT JOIN placement_inventory AS has ON has.provider_id = part.id
  LEFT JOIN placement_resource_class AS class ON class.id = has.resource_class_id
 WHERE host.is_self_described
 GROUP BY host.id, part.id
"""  # noqa: S608 - constants only
_NUMBER: Final = re.compile(r"[0-9]+$", re.ASCII)


class CellUsage(NamedTuple):
    """vCPUs and bytes of memory that are held of a cell."""

    vcpus: int
    memory_bytes: int


def usage_of_cells() -> Mapping[str, Mapping[int, CellUsage]]:
    """Return host -> number of a cell -> what is held of it; hosts that nobody knows it of lack."""
    found: dict[str, dict[int, CellUsage]] = defaultdict(dict)
    unknown: set[str] = set()
    for host, provider, is_cell, vcpus, memory_bytes in fetch_rows(_USED):
        number = _NUMBER.search(provider) if is_cell else None
        if number is None:
            if vcpus or memory_bytes:
                unknown.add(host)
        elif int(number[0]) in found[host]:
            unknown.add(host)
        else:
            found[host][int(number[0])] = CellUsage(vcpus, memory_bytes)
    return {host: cells for host, cells in found.items() if host not in unknown}
