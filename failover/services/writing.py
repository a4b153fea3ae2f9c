"""Rows of failover reservations, written in bulk (spec failover, 12.3, 12.4, 12.6)."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from django.db import transaction

from capacity.ledger.bulk import (
    JoiningVM,
    NewReservation,
    hold_many,
    join_many,
    leave_many,
    release_many,
    shrink_many,
)
from capacity.ledger.rooms import lock_rooms
from capacity.locks import zone_lock
from capacity.models import Reservation
from core.copying import copy_lines, copy_text, copy_time
from core.jobs import tried
from failover.constants import RESERVATION_ACTIVE
from failover.domain.names import SUFFIX_ALPHABET, SUFFIX_LENGTH, reservation_name
from journal.errors import Busy
from journal.outages import is_retryable
from journal.statements import execute, fetch_rows
from scheduling.resources import ResourceVector

NAME_ATTEMPTS = 5

COPY_KNOWN = """
COPY failover_failoverreservation (reservation_id, name, state, last_changed_at,
     next_validation_at, version, created_at, updated_at)
FROM STDIN
"""

# Whoever changes users of a reservation holds its row here. Planners pass over one that another
# holds: who moves VMs locks in the order of the VMs, so waiting could end in a deadlock.
LOCK_SLOTS = """
SELECT reservation_id FROM failover_failoverreservation
 WHERE reservation_id = ANY(%s::bigint[])
 ORDER BY reservation_id FOR NO KEY UPDATE SKIP LOCKED
"""

# One that an evacuation was planned into after users were chosen to leave keeps them.
LOCK_SLOTS_OF_USERS = """
SELECT reservation_id FROM failover_failoverreservation
 WHERE reservation_id IN (SELECT reservation_id FROM capacity_reservationallocation
                           WHERE id = ANY(%s::bigint[]))
   AND state <> 'consuming'
 ORDER BY reservation_id FOR NO KEY UPDATE SKIP LOCKED
"""

TOUCH = """
UPDATE failover_failoverreservation
   SET last_changed_at = %(now)s, acknowledged_at = NULL, next_validation_at = %(now)s,
       version = version + 1
 WHERE reservation_id = ANY(%(ids)s)
"""

# Of a reservation that was not locked, users stay.
IS_FREE = """
(held.id = ANY(%(free)s::bigint[])
 OR NOT EXISTS (SELECT FROM failover_failoverreservation AS known
                 WHERE known.reservation_id = held.id))
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


def write_slots(
    slots: Sequence[NewReservation], *, zone: str, creator: str, request_id: str, now: datetime
) -> list[tuple[int, str]]:
    """Write reservations whose room was taken; return their keys and names in order."""
    if not slots:
        return []
    names = _fresh_names(zone, len(slots))
    ids = hold_many(
        slots,
        zone=zone,
        creator=creator,
        request_id=request_id,
        reason=RESERVATION_ACTIVE,
        now=now,
    )
    moment = copy_time(now)
    copy_lines(
        COPY_KNOWN,
        (
            f"{key}\t{copy_text(name)}\tactive\t{moment}\t{moment}\t1\t{moment}\t{moment}"
            for key, name in zip(ids, names, strict=True)
        ),
    )
    return list(zip(ids, names, strict=True))


def write_users(
    users: Iterable[JoiningVM], *, touched: Collection[int] = (), now: datetime
) -> None:
    """Write users of reservations; the database refuses those that break the rules.

    Args:
        users: Who joins what.
        touched: Reservations to be touched with it, see :func:`touch`.

    Raises:
        IntegrityError: If a rule is broken; nothing is written then.
    """
    also = TOUCH if touched else ""
    join_many(list(users), now=now, also=also, parameters={"now": now, "ids": sorted(touched)})


def lock_slots(reservation_ids: Collection[int]) -> list[int]:
    """Lock reservations against changes of their users; return those that no other is changing.

    Never waits. Rooms, if any are to be locked, are locked before; VMs and users after.
    """
    if not reservation_ids:
        return []
    return [row[0] for row in fetch_rows(LOCK_SLOTS, [sorted(reservation_ids)])]


def touch(reservation_ids: Collection[int], *, now: datetime) -> None:
    """Note that users of reservations changed, so that they are validated again.

    The caller has locked them, see :func:`lock_slots`, or made them.
    """
    if reservation_ids:
        execute(TOUCH, {"ids": sorted(reservation_ids), "now": now})


def delete_users(allocation_ids: Collection[int], *, now: datetime) -> list[tuple[int, str]]:
    """Take users out of reservations; return (reservation, VM uuid) of those that were there.

    Users of a reservation that another is changing now stay, as do those of one that an evacuation
    is planned into. Rooms, if any are to be locked, are locked before.
    """
    if not allocation_ids:
        return []
    keys = sorted(allocation_ids)
    free = [row[0] for row in fetch_rows(LOCK_SLOTS_OF_USERS, [keys])]
    gone = leave_many(keys, condition=IS_FREE, parameters={"free": free})
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
    return release_many(fetch_rows(LOCK_UNUSED, [sorted(reservation_ids), free]))


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
    return shrink_many({key: sizes[key] for key in lock_slots(sizes)})


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
    return {
        row[0]
        for row in fetch_rows(
            "SELECT name FROM failover_failoverreservation WHERE name = ANY(%s)", [sorted(names)]
        )
    }


_Result = TypeVar("_Result")


def in_step(zone: str, work: Callable[[], _Result]) -> _Result:
    """Do a piece of work in a transaction under the zone lock; return what it returns.

    Inside it locks are taken in this order: rooms of hosts, reservations with the rows that
    failover keeps of them, VMs, users.

    Raises:
        Busy: the zone, or a room, stayed locked by others.
    """

    def attempt() -> _Result:
        with transaction.atomic(durable=True):
            zone_lock([zone])
            return work()

    return tried(
        attempt,
        again_after=is_retryable,
        event="failover_step_retried",
        given_up=Busy(f"zone {zone}: hosts stayed locked by others", zone=zone),
        zone=zone,
    )
