"""Host rooms: locked, taken, given back, and made to agree with the rows (spec commitments, 10).

A block is taken by a conditional update that may find no row, never by read-then-write (design,
"Concurrency"). Whoever changes what a reservation blocks locks the rooms of its hosts first, in
primary key order, then the reservation. All functions run inside the transaction of their caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django.db import transaction

from capacity.ledger.allocated import (
    LOCK_ROOMS,
    allocated_rows,
    chosen_source,
    recount_allocated,
)
from capacity.models import Reservation, ReservationKind
from journal.statements import execute, fetch_rows
from scheduling.resources import ZERO, ResourceVector

MOVE_BLOCKS = """
UPDATE capacity_hostcapacity AS room
   SET {kind}_memory_bytes = room.{kind}_memory_bytes + asked.memory_bytes,
       {kind}_vcpus = room.{kind}_vcpus + asked.vcpus
  FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS asked(host_id, memory_bytes, vcpus)
 WHERE room.host_id = asked.host_id {if_room}
RETURNING room.host_id
"""

IF_ROOM = """
   AND (asked.memory_bytes <= 0
        OR room.effective_memory_bytes - room.allocated_memory_bytes - room.committed_memory_bytes
           - room.failover_memory_bytes - room.in_flight_memory_bytes >= asked.memory_bytes)
   AND (asked.vcpus <= 0
        OR room.effective_vcpus - room.allocated_vcpus - room.committed_vcpus
           - room.failover_vcpus - room.in_flight_vcpus >= asked.vcpus)
"""

SET_BLOCKS = """
UPDATE capacity_reservation AS held
   SET blocked_memory_bytes = wanted.memory_bytes, blocked_vcpus = wanted.vcpus
  FROM capacity_wanted_blocks() AS wanted
 WHERE held.id = wanted.id AND ({chosen})
   AND (wanted.blocked_memory_bytes, wanted.blocked_vcpus)
       IS DISTINCT FROM (wanted.memory_bytes, wanted.vcpus)
RETURNING wanted.kind, wanted.target_host_id, wanted.confirmed_host_id,
          wanted.memory_bytes - wanted.blocked_memory_bytes, wanted.vcpus - wanted.blocked_vcpus
"""

ON_HOSTS = (
    "%(host_ids)s::bigint[] IS NULL OR wanted.target_host_id = ANY(%(host_ids)s)"
    " OR wanted.confirmed_host_id = ANY(%(host_ids)s)"
)

# Slots in migration touch a second host: its room changes with them.
WITH_OTHER_HOSTS = """
SELECT unnest(%(host_ids)s::bigint[])
 UNION
SELECT unnest(ARRAY[target_host_id, confirmed_host_id]) FROM capacity_reservation
 WHERE target_host_id = ANY(%(host_ids)s) OR confirmed_host_id = ANY(%(host_ids)s)
"""

# What is held of each host: by reservations, and by slots that left and that agents have still.
HOLDS = """
                    SELECT target_host_id AS host_id, kind, blocked_memory_bytes, blocked_vcpus
                      FROM capacity_reservation
                     WHERE target_host_id IS NOT NULL
                       AND (%(host_ids)s::bigint[] IS NULL OR target_host_id = ANY(%(host_ids)s))
                     UNION ALL
                    SELECT confirmed_host_id, kind, blocked_memory_bytes, blocked_vcpus
                      FROM capacity_reservation
                     WHERE confirmed_host_id IS NOT NULL
                       AND confirmed_host_id IS DISTINCT FROM target_host_id
                       AND (%(host_ids)s::bigint[] IS NULL
                            OR confirmed_host_id = ANY(%(host_ids)s))
                     UNION ALL
                    SELECT host_id, 'committed', memory_bytes, vcpus FROM capacity_leavingroom
                     WHERE %(host_ids)s::bigint[] IS NULL OR host_id = ANY(%(host_ids)s)
"""

COUNT_COMMITTED = f"""
WITH held AS (
    SELECT host_id, sum(blocked_memory_bytes)::bigint AS memory_bytes,
           sum(blocked_vcpus)::bigint AS vcpus
      FROM ({HOLDS}) AS holds WHERE kind = 'committed' GROUP BY host_id
)
UPDATE capacity_hostcapacity AS room
   SET committed_memory_bytes = coalesce(held.memory_bytes, 0),
       committed_vcpus = coalesce(held.vcpus, 0)
  FROM unnest(%(host_ids)s::bigint[]) AS asked(host_id)
  LEFT JOIN held ON held.host_id = asked.host_id
 WHERE room.host_id = asked.host_id
