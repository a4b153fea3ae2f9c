"""Capacity of host providers that commitments and failover hold (spec placement, 8.4).

What a reservation blocks beside the VMs in it is held; the VMs themselves have allocations. The
room rows of hosts are the truth about it, in the memory of the region; Placement counts MiB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from core.prepared import Row, fetch
from placement.selectors.allocated import HOST_ROOT

MEMORY: Final = "MEMORY_MB"
CORES: Final = "VCPU"

PROVIDER_OF_ROOM: Final = f"""
  JOIN hosts_host AS host ON host.id = room.host_id
  JOIN placement_provider AS root ON {HOST_ROOT}
"""
#: Rounded up to whole MiB: what is held is never shown as free.
HELD_AMOUNTS: Final = """
((greatest(room.committed_memory_bytes, 0) + greatest(room.failover_memory_bytes, 0)
  + 1048575) / 1048576)::bigint,
(greatest(room.committed_vcpus, 0) + greatest(room.failover_vcpus, 0))::bigint
"""
HELD_ROOM: Final = f"FROM capacity_hostcapacity room {PROVIDER_OF_ROOM}"
ALL = f"SELECT root.id, {HELD_AMOUNTS} {HELD_ROOM}"
OF_TREES = f"{ALL} WHERE root.root_id = ANY (%s::bigint[])"
BY_UUID = f"SELECT root.uuid::text, {HELD_AMOUNTS} {HELD_ROOM} WHERE root.uuid = ANY (%s::uuid[])"


class HeldAmounts(NamedTuple):
    """What is held on a provider."""

    memory_mib: int
    vcpus: int

    def of_class(self, name: str) -> int:
        """Return what is held of a resource class, in its unit."""
        return {MEMORY: self.memory_mib, CORES: self.vcpus}.get(name, 0)


def held_by_provider(root_ids: Collection[int] | None = None) -> Mapping[int, HeldAmounts]:
    """Return what is held, by key of the provider.

    Args:
        root_ids: Keys of roots of trees; all providers when ``None``.
    """
    rows = fetch(ALL) if root_ids is None else fetch(OF_TREES, [sorted(root_ids)])
    return {row[0]: held_of(row) for row in rows}


def held_by_uuid(uuids: Collection[str]) -> Mapping[str, HeldAmounts]:
    """Return what is held on some providers, by uuid; those without hosts are left out."""
    return {row[0]: held_of(row) for row in fetch(BY_UUID, [sorted(uuids)])}


def held_of(row: Row) -> HeldAmounts:
    """Return the amounts of a row after its key."""
    return HeldAmounts(int(row[1]), int(row[2]))
