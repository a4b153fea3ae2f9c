"""Failover reservations and their users as columns: written thousands at a time.

Each function is one statement or one COPY. Locks: rooms by primary key, then reservations; the
caller has locked reservations against changes of their users.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from capacity.ledger.rooms import move_blocks, refresh_blocks, shift_blocks
from capacity.models import ReadyReason, Reservation, ReservationKind
from core.copying import copy_lines, copy_text, copy_time
from journal.statements import execute, fetch_rows
from scheduling.resources import ZERO, ResourceVector

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

DELETE_USERS = """
DELETE FROM capacity_reservationallocation AS vm
 USING capacity_reservation AS held
 WHERE vm.id = ANY(%(users)s::bigint[]) AND held.id = vm.reservation_id AND held.kind = 'failover'
   AND {condition}
RETURNING vm.reservation_id, vm.vm_uuid
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

STAMP_USERS = """
UPDATE capacity_reservationallocation SET validated_at = %(now)s WHERE id = ANY(%(ids)s)
"""

MARK_INVALID = """
UPDATE capacity_reservation AS held
   SET is_ready = false, ready_reason = %(reason)s, ready_message = bad.message,
       ready_changed_at = %(now)s, updated_at = %(now)s
  FROM unnest(%(ids)s::bigint[], %(messages)s::text[]) AS bad(id, message)
 WHERE held.id = bad.id
   AND (held.is_ready, held.ready_reason, held.ready_message)
       IS DISTINCT FROM (false, %(reason)s, bad.message)
"""

MARK_VALID_AGAIN = """
UPDATE capacity_reservation
   SET is_ready = true, ready_reason = %(active)s, ready_message = '',
       ready_changed_at = %(now)s, updated_at = %(now)s
 WHERE id = ANY(%(ids)s) AND ready_reason = %(reason)s
"""