"""  # noqa: S608 - constants only

# Rooms follow hosts, VMs and reservations; rows that are right already are not written.
REBUILD_ROOMS = """
WITH wanted AS (
    SELECT host.id AS host_id, host.zone,
           host.effective_memory_bytes, host.effective_vcpus,
           coalesce(vms.memory_bytes, 0) AS allocated_memory_bytes,
           coalesce(vms.vcpus, 0) AS allocated_vcpus,
           %(source)s AS counted_from,
           coalesce(held.committed_memory_bytes, 0) AS committed_memory_bytes,
           coalesce(held.committed_vcpus, 0) AS committed_vcpus,
           coalesce(held.failover_memory_bytes, 0) AS failover_memory_bytes,
           coalesce(held.failover_vcpus, 0) AS failover_vcpus,
           coalesce(held.in_flight_memory_bytes, 0) AS in_flight_memory_bytes,
           coalesce(held.in_flight_vcpus, 0) AS in_flight_vcpus
      FROM hosts_host AS host
      LEFT JOIN ({allocated}) AS vms ON vms.host_id = host.id
      LEFT JOIN (
            SELECT host_id,
                   {sums}
              FROM (
{holds}
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
    "counted_from",
    *(f"{kind}_{part}" for kind in ReservationKind.values for part in ("memory_bytes", "vcpus")),
)


def rebuild_host_capacity(host_ids: Sequence[int] | None = None) -> int:
    """Make blocks and host rooms agree with hosts, VMs and reservations.

    Locks the rooms in question first, so that nobody places meanwhile.

    Args:
        host_ids: Hosts to look at; every host when left out.

    Returns:
        How many reservations and rooms were created or changed; 0 when the ledger was right.
    """
    with transaction.atomic():
        if host_ids is None:
            execute("SELECT id FROM capacity_hostcapacity ORDER BY id FOR NO KEY UPDATE")
            ids = None
        else:
            rows = fetch_rows(WITH_OTHER_HOSTS, {"host_ids": list(host_ids)})
            ids = sorted(row[0] for row in rows if row[0] is not None)
            execute(LOCK_ROOMS, [ids])
        changed = execute(SET_BLOCKS.format(chosen=ON_HOSTS), {"host_ids": ids})
        parameters = {"host_ids": ids, "source": chosen_source()}
        return changed + execute(_rebuild_rooms_statement(), parameters)


def _rebuild_rooms_statement() -> str:
    sums = ",\n                   ".join(
        f"coalesce(sum(blocked_{part}) FILTER (WHERE kind = '{kind}'), 0)::bigint AS {kind}_{part}"
        for kind in ReservationKind.values
        for part in ("memory_bytes", "vcpus")
    )
    return REBUILD_ROOMS.format(
        sums=sums,
        holds=HOLDS,
        allocated=allocated_rows(),
        columns=", ".join(("host_id", *ROOM_COLUMNS)),
        assignments=", ".join(f"{name} = excluded.{name}" for name in ROOM_COLUMNS),
        current=", ".join(f"room.{name}" for name in ROOM_COLUMNS),
        excluded=", ".join(f"excluded.{name}" for name in ROOM_COLUMNS),
    )


def recount_committed(host_ids: Sequence[int]) -> None:
    """Count anew what slots, and slots that left, hold on hosts whose rooms the caller locked."""
    execute(COUNT_COMMITTED, {"host_ids": sorted(host_ids)})


def lock_rooms(host_ids: Iterable[int]) -> None:
    """Lock the rooms of hosts in primary key order, until the transaction ends."""
    wanted = sorted(set(host_ids))
    if wanted:
        execute(LOCK_ROOMS, [wanted])


def lock_reservations(
    reservation_ids: Iterable[int], *, hosts: Iterable[int] = ()
) -> dict[int, Reservation]:
    """Lock reservations and, before them, the rooms of their hosts.

    Args:
        reservation_ids: Which.
        hosts: Other hosts whose rooms the caller needs as well.

    Returns:
        The reservations that still exist, by primary key, as they are under the lock.
    """
    ids = sorted(set(reservation_ids))
    chosen = Reservation.objects.filter(pk__in=ids)
    locked_hosts = {*hosts, *_hosts_of(chosen)} if ids else set(hosts)
    lock_rooms(locked_hosts)
    if not ids:
        return {}
    rows = {
        row.pk: row for row in chosen.order_by("pk").select_for_update(of=("self",), no_key=True)
    }
    # A planner may have moved one meanwhile; now it stays where it is.
    lock_rooms(_hosts_of(rows.values()) - locked_hosts)
    return rows


def _hosts_of(reservations: Iterable[Reservation]) -> set[int]:
    return {
        host_id
        for row in reservations
        for host_id in (row.target_host_id, row.confirmed_host_id)
        if host_id is not None
    }


def refresh_blocks(reservation_ids: Iterable[int], *, must_fit: bool = False) -> tuple[int, ...]:
    """Make what reservations block agree with their VMs and in-flight rows, and rooms with that.

    Locks as :func:`lock_reservations` does.

    Args:
        reservation_ids: Reservations whose VMs, or their in-flight rows, changed.
        must_fit: Whether growth needs room; otherwise it always succeeds, as for a slot that gets
            back what its VM leaves.

    Returns:
        Primary keys of the hosts that had no room for growth; the caller must roll back then.
    """
    rows = lock_reservations(reservation_ids)
    if not rows:
        return ()
    changed = fetch_rows(SET_BLOCKS.format(chosen="wanted.id = ANY(%s)"), [sorted(rows)])
    deltas: dict[str, dict[int, ResourceVector]] = {}
    for kind, target_id, confirmed_id, memory_bytes, vcpus in changed:
        by_host = deltas.setdefault(kind, {})
        for host_id in {target_id, confirmed_id} - {None}:
            delta = ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
            by_host[host_id] = by_host.get(host_id, ZERO) + delta
    refused: set[int] = set()
    for kind in sorted(deltas):
        if must_fit:
            refused.update(move_blocks(ReservationKind(kind), deltas[kind]))
        else:
            shift_blocks(ReservationKind(kind), deltas[kind])
    return tuple(sorted(refused))


def shift_blocks(kind: ReservationKind, deltas: Mapping[int, ResourceVector]) -> None:
    """Change what reservations of one kind block on hosts, whether or not there is room.

    For blocks that are given back, and for those that come back to their slot; see
    :func:`move_blocks`.
    """
    move_blocks(kind, deltas, if_room="")


def move_blocks(
    kind: ReservationKind, deltas: Mapping[int, ResourceVector], *, if_room: str = IF_ROOM
) -> tuple[int, ...]:
    """Change what reservations of one kind block on hosts, where the room allows it.

    Growth is conditional on room, per resource; shrinking always succeeds. Host rooms are locked
    in primary key order.

    Args:
        kind: Whose block totals change.
        deltas: Host primary key to the change in bytes and vCPUs, positive to take.
        if_room: What makes it conditional.

    Returns:
        Primary keys of the hosts that had no room, sorted; empty when every change was made. The
        caller must roll back when it is not empty.
    """
    wanted = {host_id: delta for host_id, delta in sorted(deltas.items()) if delta != ZERO}
    if not wanted:
        return ()
    lock_rooms(wanted)
    moved = {
        row[0]
        for row in fetch_rows(
            MOVE_BLOCKS.format(kind=ReservationKind(kind).value, if_room=if_room),
            [
                list(wanted),
                [delta.memory_bytes for delta in wanted.values()],
                [delta.vcpus for delta in wanted.values()],
            ],
        )
    }
    recount_allocated(moved)
    return tuple(host_id for host_id in wanted if host_id not in moved)


def blocks_by_host(reservations: Iterable[Reservation]) -> dict[int, ResourceVector]:
    """Return what reservations block per host: on the target and, in migration, both hosts."""
    blocks: dict[int, ResourceVector] = {}
    for row in reservations:
        for host_id in {row.target_host_id, row.confirmed_host_id}:
            if host_id is None:
                continue
            blocks[host_id] = blocks.get(host_id, ZERO) + row.blocked
    return blocks
