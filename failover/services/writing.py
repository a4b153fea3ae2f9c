"""Rows of failover reservations, written in bulk (spec failover, 12.3, 12.4, 12.6)."""

from __future__ import annotations

import random
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import orjson
from django.db import connection

from capacity.ledger.rooms import lock_rooms, move_blocks, refresh_blocks, shift_blocks
from capacity.models import Reservation, ReservationKind
from failover.constants import RESERVATION_ACTIVE
from failover.domain.names import SUFFIX_ALPHABET, SUFFIX_LENGTH, reservation_name
from failover.services.copying import copy_lines, copy_text, copy_time
from scheduling.resources import ZERO, ResourceVector

NAME_ATTEMPTS = 5

NEXT_IDS = """
SELECT nextval(pg_get_serial_sequence('capacity_reservation', 'id'))
  FROM generate_series(1, %s)
"""

COPY_RESERVATIONS = """
COPY capacity_reservation (id, uuid, kind, scheduling_domain, zone, flavor_group_name,
     resource_name, project_id, domain_id, memory_bytes, vcpus, blocked_memory_bytes,
     blocked_vcpus, target_host_id, confirmed_host_id, creator, creator_request_id,
     parent_generation, observed_parent_generation, generation, is_ready, ready_reason,
     ready_message, ready_changed_at, decision, vm_uuid, user_id, intent, created_at, updated_at)
FROM STDIN
"""

COPY_KNOWN = """
COPY failover_failoverreservation (reservation_id, name, state, last_changed_at,
     next_validation_at, version, created_at, updated_at)
FROM STDIN
"""

COPY_USERS = """
COPY capacity_reservationallocation (reservation_id, vm_uuid, state, memory_bytes, vcpus, since,
     vm_host_id, created_at, updated_at)
FROM STDIN
"""

# For a few rows: one round trip, where COPY takes three.
INSERT_USERS = """
INSERT INTO capacity_reservationallocation (reservation_id, vm_uuid, state, memory_bytes, vcpus,
       since, vm_host_id, created_at, updated_at)
SELECT fresh.reservation_id, fresh.vm_uuid, 'expected', fresh.memory_bytes, fresh.vcpus,
       %(now)s, fresh.vm_host_id, %(now)s, %(now)s
  FROM unnest(%(reservation_ids)s::bigint[], %(vm_uuids)s::text[], %(memory_bytes)s::bigint[],
              %(vcpus)s::bigint[], %(vm_host_ids)s::bigint[])
           AS fresh(reservation_id, vm_uuid, memory_bytes, vcpus, vm_host_id)
"""

# Whoever changes users of a reservation holds its row here. Planners pass over one that another
# holds: who moves VMs locks in the order of the VMs, so waiting could end in a deadlock.
LOCK_SLOTS = """
SELECT reservation_id FROM failover_failoverreservation
 WHERE reservation_id = ANY(%s::bigint[])
 ORDER BY reservation_id FOR NO KEY UPDATE SKIP LOCKED
"""

LOCK_SLOTS_OF_USERS = """
SELECT reservation_id FROM failover_failoverreservation
 WHERE reservation_id IN (SELECT reservation_id FROM capacity_reservationallocation
                           WHERE id = ANY(%s::bigint[]))
 ORDER BY reservation_id FOR NO KEY UPDATE SKIP LOCKED
"""

TOUCH = """
UPDATE failover_failoverreservation
   SET last_changed_at = %(now)s, acknowledged_at = NULL, next_validation_at = %(now)s,
       version = version + 1
 WHERE reservation_id = ANY(%(ids)s)
"""

DELETE_USERS = """
DELETE FROM capacity_reservationallocation AS vm
 USING capacity_reservation AS held
  LEFT JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
 WHERE vm.id = ANY(%s::bigint[]) AND held.id = vm.reservation_id AND held.kind = 'failover'
   AND (known.id IS NULL OR held.id = ANY(%s::bigint[]))
RETURNING vm.reservation_id, vm.vm_uuid
"""

LOCK_UNUSED = """
SELECT held.id, held.target_host_id, held.blocked_memory_bytes, held.blocked_vcpus
  FROM capacity_reservation AS held
  LEFT JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
 WHERE held.id = ANY(%s::bigint[]) AND held.kind = 'failover'
   AND (known.id IS NULL OR held.id = ANY(%s::bigint[]))
   AND coalesce(known.state, 'active') NOT IN ('consuming', 'retired')
   AND NOT EXISTS (SELECT FROM capacity_reservationallocation AS vm
                    WHERE vm.reservation_id = held.id)
 ORDER BY held.id FOR NO KEY UPDATE OF held
"""

RESIZE = """
UPDATE capacity_reservation AS held
   SET memory_bytes = asked.memory_bytes, vcpus = asked.vcpus, generation = held.generation + 1
  FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
           AS asked(id, memory_bytes, vcpus, users)
 WHERE held.id = asked.id AND held.kind = 'failover'
   AND held.memory_bytes >= asked.memory_bytes AND held.vcpus >= asked.vcpus
   AND asked.users = (SELECT count(*) FROM capacity_reservationallocation AS vm
                       WHERE vm.reservation_id = held.id)
RETURNING held.id
"""