FLAVOR_LENGTH: Final = 255
FEW_ROWS: Final = 20
USER_COLUMNS: Final = ("reservation_ids", "vm_uuids", "memory_bytes", "vcpus", "vm_host_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReservation:
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


class JoiningVM(NamedTuple):
    """A VM that joins a failover reservation.

    Attributes:
        reservation_id: Key of the reservation.
        memory_bytes: What it takes.
        vcpus: Likewise.
        vm_host_id: Key of the host it runs on.
    """

    reservation_id: int
    vm_uuid: str
    memory_bytes: int
    vcpus: int
    vm_host_id: int


def take_room(slots: Sequence[NewReservation]) -> frozenset[int]:
    """Block room for reservations; return the hosts that have none for theirs.

    Nothing is blocked on a host that has no room for all that it should get.
    """
    asked: dict[int, ResourceVector] = {}
    for slot in slots:
        asked[slot.host_id] = asked.get(slot.host_id, ZERO) + slot.size
    return frozenset(move_blocks(ReservationKind.FAILOVER, asked))


def hold_many(
    slots: Sequence[NewReservation],
    *,
    zone: str,
    creator: str,
    request_id: str,
    reason: str,
    now: datetime,
) -> list[int]:
    """Write reservations whose room was taken; return their keys in order.

    Args:
        slots: What is held.
        creator: Who makes them.
        reason: Why they are ready.
    """
    ids = [row[0] for row in fetch_rows(NEXT_IDS, [len(slots)])]
    moment = copy_time(now)
    tail = "\t".join(
        (copy_text(creator), copy_text(request_id), "0\t0\t1", "t", reason, "", moment)
    )
    copy_lines(
        COPY_RESERVATIONS,
        (
            _reservation_line(key, slot, copy_text(zone), tail, moment)
            for key, slot in zip(ids, slots, strict=True)
        ),
    )
    return ids


def _reservation_line(key: int, slot: NewReservation, zone: str, tail: str, moment: str) -> str:
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


def join_many(
    users: Sequence[JoiningVM],
    *,
    now: datetime,
    also: str = "",
    parameters: Mapping[str, Any] | None = None,  # Any: what the driver takes
) -> None:
    """Write users of reservations; the database refuses those that break the rules.

    Args:
        users: Who joins what.
        also: Statement that goes in the same message where there are few users, else after it.
        parameters: Its named parameters.

    Raises:
        IntegrityError: If a rule is broken; nothing is written then.
    """
    if users and len(users) <= FEW_ROWS:
        columns = zip(USER_COLUMNS, map(list, zip(*users, strict=True)), strict=True)
        statement = f"{INSERT_USERS};{also}" if also else INSERT_USERS
        execute(statement, {**dict(columns), "now": now, **(parameters or {})})
        return
    moment = copy_time(now)
    copy_lines(
        COPY_USERS,
        (
            f"{reservation_id}\t{copy_text(vm_uuid)}\texpected\t{memory_bytes}\t{vcpus}"
            f"\t{moment}\t{vm_host_id}\t{moment}\t{moment}"
            for reservation_id, vm_uuid, memory_bytes, vcpus, vm_host_id in users
        ),
    )
    if also:
        execute(also, parameters or {})


def leave_many(
    allocation_ids: Collection[int],
    *,
    condition: str,
    parameters: Mapping[str, Any],  # Any: what the driver takes
) -> list[tuple[int, str]]:
    """Take users out of reservations; return (reservation, VM uuid) of those that were there.

    Args:
        allocation_ids: The users.
        condition: What must hold of ``held``, their reservation, in SQL.
        parameters: Its named parameters.
    """
    statement = DELETE_USERS.format(condition=condition)
    return [
        (int(row[0]), str(row[1]))
        for row in fetch_rows(statement, {**parameters, "users": sorted(allocation_ids)})
    ]


def release_many(held: Sequence[tuple[int, int | None, int, int]]) -> list[int]:
    """Delete locked reservations and give their room back; return their keys.

    Args:
        held: Key, host, and what is blocked there in bytes and vCPUs.
    """
    given: dict[int, ResourceVector] = {}
    for _, host_id, memory_bytes, vcpus in held:
        if host_id is not None:
            back = ResourceVector(memory_bytes=-memory_bytes, vcpus=-vcpus)
            given[host_id] = given.get(host_id, ZERO) + back
    shift_blocks(ReservationKind.FAILOVER, given)
    keys = [row[0] for row in held]
    Reservation.objects.filter(pk__in=keys).delete()
    return keys


def shrink_many(sizes: Mapping[int, tuple[ResourceVector, int]]) -> list[int]:
    """Reduce locked reservations whose users are still as many; return the keys of those done.

    Args:
        sizes: Reservation -> (new size, users that it was found for).
    """
    done = [
        row[0]
        for row in fetch_rows(
            RESIZE,
            [
                list(sizes),
                [size.memory_bytes for size, _ in sizes.values()],
                [size.vcpus for size, _ in sizes.values()],
                [users for _, users in sizes.values()],
            ],
        )
    ]
    refresh_blocks(done)
    return done


def note_valid(
    reservation_ids: Collection[int], user_ids: Collection[int], *, active: str, now: datetime
) -> None:
    """Note that reservations hold their users, and are ready again if their sizes made them not.

    Args:
        reservation_ids: The reservations.
        user_ids: Rows of their users.
        active: Why they are ready.
    """
    marks = {"active": active, "reason": ReadyReason.INVALID_RESOURCES.value, "now": now}
    execute(MARK_VALID_AGAIN, {**marks, "ids": sorted(reservation_ids)})
    execute(STAMP_USERS, {"now": now, "ids": list(user_ids)})


def note_invalid(problems: Mapping[int, str], *, now: datetime) -> None:
    """Let reservations be not ready: they keep their room and cover nobody.

    Args:
        problems: Reservation -> what is wrong with its size.
    """
    marks = {"reason": ReadyReason.INVALID_RESOURCES.value, "now": now}
    ids, messages = list(problems), list(problems.values())
    execute(MARK_INVALID, {**marks, "ids": ids, "messages": messages})
