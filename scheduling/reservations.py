"""Side tables of the reservations, for releasing blocks (spec scheduling, 7.11 and 14.3).

The sums per host are columns of the host table. The side tables say what of these sums a request
gets back: its project's committed slots, its VM's failover slots, its own in-flight blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from scheduling.overlaid import Overlaid
from scheduling.slot_users import SlotUsers
from scheduling.table_rows import ReservationRow

KIND_COMMITTED = "committed"
KIND_FAILOVER = "failover"
KIND_IN_FLIGHT = "in_flight"
RESERVATION_KINDS = frozenset({KIND_COMMITTED, KIND_FAILOVER, KIND_IN_FLIGHT})

_SPLICE_SHARE = 64
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
_ByKey = Mapping[tuple[str, str], tuple[ReservationRow, ...]]
_ByVM = Mapping[str, tuple[ReservationRow, ...]]
_Size = tuple[str, int, int]
_BySize = Mapping[_Size, tuple[ReservationRow, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReservationIndex:
    """All reservations by the questions that requests ask. Never changed in place.

    The tuples keep their identity as long as nothing in them changes; caches rely on it. Those of
    ``failover_of_vm`` are made when asked for.

    Attributes:
        by_id: Reservation key -> row.
        committed: (project, resource group) -> its committed slots, by key.
        failover_of_vm: VM uuid -> failover slots that list it, by key.
        failover_on: Target host -> failover slots on it, by key.
        failover_of_size: (zone, memory in bytes, vCPUs) -> failover slots of that size, by key.
        in_flight_of_vm: VM uuid -> its in-flight blocks, by key.
        in_flight: (project, resource group) -> in-flight blocks of their VMs, by key.
        slots_expecting: VM uuid -> committed slots that keep room for it and do not see it, by key.
        failover: All failover slots, by key.
        all_committed: All committed slots, by key.
    """

    by_id: Mapping[int, ReservationRow] = field(default_factory=dict)
    committed: _ByKey = field(default_factory=dict)
    failover_of_vm: SlotUsers = field(default_factory=SlotUsers)
    failover_on: _ByVM = field(default_factory=dict)
    failover_of_size: _BySize = field(default_factory=dict)
    in_flight_of_vm: _ByVM = field(default_factory=dict)
    in_flight: _ByKey = field(default_factory=dict)
    slots_expecting: _ByVM = field(default_factory=dict)
    failover: tuple[ReservationRow, ...] = ()
    all_committed: tuple[ReservationRow, ...] = ()

    @classmethod
    def from_rows(cls, rows: Iterable[ReservationRow]) -> ReservationIndex:
        """Build the side tables.

        Raises:
            ValueError: If a kind is not known or a key occurs twice.
        """
        return NO_RESERVATIONS.replace_rows(rows)

    def replace_rows(
        self, rows: Iterable[ReservationRow], *, removed: Collection[int] = ()
    ) -> ReservationIndex:
        """Return side tables with some reservations changed, added or removed.

        Args:
            rows: New state of changed and added reservations.
            removed: Keys of reservations to drop; unknown keys are ignored.

        Raises:
            ValueError: If a kind is not known or a key occurs twice.
        """
        changed = tuple(rows)
        unknown = sorted({row.kind for row in changed} - RESERVATION_KINDS)
        if unknown:
            raise ValueError(f"unknown reservation kind: {', '.join(unknown)}")
        keys = {row.reservation_id for row in changed}
        if len(keys) != len(changed) or keys.intersection(removed):
            raise ValueError("a reservation occurs twice")
        gone = [self.by_id[key] for key in sorted({*keys, *removed}) if key in self.by_id]
        fresh: dict[int, ReservationRow | None] = {row.reservation_id: row for row in changed}
        fresh.update((row.reservation_id, None) for row in gone if row.reservation_id not in keys)
        by_id = _overlaid(self.by_id).changed(fresh)
        failover = _rows_of_kind(self.failover, by_id, gone, changed, KIND_FAILOVER)
        return ReservationIndex(
            by_id=by_id,
            committed=_regrouped(self.committed, gone, changed, _committed_keys),
            failover_of_vm=_users(self.failover_of_vm, gone, changed, failover),
            failover_on=_regrouped(self.failover_on, gone, changed, _failover_hosts),
            failover_of_size=_regrouped(self.failover_of_size, gone, changed, _failover_sizes),
            in_flight_of_vm=_regrouped(self.in_flight_of_vm, gone, changed, _in_flight_vms),
            in_flight=_regrouped(self.in_flight, gone, changed, _in_flight_keys),
            slots_expecting=_regrouped(self.slots_expecting, gone, changed, _expected_vms),
            failover=failover,
            all_committed=_rows_of_kind(self.all_committed, by_id, gone, changed, KIND_COMMITTED),
        )


NO_RESERVATIONS = ReservationIndex()


def _committed_keys(row: ReservationRow) -> tuple[tuple[str, str], ...]:
    return ((row.project_id, row.resource_group),) if row.kind == KIND_COMMITTED else ()


def _failover_users(row: ReservationRow) -> Sequence[str]:
    return row.vm_uuids if row.kind == KIND_FAILOVER else ()


def _failover_hosts(row: ReservationRow) -> tuple[str, ...]:
    return (row.target_host,) if row.kind == KIND_FAILOVER else ()


def _failover_sizes(row: ReservationRow) -> tuple[_Size, ...]:
    if row.kind != KIND_FAILOVER:
        return ()
    return ((row.zone, row.full.memory_bytes, row.full.vcpus),)


def _in_flight_vms(row: ReservationRow) -> Sequence[str]:
    return row.vm_uuids if row.kind == KIND_IN_FLIGHT else ()


def _in_flight_keys(row: ReservationRow) -> tuple[tuple[str, str], ...]:
    return ((row.project_id, row.resource_group),) if row.kind == KIND_IN_FLIGHT else ()


def _expected_vms(row: ReservationRow) -> tuple[str, ...]:
    if row.kind != KIND_COMMITTED:
        return ()
    return tuple(vm_uuid for vm_uuid, _ in row.expected_vms)


def _regrouped(
    groups: Mapping[_Key, tuple[ReservationRow, ...]],
    gone: Sequence[ReservationRow],
    added: Sequence[ReservationRow],
    keys_of: Callable[[ReservationRow], Iterable[_Key]],
) -> Mapping[_Key, tuple[ReservationRow, ...]]:
    if not groups and not gone:
        return _grouped(added, keys_of) or groups
    changes = _changed_groups(groups, gone, added, keys_of)
    return _overlaid(groups).changed(changes) if changes else groups


def _users(
    users: SlotUsers,
    gone: Sequence[ReservationRow],
    added: Sequence[ReservationRow],
    failover: tuple[ReservationRow, ...],
) -> SlotUsers:
    """Return the slots of VMs after some reservations changed."""
    if not users:
        return SlotUsers(failover) if failover else users
    changes = _changed_groups(users, gone, added, _failover_users)
    return users.changed(changes, failover) if changes else users


def _changed_groups(
    groups: Mapping[_Key, tuple[ReservationRow, ...]],
    gone: Sequence[ReservationRow],
    added: Sequence[ReservationRow],
    keys_of: Callable[[ReservationRow], Iterable[_Key]],
) -> dict[_Key, tuple[ReservationRow, ...] | None]:
    """Return the groups that changed, each with its rows by key, None for those that are gone."""
    members: dict[_Key, dict[int, ReservationRow]] = {}
    for rows, is_added in ((gone, False), (added, True)):
        for row in rows:
            for key in keys_of(row):
                group = members.get(key)
                if group is None:
                    group = {one.reservation_id: one for one in groups.get(key, ())}
                    members[key] = group
                if is_added:
                    group[row.reservation_id] = row
                else:
                    group.pop(row.reservation_id, None)
    return {
        key: tuple(group[number] for number in sorted(group)) if group else None
        for key, group in members.items()
    }


def _grouped(
    rows: Sequence[ReservationRow], keys_of: Callable[[ReservationRow], Iterable[_Key]]
) -> Mapping[_Key, tuple[ReservationRow, ...]]:
    """Group all rows at once: of a large region they are millions, each in a small group."""
    members: dict[_Key, list[ReservationRow]] = {}
    for row in sorted(rows, key=_key_of):
        for key in keys_of(row):
            group = members.setdefault(key, [])
            if not group or group[-1] is not row:
                group.append(row)
    return Overlaid({key: tuple(group) for key, group in members.items()})


def _overlaid(groups: Mapping[_Key, _Value]) -> Overlaid[_Key, _Value]:
    return groups if isinstance(groups, Overlaid) else Overlaid(groups)


def _rows_of_kind(
    rows: tuple[ReservationRow, ...],
    by_id: Mapping[int, ReservationRow],
    gone: Sequence[ReservationRow],
    added: Sequence[ReservationRow],
    kind: str,
) -> tuple[ReservationRow, ...]:
    """Return the rows of one kind by key; a few changes are spliced in, many sorted in."""
    before = [row.reservation_id for row in gone if row.kind == kind]
    after = [row for row in added if row.kind == kind]
    if not before and not after:
        return rows
    if len(before) + len(after) > len(rows) // _SPLICE_SHARE:
        return tuple(by_id[number] for number in sorted(by_id) if by_id[number].kind == kind)
    spliced = list(rows)
    for number in before:
        del spliced[bisect_left(spliced, number, key=_key_of)]
    for row in after:
        insort(spliced, row, key=_key_of)
    return tuple(spliced)


def _key_of(row: ReservationRow) -> int:
    return row.reservation_id
