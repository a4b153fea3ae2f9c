"""What changed in the database since a snapshot, asked in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.changes import unseen_by
from core.prepared import fetch_prepared
from core.process_cache import (
    Fingerprint,
    ProcessCache,
    fingerprint_rows,
    fingerprints_of,
)
from journal.history import MOMENT, Moment, moment_of

CHANGES = f"""
SELECT kind, key, owner, CASE kind WHEN 'now' THEN {MOMENT} ELSE word END
  FROM capacity_changes(%(xmin)s, %(xmax)s, %(running)s::bigint[], %(tables)s::text[])
"""  # noqa: S608 - constants only

HOSTS = "hosts_host"
VMS = "hosts_instance"
AGGREGATES = "hosts_aggregate"
RESERVATIONS = "capacity_reservation"
ALLOCATIONS = "capacity_reservationallocation"
_TABLES = [HOSTS, VMS, AGGREGATES, RESERVATIONS, ALLOCATIONS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Keys of the rows that the last read did not see in their present state.

    Attributes:
        moment: Of this read.
        hosts: Changed and deleted hosts.
        aggregates: Changed and deleted aggregates.
        reservations: Changed and deleted reservations.
        vm_hosts: Changed VM -> its host, None if it has none or is gone.
        vm_uuids: Changed VM -> its uuid, without those that are gone.
        allocation_owners: Changed allocation -> its reservation, None if it is gone.
        rooms: Host whose room changed -> its figures, in the order of ``CAPACITY_COLUMNS``.
        are_all: False where deletions since then may be forgotten: only a table that is built anew
            is right then.
        fingerprints: Of the caches that were asked for in the same statement, in their order.
    """

    moment: Moment
    hosts: frozenset[int]
    aggregates: frozenset[int]
    reservations: frozenset[int]
    vm_hosts: Mapping[int, int | None] = field(default_factory=dict)
    vm_uuids: Mapping[int, str] = field(default_factory=dict)
    allocation_owners: Mapping[int, int | None] = field(default_factory=dict)
    rooms: Mapping[int, Sequence[int]] = field(default_factory=dict)
    are_all: bool = True
    fingerprints: Sequence[Fingerprint] = ()

    def is_empty(self) -> bool:
        """Return whether nothing changed that the host table shows."""
        return not (
            self.hosts
            or self.rooms
            or self.aggregates
            or self.reservations
            or self.vm_hosts
            or self.allocation_owners
        )


def read_changes(since: str, beside: Sequence[ProcessCache[Any]] = ()) -> Changes:
    """Return what changed since a snapshot.

    Args:
        since: Text of the ``pg_snapshot`` of the last read.
        beside: Caches whose fingerprints are wanted as well.
    """
    kept: dict[int, tuple[object, str]] = {}
    parameters: dict[str, Any] = {**unseen_by(since), "tables": _TABLES}  # Any: several types
    found: dict[str, set[int]] = {name: set() for name in ("host", "aggregate", "reservation")}
    rooms: dict[int, Sequence[int]] = {}
    owners: dict[str, dict[int, int | None]] = {"vm": {}, "allocation": {}}
    vm_uuids: dict[int, str] = {}
    gone: dict[str, set[int]] = {name: set() for name in _TABLES}
    moment = Moment(snapshot=since)
    are_all = True
    statement = " UNION ALL ".join((CHANGES, *fingerprint_rows(beside)))
    for kind, key, owner, word in fetch_prepared(statement, parameters):
        if kind == "now":
            moment = moment_of(word)
        elif kind == "kept":
            kept[key] = (owner, word)
        elif kind == "forgotten":
            are_all = False
        elif kind == "deleted":
            gone[word].add(key)
        elif kind == "room":
            rooms[key] = [int(figure) for figure in word.split()]
        elif kind in owners:
            owners[kind][key] = owner
            if word is not None:
                vm_uuids[key] = word
        else:
            found[kind].add(key)
    return Changes(
        moment=moment,
        hosts=frozenset(found["host"] | gone[HOSTS]),
        aggregates=frozenset(found["aggregate"] | gone[AGGREGATES]),
        reservations=frozenset(found["reservation"] | gone[RESERVATIONS]),
        vm_hosts={**owners["vm"], **dict.fromkeys(gone[VMS])},
        vm_uuids=vm_uuids,
        allocation_owners={**owners["allocation"], **dict.fromkeys(gone[ALLOCATIONS])},
        rooms=rooms,
        are_all=are_all,
        fingerprints=fingerprints_of(moment, (kept[n] for n in range(len(beside)))),
    )