FLAVOR_LENGTH = 255
FEW_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotToWrite:
    """A failover reservation to make.

    Attributes:
        host_id: Key of its host.
        memory_bytes: Its size.
        vcpus: Likewise.
        flavor_name: Flavor it is made as.
        resource_group: Flavor group, or flavor.
        decision: Why this host.
    """

    host_id: int
    memory_bytes: int
    vcpus: int
    flavor_name: str
    resource_group: str
    decision: Mapping[str, object]

    @property
    def size(self) -> ResourceVector:
        """Its size."""
        return ResourceVector(memory_bytes=self.memory_bytes, vcpus=self.vcpus)


class UserToWrite(NamedTuple):
    """A VM that joins a failover reservation.

    Attributes:
        reservation_id: Key of the reservation.
        vm_uuid: The VM.
        memory_bytes: What it takes.
        vcpus: Likewise.
        vm_host_id: Key of the host it runs on.
    """

    reservation_id: int
    vm_uuid: str
    memory_bytes: int
    vcpus: int
    vm_host_id: int


def take_room(slots: Sequence[SlotToWrite]) -> frozenset[int]:
    """Block room for reservations; return the hosts that have none for theirs.

    Nothing is blocked on a host that has no room for all that it should get.
    """
    asked: dict[int, ResourceVector] = {}
    for slot in slots:
        asked[slot.host_id] = asked.get(slot.host_id, ZERO) + slot.size
    return frozenset(move_blocks(ReservationKind.FAILOVER, asked))


def write_slots(
    slots: Sequence[SlotToWrite], *, zone: str, creator: str, request_id: str, now: datetime
) -> list[tuple[int, str]]:
    """Write reservations whose room was taken; return their keys and names in order."""
    if not slots:
        return []
    names = _fresh_names(zone, len(slots))
    with connection.cursor() as cursor:
        cursor.execute(NEXT_IDS, [len(slots)])
        ids = [row[0] for row in cursor.fetchall()]
    moment = copy_time(now)
    tail = _reservation_tail(creator, request_id, moment)
    copy_lines(
        COPY_RESERVATIONS,
        (
            _reservation_line(key, slot, copy_text(zone), tail, moment)
            for key, slot in zip(ids, slots, strict=True)
        ),
    )
    copy_lines(
        COPY_KNOWN,
        (
            f"{key}\t{copy_text(name)}\tactive\t{moment}\t{moment}\t1\t{moment}\t{moment}"
            for key, name in zip(ids, names, strict=True)
        ),
    )
    return list(zip(ids, names, strict=True))


def _reservation_line(key: int, slot: SlotToWrite, zone: str, tail: str, moment: str) -> str:
    decision = copy_text(orjson.dumps(slot.decision).decode())
    return "\t".join(
        (
            str(key),
            str(uuid.uuid4()),
            ReservationKind.FAILOVER.value,
            "nova",
            zone,
            copy_text(slot.resource_group[:FLAVOR_LENGTH]),
            copy_text(slot.flavor_name[:FLAVOR_LENGTH]),
            "",
            "",
            f"{slot.memory_bytes}\t{slot.vcpus}\t{slot.memory_bytes}\t{slot.vcpus}",
            f"{slot.host_id}\t{slot.host_id}",
            tail,
            decision,
            f"\t\t\t{moment}\t{moment}",
        )
    )


def _reservation_tail(creator: str, request_id: str, moment: str) -> str:
    """Return the fields that all reservations of a step have in common."""
    return "\t".join(
        (
            copy_text(creator),
            copy_text(request_id),
            "0\t0\t1",
            "t",
            RESERVATION_ACTIVE,
            "",
            moment,
        )
    )


def write_users(
    users: Iterable[UserToWrite], *, touched: Collection[int] = (), now: datetime
) -> None:
    """Write users of reservations; the database refuses those that break the rules.

    Args:
        users: Who joins what.
        touched: Reservations to be touched with it, see :func:`touch`.
        now: The present.

    Raises:
        IntegrityError: If a rule is broken; nothing is written then.
    """
    chosen = list(users)
    if chosen and len(chosen) <= FEW_ROWS:
        _insert_users(chosen, touched, now)
        return
    _copy_users(chosen, now)
    touch(touched, now=now)


def _insert_users(users: Sequence[UserToWrite], touched: Collection[int], now: datetime) -> None:
    reservation_ids, vm_uuids, memory_bytes, vcpus, vm_host_ids = map(
        list, zip(*users, strict=True)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"{INSERT_USERS};{TOUCH}" if touched else INSERT_USERS,
            {
                "now": now,
                "reservation_ids": reservation_ids,
                "vm_uuids": vm_uuids,
                "memory_bytes": memory_bytes,
                "vcpus": vcpus,
                "vm_host_ids": vm_host_ids,
                "ids": sorted(touched),
            },
        )


