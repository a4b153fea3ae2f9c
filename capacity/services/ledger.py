"""The ledger of held capacity: the only writer of reservations and host rooms.

A block is taken by a conditional update that may find no row, never by read-then-write (design,
"Concurrency"). All functions run inside the transaction of their caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django.db import connection

from capacity.models import Reservation, ReservationKind
from scheduling.resources import ZERO, ResourceVector

LOCK_ROOMS = """
SELECT id FROM capacity_hostcapacity WHERE host_id = ANY(%s::bigint[]) ORDER BY id FOR NO KEY UPDATE
"""

MOVE_BLOCKS = """
UPDATE capacity_hostcapacity AS room
   SET {kind}_memory_bytes = room.{kind}_memory_bytes + asked.memory_bytes,
       {kind}_vcpus = room.{kind}_vcpus + asked.vcpus
  FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS asked(host_id, memory_bytes, vcpus)
 WHERE room.host_id = asked.host_id
   AND (asked.memory_bytes <= 0
        OR room.effective_memory_bytes - room.allocated_memory_bytes - room.committed_memory_bytes
           - room.failover_memory_bytes - room.in_flight_memory_bytes >= asked.memory_bytes)
   AND (asked.vcpus <= 0
        OR room.effective_vcpus - room.allocated_vcpus - room.committed_vcpus
           - room.failover_vcpus - room.in_flight_vcpus >= asked.vcpus)
RETURNING room.host_id
"""

# Rooms follow hosts, VMs and reservations; rows that are right already are not written.
REBUILD_ROOMS = """
WITH wanted AS (
    SELECT host.id AS host_id, host.zone,
           host.effective_memory_bytes, host.effective_vcpus,
           coalesce(vms.memory_bytes, 0) AS allocated_memory_bytes,
           coalesce(vms.vcpus, 0) AS allocated_vcpus,
           coalesce(held.committed_memory_bytes, 0) AS committed_memory_bytes,
           coalesce(held.committed_vcpus, 0) AS committed_vcpus,
           coalesce(held.failover_memory_bytes, 0) AS failover_memory_bytes,
           coalesce(held.failover_vcpus, 0) AS failover_vcpus,
           coalesce(held.in_flight_memory_bytes, 0) AS in_flight_memory_bytes,
           coalesce(held.in_flight_vcpus, 0) AS in_flight_vcpus
      FROM hosts_host AS host
      LEFT JOIN (
            SELECT host_id, sum(memory_bytes)::bigint AS memory_bytes, sum(vcpus)::bigint AS vcpus
              FROM hosts_instance WHERE host_id IS NOT NULL GROUP BY host_id
           ) AS vms ON vms.host_id = host.id
      LEFT JOIN (
            SELECT host_id,
                   {sums}
              FROM (
                    SELECT target_host_id AS host_id, kind, blocked_memory_bytes, blocked_vcpus
                      FROM capacity_reservation WHERE target_host_id IS NOT NULL
                     UNION ALL
                    SELECT confirmed_host_id, kind, blocked_memory_bytes, blocked_vcpus
                      FROM capacity_reservation
                     WHERE confirmed_host_id IS NOT NULL
                       AND confirmed_host_id IS DISTINCT FROM target_host_id
                   ) AS holds
             GROUP BY host_id
           ) AS held ON held.host_id = host.id
     WHERE %(host_ids)s::bigint[] IS NULL OR host.id = ANY(%(host_ids)s)
)
INSERT INTO capacity_hostcapacity AS room ({columns}, created_at, updated_at)
SELECT {columns}, now(), now() FROM wanted ORDER BY host_id
ON CONFLICT (host_id) DO UPDATE SET {assignments}
 WHERE ({current}) IS DISTINCT FROM ({excluded})
"""

ROOM_COLUMNS = (
    "zone",
    "effective_memory_bytes",
    "effective_vcpus",
    "allocated_memory_bytes",
    "allocated_vcpus",
    *(f"{kind}_{part}" for kind in ReservationKind.values for part in ("memory_bytes", "vcpus")),
)


def rebuild_host_capacity(host_ids: Sequence[int] | None = None) -> int:
    """Make host rooms agree with hosts, VMs and reservations, in one statement.

    Args:
        host_ids: Hosts to look at; every host when left out.

    Returns:
        How many rows were created or changed.
    """
    sums = ",\n                   ".join(
        f"coalesce(sum(blocked_{part}) FILTER (WHERE kind = '{kind}'), 0)::bigint AS {kind}_{part}"
        for kind in ReservationKind.values
        for part in ("memory_bytes", "vcpus")
    )
    statement = REBUILD_ROOMS.format(
        sums=sums,
        columns=", ".join(("host_id", *ROOM_COLUMNS)),
        assignments=", ".join(f"{name} = excluded.{name}" for name in ROOM_COLUMNS),
        current=", ".join(f"room.{name}" for name in ROOM_COLUMNS),
        excluded=", ".join(f"excluded.{name}" for name in ROOM_COLUMNS),
    )
    with connection.cursor() as cursor:
        ids = None if host_ids is None else list(host_ids)
        cursor.execute(statement, {"host_ids": ids})
        return int(cursor.rowcount)


def move_blocks(kind: ReservationKind, deltas: Mapping[int, ResourceVector]) -> tuple[int, ...]:
    """Change what reservations of one kind block on hosts, where the room allows it.

    Growth is conditional on room, per resource; shrinking always succeeds. Host rooms are locked
    in primary key order.

    Args:
        kind: Whose block totals change.
        deltas: Host primary key to the change in bytes and vCPUs, positive to take.

    Returns:
        Primary keys of the hosts that had no room, sorted; empty when every change was made. The
        caller must roll back when it is not empty.
    """
    wanted = {host_id: delta for host_id, delta in deltas.items() if delta != ZERO}
    if not wanted:
        return ()
    host_ids = sorted(wanted)
    with connection.cursor() as cursor:
        cursor.execute(LOCK_ROOMS, [host_ids])
        cursor.execute(
            MOVE_BLOCKS.format(kind=ReservationKind(kind).value),
            [
                host_ids,
                [wanted[host_id].memory_bytes for host_id in host_ids],
                [wanted[host_id].vcpus for host_id in host_ids],
            ],
        )
        moved = {row[0] for row in cursor.fetchall()}
    return tuple(host_id for host_id in host_ids if host_id not in moved)


def blocks_by_host(reservations: Iterable[Reservation]) -> dict[int, ResourceVector]:
    """Return what reservations block per host: on the target and, in migration, both hosts."""
    blocks: dict[int, ResourceVector] = {}
    for row in reservations:
        block = ResourceVector(memory_bytes=row.blocked_memory_bytes, vcpus=row.blocked_vcpus)
        for host_id in {row.target_host_id, row.confirmed_host_id}:
            if host_id is None:
                continue
            blocks[host_id] = blocks.get(host_id, ZERO) + block
    return blocks
