"""Claims of Placement as changes of the ledger (ADR 0029).

An allocation write settles what it means here in its own transaction: in-flight rows end, slots are
joined, kept and left, failover room that an evacuated VM uses is given up, and the rooms are
counted. The texts are run by whoever holds the allocations, which gives its rows as SQL; rooms are
locked by primary key, then slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from django.db import connection

from capacity.hooks import claim_source, failover_room_used
from capacity.ledger.allocated import RECOUNT, allocated_rows, chosen_source
from capacity.models import ReservationKind

PARTS: Final = ("memory_bytes", "vcpus")
_HELD: Final = {
    part: " + ".join(f"room.{kind}_{part}" for kind in ReservationKind.values) for part in PARTS
}
#: What is taken of each counted room now, by what.
_TOLD: Final = f"""
RETURNING room.host_id,
          room.effective_memory_bytes, room.allocated_memory_bytes, {_HELD["memory_bytes"]},
          room.effective_vcpus, room.allocated_vcpus, {_HELD["vcpus"]}
"""


class Eaten(NamedTuple):
    """Room that a claim would take from those for whom it is held.

    Attributes:
        host_id: Key of the host.
        resource: ``memory_bytes`` or ``vcpus``.
        taken: What VMs and holds would take of it.
        effective: What there is of it.
    """

    host_id: int
    resource: str
    taken: int
    effective: int


class KnownClaims(NamedTuple):
    """Who holds what where, for readers of the VM list, which is older.

    Attributes:
        places: (VM uuid, host key) of those that hold something there.
        hosts: Hosts of which all claims are known; on others the VM list alone counts.
    """

    places: frozenset[tuple[str, int]] = frozenset()
    hosts: frozenset[int] = frozenset()

    def deny(self, vm_uuid: str, host_id: int | None) -> bool:
        """Return whether a VM is not on a host, whatever the VM list says."""
        return host_id in self.hosts and (vm_uuid, host_id) not in self.places


class Settled(NamedTuple):
    """What was taken of hosts before a claim, in bytes and vCPUs, and what it gave up."""

    before: Mapping[int, tuple[int, int]]
    used_failover_ids: tuple[int, ...]


def settle_statement(*, hosts: str, pieces: str) -> str:
    """Return the statement that settles a write; its first parameter is the consumers.

    Args:
        hosts: SQL of an array of the keys of hosts whose providers the write touched.
        pieces: SQL of a JSON array of what the consumers hold on hosts now; see
            ``capacity_settle_claims``.
    """
    return f"SELECT * FROM capacity_settle_claims(%(consumers)s::text[], {hosts}, {pieces})"  # noqa: S608


def settled_of(rows: Iterable[Sequence[Any]]) -> Settled:  # Any: columns
    """Read what :func:`settle_statement` returned."""
    before: dict[int, tuple[int, int]] = {}
    used: list[int] = []
    for host_id, memory_bytes, vcpus, failover_id in rows:
        if failover_id is None:
            before[host_id] = (memory_bytes, vcpus)
        else:
            used.append(failover_id)
    if used:
        failover_room_used(used)
    return Settled(before, tuple(used))


def known_claims(vm_uuids: Collection[str], host_ids: Collection[int]) -> KnownClaims:
    """Return the claims of VMs; none are known where the VM list is the source."""
    query = claim_source(chosen_source())
    if not query:
        return KnownClaims()
    with connection.cursor() as cursor:
        cursor.execute(query, {"vm_uuids": sorted(vm_uuids), "host_ids": sorted(host_ids)})
        rows = cursor.fetchall()
    return KnownClaims(
        places=frozenset((vm_uuid, host_id) for host_id, vm_uuid in rows if vm_uuid is not None),
        hosts=frozenset(host_id for host_id, vm_uuid in rows if vm_uuid is None),
    )


def recount_statement() -> str:
    """Return the statement that counts what VMs take on ``host_ids`` and tells their rooms."""
    return _recount_statement(allocated_rows())


@cache
def _recount_statement(allocated: str) -> str:
    counted, _, _ = RECOUNT.rpartition("   AND (room.allocated_memory_bytes")
    return counted.format(allocated=allocated) + _TOLD


def eaten_room(
    before: Mapping[int, tuple[int, int]], rooms: Iterable[Sequence[int]]
) -> list[Eaten]:
    """Return where a claim took more than what others' holds leave.

    A host that is overfull is so for those who held room there before: what takes less of it than
    before, or no more, is right. Where nothing is held, Placement's inventory alone decides.

    Args:
        before: What was taken of each host before the claim.
        rooms: What :func:`recount_statement` returned after it.
    """
    eaten = []
    for host_id, *figures in rooms:
        for position, resource in enumerate(PARTS):
            effective, allocated, held = figures[3 * position : 3 * position + 3]
            taken = allocated + held
            if held > 0 and taken > effective and taken > before[host_id][position]:
                eaten.append(Eaten(host_id, resource, taken, effective))
    return eaten