def _copy_users(users: Iterable[UserToWrite], now: datetime) -> None:
    moment = copy_time(now)
    copy_lines(
        COPY_USERS,
        (
            f"{reservation_id}\t{copy_text(vm_uuid)}\texpected\t{memory_bytes}\t{vcpus}"
            f"\t{moment}\t{vm_host_id}\t{moment}\t{moment}"
            for reservation_id, vm_uuid, memory_bytes, vcpus, vm_host_id in users
        ),
    )


def lock_slots(reservation_ids: Collection[int]) -> list[int]:
    """Lock reservations against changes of their users; return those that no other is changing.

    Never waits. Rooms, if any are to be locked, are locked before; VMs and users after.
    """
    if not reservation_ids:
        return []
    with connection.cursor() as cursor:
        cursor.execute(LOCK_SLOTS, [sorted(reservation_ids)])
        return [row[0] for row in cursor.fetchall()]


def touch(reservation_ids: Collection[int], *, now: datetime) -> None:
    """Note that users of reservations changed, so that they are validated again.

    The caller has locked them, see :func:`lock_slots`, or made them.
    """
    if reservation_ids:
        with connection.cursor() as cursor:
            cursor.execute(TOUCH, {"ids": sorted(reservation_ids), "now": now})


def delete_users(allocation_ids: Collection[int], *, now: datetime) -> list[tuple[int, str]]:
    """Take users out of reservations; return (reservation, VM uuid) of those that were there.

    Users of a reservation that another is changing now stay. Rooms, if any are to be locked, are
    locked before.
    """
    if not allocation_ids:
        return []
    keys = sorted(allocation_ids)
    with connection.cursor() as cursor:
        cursor.execute(LOCK_SLOTS_OF_USERS, [keys])
        free = [row[0] for row in cursor.fetchall()]
        cursor.execute(DELETE_USERS, [keys, free])
        gone = [(int(row[0]), str(row[1])) for row in cursor.fetchall()]
    touch({key for key, _ in gone}, now=now)
    return gone


def delete_unused(reservation_ids: Collection[int]) -> list[int]:
    """Delete those reservations that nobody is in and give their room back; return their keys.

    One that another is changing now stays.
    """
    if not reservation_ids:
        return []
    lock_rooms_of(reservation_ids)
    free = lock_slots(reservation_ids)
    with connection.cursor() as cursor:
        cursor.execute(LOCK_UNUSED, [sorted(reservation_ids), free])
        unused = cursor.fetchall()
    given: dict[int, ResourceVector] = {}
    for _, host_id, memory_bytes, vcpus in unused:
        if host_id is not None:
            back = ResourceVector(memory_bytes=-memory_bytes, vcpus=-vcpus)
            given[host_id] = given.get(host_id, ZERO) + back
    shift_blocks(ReservationKind.FAILOVER, given)
    keys = [row[0] for row in unused]
    Reservation.objects.filter(pk__in=keys).delete()
    return keys


def lock_rooms_of(reservation_ids: Collection[int]) -> None:
    """Lock the rooms of reservations' hosts; whoever locks reservations as well does this first."""
    rows = Reservation.objects.filter(pk__in=reservation_ids, target_host__isnull=False)
    lock_rooms(key for key in rows.values_list("target_host_id", flat=True) if key is not None)


def resize_slots(sizes: Mapping[int, tuple[ResourceVector, int]]) -> list[int]:
    """Reduce reservations whose users are still as many; return the keys of those done.

    One that another is changing now stays as it is.

    Args:
        sizes: Reservation -> (new size, users that it was found for).
    """
    if not sizes:
        return []
    lock_rooms_of(sizes)
    keys = lock_slots(sizes)
    with connection.cursor() as cursor:
        cursor.execute(
            RESIZE,
            [
                keys,
                [sizes[key][0].memory_bytes for key in keys],
                [sizes[key][0].vcpus for key in keys],
                [sizes[key][1] for key in keys],
            ],
        )
        done = [row[0] for row in cursor.fetchall()]
    refresh_blocks(done)
    return done


def _fresh_names(zone: str, count: int) -> list[str]:
    """Return names that no reservation bears; those of others are drawn again a few times."""
    names: set[str] = set()
    for _ in range(NAME_ATTEMPTS):
        drawn = set(_drawn(zone, count - len(names))) - names
        names |= drawn - _taken(drawn)
        if len(names) == count:
            return sorted(names)
    raise RuntimeError(f"no free names for {count} failover reservations in zone {zone}")


def _drawn(zone: str, count: int) -> Iterator[str]:
    for _ in range(count):
        suffix = "".join(random.choices(SUFFIX_ALPHABET, k=SUFFIX_LENGTH))  # noqa: S311 - a name
        yield reservation_name(zone, suffix)


def _taken(names: Collection[str]) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name FROM failover_failoverreservation WHERE name = ANY(%s)", [sorted(names)]
        )
        return {row[0] for row in cursor.fetchall()}
