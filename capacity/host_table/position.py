"""One state of the host table and the step from one to the next.

Each part of a state is a function of what was read of its own rows and of what the state knows of
the others, never of a second look at the database, and is worked out again when either changes.
So reads in several statements, between which others commit, settle on the true state as soon as
those commits are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from capacity.host_table.changes import Changes, read_changes
from capacity.host_table.owners import OwnerMap
from capacity.host_table.reading import (
    IN_FLIGHT,
    HeldRow,
    every_host,
    every_reservation,
    read_aggregates,
    read_hosts,
    read_reservations,
)
from core.changes import has_one_snapshot, one_snapshot
from journal.collector import paused_collector, spare_what_was_read
from journal.history import Moment, is_continued, read_moment
from scheduling.columns import CAPACITY_COLUMNS, Int64Column
from scheduling.reservations import ReservationIndex
from scheduling.table import HostTable
from scheduling.table_rows import HostAggregate, HostRow, ReservationRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Position:
    """A host table and what is needed to bring it forward. Never changed in place.

    Attributes:
        table: The host table with its side tables.
        moment: When it was read; later changes are those that its snapshot does not show.
        host_names: Host key -> name.
        aggregates: Aggregate key -> aggregate.
        vm_hosts: VM key -> host key.
        allocation_owners: Allocation key -> reservation key.
        hosts_ahead: Hosts whose list of VMs was read newer than ``vm_hosts``: a VM may have come
            and be gone again before the next look, which would then not say from where.
        reservations_ahead: Likewise for reservations and the VMs in them.
    """

    table: HostTable
    moment: Moment
    host_names: Mapping[int, str]
    aggregates: Mapping[int, HostAggregate]
    vm_hosts: OwnerMap
    allocation_owners: OwnerMap
    hosts_ahead: frozenset[int] = frozenset()
    reservations_ahead: frozenset[int] = frozenset()


@paused_collector()
@one_snapshot()
def load_position(moment: Moment) -> Position:
    """Read everything."""
    in_parts = has_one_snapshot()
    aggregates = read_aggregates()
    hosts: list[HostRow] = []
    vm_pairs: list[Int64Column] = []
    for some, pairs in every_host(_by_uuid(aggregates), in_parts=in_parts):
        hosts += some
        vm_pairs.append(pairs)
    host_names = {row.host_id: row.name for row in hosts}
    table = HostTable.from_rows(hosts)
    hosts.clear()
    reservations, allocation_owners = _every_reservation(host_names, in_parts=in_parts)
    return Position(
        table=table.with_reservations(reservations),
        moment=moment,
        host_names=host_names,
        aggregates=aggregates,
        vm_hosts=OwnerMap.from_pairs(vm_pairs),
        allocation_owners=allocation_owners,
    )


def load_to_keep() -> Position:
    """Read everything as of now, for a process that goes on from there."""
    position = load_position(read_moment())
    spare_what_was_read(len(position.table) + len(position.table.reservations.by_id))
    return position


def _every_reservation(
    host_names: Mapping[int, str], *, in_parts: bool
) -> tuple[ReservationIndex, OwnerMap]:
    """Read all reservations; in parts, only some thousands as read are there at once."""
    rows: list[ReservationRow] = []
    owners: list[Int64Column] = []
    in_flight_hosts = None
    for held, pairs in every_reservation(in_parts=in_parts):
        if in_flight_hosts is None:
            in_flight_hosts = _InFlightHosts.of_rows((), held, host_names)
        rows += _resolved(held, host_names, in_flight_hosts)
        owners.append(pairs)
    return ReservationIndex.from_rows(rows), OwnerMap.from_pairs(owners)


def newest_after(position: Position) -> Position:
    """Return the position as of now, including the caller's own uncommitted writes.

    Costs what changed since; all, where the log of deletions does not reach back so far, or the
    database is not the one that the position was read from.
    """
    return following(position, read_changes(position.moment.snapshot))


def following(position: Position, changes: Changes) -> Position:
    """Return the position as of some changes, or later; see :func:`newest_after`."""
    if changes.are_all and is_continued(position.moment, changes.moment, reader="host_table"):
        return advance(position, changes)
    return load_to_keep()


def advance(position: Position, changes: Changes) -> Position:
    """Return the position after some changes; costs the changes and not the region."""
    if changes.is_empty() and not (position.hosts_ahead or position.reservations_ahead):
        return replace(position, moment=changes.moment)
    following = replace(
        position,
        moment=changes.moment,
        vm_hosts=position.vm_hosts.updated(changes.vm_hosts),
        allocation_owners=position.allocation_owners.updated(changes.allocation_owners),
    )
    following, renamed = _with_hosts(position, changes, following)
    return _with_reservations(position, changes, following, renamed)


def _with_hosts(
    position: Position, changes: Changes, following: Position
) -> tuple[Position, frozenset[int]]:
    """Return the following position with its hosts, and those that are new, renamed or gone."""
    aggregates, aggregate_uuids = _new_aggregates(position, changes.aggregates)
    touched = changes.hosts | _hosts_of_vms(position, changes) | position.hosts_ahead
    rooms = {key: figures for key, figures in changes.rooms.items() if key not in touched}
    table, unknown = _with_rooms(position, rooms)
    touched |= unknown
    if not touched and not aggregate_uuids:
        return replace(following, table=table, aggregates=aggregates), frozenset()
    hosts, vm_pairs = read_hosts(_by_uuid(aggregates), ids=touched, aggregate_uuids=aggregate_uuids)
    touched |= {row.host_id for row in hosts}
    removed = _removed_names(position, touched, hosts)
    host_names, renamed = _new_host_names(position, touched, hosts)
    hosts_ahead = following.vm_hosts.owners_elsewhere(vm_pairs)
    return replace(
        following,
        table=table.replace_rows(hosts, removed=removed),
        aggregates=aggregates,
        host_names=host_names,
        hosts_ahead=hosts_ahead,
    ), renamed


def _with_rooms(
    position: Position, rooms: Mapping[int, Sequence[int]]
) -> tuple[HostTable, frozenset[int]]:
    """Return the table with new figures of room, and the hosts of which more must be read."""
    table, names = position.table, position.host_names
    rows = {key: table.row_of[names[key]] for key in sorted(rooms) if key in names}
    rows = {key: row for key, row in rows.items() if table.host_ids[row] == key}
    if rows:
        figures = zip(*(rooms[key] for key in rows), strict=True)
        columns = dict(zip(CAPACITY_COLUMNS, figures, strict=True))
        table = table.replace_columns(list(rows.values()), columns)
    return table, frozenset(rooms) - rows.keys()


def _with_reservations(
    position: Position, changes: Changes, following: Position, renamed: Collection[int]
) -> Position:
    """Return the following position with its reservations."""
    owners = {position.allocation_owners.owner_of(key) for key in changes.allocation_owners}
    owners |= set(changes.allocation_owners.values())
    touched = changes.reservations | position.reservations_ahead
    touched |= {key for key in owners if key is not None}
    if not touched and not renamed:
        return following
    index = position.table.reservations
    before = [index.by_id[key] for key in touched if key in index.by_id]
    vm_uuids = {uuid for row in before if row.kind == IN_FLIGHT for uuid in row.vm_uuids}
    held, pairs = read_reservations(ids=touched, host_ids=renamed, vm_uuids=vm_uuids)
    moved = _moved_vms(index, held, following.host_names) - vm_uuids
    if moved:  # slots that expect them were told of another place
        held, pairs = read_reservations(ids=touched, host_ids=renamed, vm_uuids=vm_uuids | moved)
    fresh = _new_index(index, touched, held, following.host_names)
    return replace(
        following,
        table=following.table.with_reservations(fresh),
        reservations_ahead=following.allocation_owners.owners_elsewhere(pairs),
    )


def _moved_vms(
    index: ReservationIndex, held: Iterable[HeldRow], host_names: Mapping[int, str]
) -> set[str]:
    """Return the VMs of in-flight rows that are held elsewhere than the side tables say.

    That is so for rows whose host got another name, and for rows that were read with others and
    are newer than the changes that were asked for.
    """
    moved: set[str] = set()
    for one in held:
        known = index.by_id.get(one.reservation_id)
        vm_uuid = one.in_flight_vm_uuid
        if known is None or not vm_uuid:
            continue
        hosts = {name for name in one.host_names(host_names) if name}
        if set(known.hosts()) != hosts or tuple(known.vm_uuids) != (vm_uuid,):
            moved |= {vm_uuid, *known.vm_uuids}
    return moved


def _by_uuid(aggregates: Mapping[int, HostAggregate]) -> Mapping[str, HostAggregate]:
    return {aggregate.uuid: aggregate for aggregate in aggregates.values()}


def _new_aggregates(
    position: Position, touched: Collection[int]
) -> tuple[Mapping[int, HostAggregate], frozenset[str]]:
    """Return the aggregates, and the uuids of those whose hosts must be looked at again."""
    if not touched:
        return position.aggregates, frozenset()
    fresh = read_aggregates(touched)
    before = {key: position.aggregates[key] for key in touched if key in position.aggregates}
    kept = {key: row for key, row in position.aggregates.items() if key not in before}
    changed_keys = [key for key in touched if before.get(key) != fresh.get(key)]
    uuids = {side[key].uuid for key in changed_keys for side in (before, fresh) if key in side}
    return {**kept, **fresh}, frozenset(uuids)


def _hosts_of_vms(position: Position, changes: Changes) -> set[int]:
    """Return the hosts whose lists of VMs changed: where changed VMs were and where they are."""
    touched: set[int] = set()
    for key, host_id in changes.vm_hosts.items():
        before = position.vm_hosts.owner_of(key)
        if before == host_id and _is_listed(position, host_id, changes.vm_uuids.get(key, "")):
            continue
        touched.update(owner for owner in (before, host_id) if owner is not None)
    return touched


def _is_listed(position: Position, host_id: int | None, vm_uuid: str) -> bool:
    """Return whether the table already lists a VM on one host and on no other."""
    rows = position.table.instance_index.rows_of(vm_uuid)
    if host_id is None:
        return not rows
    row = position.table.row_of.get(position.host_names.get(host_id, ""))
    return rows == (row,)


def _removed_names(
    position: Position, touched: Iterable[int], fresh: Iterable[HostRow]
) -> frozenset[str]:
    """Return the names that no host bears any more: of deleted hosts, and of renamed ones."""
    table = position.table
    names = set()
    for key in touched:
        name = position.host_names.get(key)
        row = None if name is None else table.row_of.get(name)
        if name is not None and row is not None and table.host_ids[row] == key:
            names.add(name)
    return frozenset(names) - {row.name for row in fresh}


def _new_host_names(
    position: Position, touched: Iterable[int], fresh: Iterable[HostRow]
) -> tuple[Mapping[int, str], frozenset[int]]:
    """Return the names, and the hosts that are new, renamed or gone."""
    names = {row.host_id: row.name for row in fresh}
    changed = {
        key for key in {*touched, *names} if names.get(key, "") != position.host_names.get(key, "")
    }
    if not changed:
        return position.host_names, frozenset()
    kept = {key: name for key, name in position.host_names.items() if key not in changed}
    kept.update((key, names[key]) for key in sorted(changed) if key in names)
    return kept, frozenset(changed)


def _new_index(
    index: ReservationIndex,
    touched: Collection[int],
    held: Sequence[HeldRow],
    host_names: Mapping[int, str],
) -> ReservationIndex:
    """Return the side tables after the touched reservations, and what else was read with them."""
    read = {one.reservation_id for one in held}
    known = (
        row
        for one in held
        for vm_uuid in one.expected_vm_uuids
        for row in index.in_flight_of_vm.get(vm_uuid, ())
        if row.reservation_id not in read and row.reservation_id not in touched
    )
    rows = _resolved(held, host_names, _InFlightHosts.of_rows(known, held, host_names))
    changed = [row for row in rows if index.by_id.get(row.reservation_id) != row]
    removed = [key for key in touched if key not in read and key in index.by_id]
    if not changed and not removed:
        return index
    return index.replace_rows(changed, removed=removed)


@dataclass(frozen=True, slots=True)
class _InFlightHosts:
    """Hosts that in-flight rows hold, by VM."""

    by_vm: Mapping[str, frozenset[str]]

    @classmethod
    def of_rows(
        cls,
        known: Iterable[ReservationRow],
        held: Iterable[HeldRow],
        host_names: Mapping[int, str],
    ) -> _InFlightHosts:
        """Collect the hosts of in-flight rows known before and just read."""
        hosts: dict[str, set[str]] = {}
        for row in known:
            for vm_uuid in row.vm_uuids:
                hosts.setdefault(vm_uuid, set()).update(row.hosts())
        for one in held:
            vm_uuid = one.in_flight_vm_uuid
            if vm_uuid:
                hosts.setdefault(vm_uuid, set()).update(one.host_names(host_names))
        return cls({vm_uuid: frozenset(names) for vm_uuid, names in hosts.items()})

    def __call__(self, vm_uuid: str) -> frozenset[str]:
        return self.by_vm.get(vm_uuid, frozenset())


def _resolved(
    held: Iterable[HeldRow], host_names: Mapping[int, str], in_flight_hosts: _InFlightHosts
) -> list[ReservationRow]:
    return [one.resolved(host_names, in_flight_hosts) for one in held]
