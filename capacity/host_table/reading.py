"""Reading hosts, aggregates and reservations as rows of the scheduling engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from core.prepared import fetch_prepared
from hosts.models import HostState, HostStatus, Maintenance
from journal.statements import fetch_rows
from scheduling.columns import Int64Column
from scheduling.filters import conditions_allow_placement
from scheduling.needs import NOTHING_KNOWN, Needs
from scheduling.resources import ZERO, ResourceVector
from scheduling.table_rows import HostAggregate, HostRow, ReservationRow
from scheduling.vm_keys import packed_uuids

SELECT_HOSTS = """
SELECT host.id, host.name, host.zone, host.hypervisor_type, host.traits, host.custom_traits,
       host.allowed_projects,
       host.state = %(up)s AND NOT host.is_lost AND host.status = %(enabled)s
           AND host.maintenance = ANY(%(harmless)s),
       host.conditions::text, host.cpu_arch, host.building_block, host.maintenance,
       host.aggregate_uuids, host.domain_capabilities::text,
       room.effective_memory_bytes, room.effective_vcpus,
       room.allocated_memory_bytes, room.allocated_vcpus,
       room.committed_memory_bytes, room.committed_vcpus,
       room.failover_memory_bytes, room.failover_vcpus,
       room.in_flight_memory_bytes, room.in_flight_vcpus, host.slots_held_off = '',
       (SELECT json_object_agg(
                   other.resource,
                   CASE WHEN other.is_stale THEN 0
                        ELSE other.effective_capacity - other.allocated - other.reserved END)::text
          FROM hosts_hostresource AS other
         WHERE other.host_id = host.id AND other.source <> 'unknown')
  FROM hosts_host AS host JOIN capacity_hostcapacity AS room ON room.host_id = host.id
"""
TOUCHED_HOSTS = " WHERE host.id = ANY(%(ids)s)"
NEXT_HOSTS = " WHERE host.id > %(after)s ORDER BY host.id LIMIT %(count)s"
# Apart, since it has to look at every host.
HOSTS_OF_AGGREGATES = "SELECT id FROM hosts_host WHERE aggregate_uuids && %(uuids)s::varchar[]"

SELECT_AGGREGATES = "SELECT id, uuid, name, metadata::text FROM hosts_aggregate"

SELECT_VMS = "SELECT id, host_id, openstack_id FROM hosts_instance"
VMS_OF_HOSTS = " WHERE host_id = ANY(%(ids)s)"
VMS_BETWEEN = " WHERE host_id BETWEEN %(first)s AND %(last)s"

SELECT_RESERVATIONS = """
SELECT held.id, held.kind, held.is_ready IS TRUE, held.project_id, held.flavor_group_name,
       held.zone, held.target_host_id, held.confirmed_host_id, held.memory_bytes, held.vcpus,
       held.blocked_memory_bytes, held.blocked_vcpus, held.vm_uuid, held.placement_id::text
  FROM capacity_reservation AS held
"""
SELECT_ALLOCATIONS = """
SELECT id, reservation_id, vm_uuid, memory_bytes, vcpus, state = 'expected'
  FROM capacity_reservationallocation
"""
ALLOCATIONS_OF = " WHERE reservation_id = ANY(%(ids)s)"
ALLOCATIONS_BETWEEN = " WHERE reservation_id BETWEEN %(first)s AND %(last)s"
RESERVATIONS_IN_FLIGHT = " WHERE held.kind = %(in_flight)s ORDER BY held.id"
NEXT_RESERVATIONS = """
 WHERE held.id > %(after)s AND held.kind <> %(in_flight)s ORDER BY held.id LIMIT %(count)s
"""
TOUCHED_RESERVATIONS = """
SELECT id, kind, is_ready, project_id, flavor_group_name, zone, target_host_id, confirmed_host_id,
       memory_bytes, vcpus, blocked_memory_bytes, blocked_vcpus, vm_uuid, placement_id, vms
  FROM capacity_touched_with_vms(%(ids)s::bigint[], %(host_ids)s::bigint[],
                                 %(vm_uuids)s::text[]) AS held
"""

IN_FLIGHT = "in_flight"
COMMITTED = "committed"

#: Read in one statement, where all statements see one state.
HOSTS_AT_ONCE = 5_000
RESERVATIONS_AT_ONCE = 20_000


_Row = tuple[Any, ...]  # Any: columns of several types


@lru_cache(maxsize=4096)
def _vector(memory_bytes: int, vcpus: int) -> ResourceVector:
    """Return one object for equal sizes: most reservations are of a few."""
    return ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A reservation as read; what depends on other rows is worked out from what is known of them.

    Attributes:
        columns: Columns of ``SELECT_RESERVATIONS``, others after them.
        vms: Rows of ``SELECT_ALLOCATIONS`` that belong to it.
    """

    columns: _Row
    vms: Sequence[_Row]

    @property
    def reservation_id(self) -> int:
        """Its key."""
        return int(self.columns[0])

    @property
    def in_flight_vm_uuid(self) -> str:
        """The VM that it holds in flight, empty if it is of another kind."""
        return str(self.columns[12]) if self.columns[1] == IN_FLIGHT else ""

    @property
    def expected_vm_uuids(self) -> list[str]:
        """VMs expected in it and not seen."""
        return [vm[2] for vm in self.vms if vm[5]]

    def _vm_uuids(self) -> Sequence[str]:
        if self.columns[1] == COMMITTED:
            return ()
        flight = self.in_flight_vm_uuid
        return (flight,) if flight else packed_uuids(vm[2] for vm in self.vms)

    def host_names(self, names: Mapping[int, str]) -> tuple[str, str]:
        """Return the names of its target host and of the host it is on, empty without one."""
        return names.get(self.columns[6], ""), names.get(self.columns[7], "")

    def resolved(
        self, names: Mapping[int, str], in_flight_hosts: Callable[[str], Collection[str]]
    ) -> ReservationRow:
        """Return the row of the engine.

        Expected VMs that an in-flight row holds on each of its hosts are not counted again.

        Args:
            names: Host key -> name.
            in_flight_hosts: VM uuid -> hosts that in-flight rows hold for it.

        Source: spec commitments, 10.1; spec scheduling, 16.3.
        """
        target, observed = self.host_names(names)
        expected: tuple[tuple[str, ResourceVector], ...] = ()
        if self.columns[1] == COMMITTED and target:
            hosts = {target, observed or target}
            expected = tuple(
                (vm[2], _vector(vm[3], vm[4]))
                for vm in self.vms
                if vm[5] and not hosts.issubset(in_flight_hosts(vm[2]))
            )
        key, kind, is_ready, project_id, group, zone = self.columns[:6]
        return ReservationRow(
            reservation_id=key,
            kind=sys.intern(kind),
            is_ready=is_ready,
            project_id=sys.intern(project_id),
            resource_group=sys.intern(group),
            zone=sys.intern(zone),
            target_host=target,
            observed_host=observed,
            full=_vector(self.columns[8], self.columns[9]),
            blocked=_vector(self.columns[10], self.columns[11]),
            expected_only=sum((size for _, size in expected), ZERO),
            expected_vms=expected,
            expected_memory_bytes=sum(vm[3] for vm in self.vms),
            vm_uuids=self._vm_uuids(),
            placement_id=self.columns[13] or "",
        )


def every_host(
    aggregates: Mapping[str, HostAggregate], *, in_parts: bool
) -> Iterator[tuple[list[HostRow], Int64Column]]:
    """Yield all hosts that have a capacity row, by key; see :func:`read_hosts`.

    Args:
        aggregates: Known aggregates by uuid.
        in_parts: Whether some thousands are read at once: all statements must see one state.
    """
    count = HOSTS_AT_ONCE if in_parts else None
    for rows in _by_key(SELECT_HOSTS + NEXT_HOSTS, _PLACEABLE, count):
        between = {"first": rows[0][0], "last": rows[-1][0]}
        yield _host_rows(rows, fetch_rows(SELECT_VMS + VMS_BETWEEN, between), aggregates)


def read_hosts(
    aggregates: Mapping[str, HostAggregate],
    *,
    ids: Collection[int],
    aggregate_uuids: Collection[str] = (),
) -> tuple[list[HostRow], Int64Column]:
    """Read some hosts, those that have a capacity row, by key, with the VMs on them.

    Args:
        aggregates: Known aggregates by uuid.
        ids: Hosts to read.
        aggregate_uuids: Read the hosts of these aggregates too.

    Returns:
        Hosts, and int64[V, 2], the keys of each VM and its host.
    """
    members = (
        []
        if not aggregate_uuids
        else fetch_rows(HOSTS_OF_AGGREGATES, {"uuids": sorted(aggregate_uuids)})
    )
    touched = {"ids": sorted({*ids, *(row[0] for row in members)})}
    rows = fetch_rows(SELECT_HOSTS + TOUCHED_HOSTS + " ORDER BY host.id", {**_PLACEABLE, **touched})
    return _host_rows(rows, fetch_rows(SELECT_VMS + VMS_OF_HOSTS, touched), aggregates)


def read_aggregates(ids: Collection[int] | None = None) -> dict[int, HostAggregate]:
    """Read aggregates by key; all when ``ids`` is left out."""
    statement = SELECT_AGGREGATES + ("" if ids is None else " WHERE id = ANY(%(ids)s)")
    rows = fetch_rows(statement + " ORDER BY id", {"ids": sorted(ids or ())})
    return {
        key: HostAggregate(uuid=uuid, name=name, metadata=_texts(orjson.loads(metadata)))
        for key, uuid, name, metadata in rows
    }


def every_reservation(*, in_parts: bool) -> Iterator[tuple[list[HeldRow], Int64Column]]:
    """Yield all reservations: those in flight first, then the others by key.

    See :func:`every_host` and :func:`read_reservations`.
    """
    kind = {"in_flight": IN_FLIGHT}
    rows = fetch_rows(SELECT_RESERVATIONS + RESERVATIONS_IN_FLIGHT, kind)
    listed = {"ids": [row[0] for row in rows]}
    yield _held_rows(rows, fetch_rows(SELECT_ALLOCATIONS + ALLOCATIONS_OF, listed) if rows else [])
    count = RESERVATIONS_AT_ONCE if in_parts else None
    for rows in _by_key(SELECT_RESERVATIONS + NEXT_RESERVATIONS, kind, count):
        between = {"first": rows[0][0], "last": rows[-1][0]}
        yield _held_rows(rows, fetch_rows(SELECT_ALLOCATIONS + ALLOCATIONS_BETWEEN, between))


def read_reservations(
    *, ids: Collection[int], host_ids: Collection[int] = (), vm_uuids: Collection[str] = ()
) -> tuple[list[HeldRow], Int64Column]:
    """Read some reservations by key, with the VMs in them.

    Args:
        ids: Reservations to read; for in-flight ones also those that expect their VM.
        host_ids: Read the reservations on these hosts too.
        vm_uuids: Read the reservations that list these VMs too.

    Returns:
        Reservations, and int64[V, 2], the keys of each allocation and its reservation.
    """
    if not (ids or host_ids or vm_uuids):
        return [], _pairs([])
    parameters = {"ids": sorted(ids), "host_ids": sorted(host_ids), "vm_uuids": sorted(vm_uuids)}
    rows = []
    vms: list[_Row] = []
    for *row, listed_vms in fetch_prepared(TOUCHED_RESERVATIONS + " ORDER BY held.id", parameters):
        rows.append(tuple(row))
        vms += orjson.loads(listed_vms or "[]")
    return _held_rows(rows, vms)


def is_placeable(*, is_in_service: bool, conditions: Mapping[str, object]) -> bool:
    """Return whether new VMs and slots may be placed on a host.

    A host that reports no conditions at all, as one that only Nova knows, is judged by its
    compute service and maintenance; one that reports conditions must also be Ready by them.

    Args:
        is_in_service: Service up and enabled, no maintenance that forbids new VMs.
        conditions: Condition type -> status.

    Source: spec scheduling, 7.2.
    """
    if not is_in_service or not conditions:
        return is_in_service
    return conditions_allow_placement(_texts(conditions))


_PLACEABLE: Mapping[str, Any] = {  # Any: parameters of several types
    "up": HostState.UP.value,
    "enabled": HostStatus.ENABLED.value,
    "harmless": [Maintenance.NONE.value, Maintenance.HA.value],
}


def _by_key(
    statement: str,
    parameters: Mapping[str, Any],
    count: int | None,  # Any: of several types
) -> Iterator[list[_Row]]:
    """Yield the rows of a statement about those after a key, some at once, all without a count."""
    after = 0
    while rows := fetch_rows(statement, {**parameters, "after": after, "count": count}):
        yield rows
        if count is None or len(rows) < count:
            return
        after = rows[-1][0]


def _host_rows(
    rows: Sequence[_Row], vms: Sequence[_Row], aggregates: Mapping[str, HostAggregate]
) -> tuple[list[HostRow], Int64Column]:
    vm_uuids: dict[int, list[str]] = {row[0]: [] for row in rows}
    for _, host_id, vm_uuid in vms:
        if host_id in vm_uuids:
            vm_uuids[host_id].append(vm_uuid)
    hosts = [_host_row(row, aggregates, packed_uuids(sorted(vm_uuids[row[0]]))) for row in rows]
    return hosts, _pairs([vm[:2] for vm in vms])


def _held_rows(rows: Sequence[_Row], vms: Sequence[_Row]) -> tuple[list[HeldRow], Int64Column]:
    vms_of: dict[int, list[_Row]] = {row[0]: [] for row in rows}
    own = [vm for vm in vms if vm[1] in vms_of]
    for vm in own:
        vms_of[vm[1]].append(vm)
    for listed in vms_of.values():
        listed.sort(key=itemgetter(2))
    return [HeldRow(row, vms_of[row[0]]) for row in rows], _pairs([vm[:2] for vm in own])


def _pairs(keys: Sequence[Sequence[int]]) -> Int64Column:
    return np.array(keys, dtype=np.int64).reshape(-1, 2)


def _host_row(
    row: _Row, aggregates: Mapping[str, HostAggregate], vm_uuids: Sequence[str]
) -> HostRow:
    capabilities = {} if row[13] == "{}" else orjson.loads(row[13])
    conditions = {} if row[8] == "{}" else orjson.loads(row[8])
    return HostRow(
        host_id=row[0],
        name=row[1],
        zone=row[2],
        hypervisor_type=row[3],
        traits=row[4],
        custom_traits=row[5],
        allowed_projects=row[6],
        is_ready=is_placeable(is_in_service=row[7], conditions=conditions),
        cpu_arch=row[9],
        building_block=row[10],
        maintenance=row[11],
        aggregates=tuple(aggregates.get(uuid) or HostAggregate(uuid=uuid) for uuid in row[12]),
        features=capabilities.get("features", ()),
        cpu_modes=capabilities.get("cpu_modes", ()),
        devices=capabilities.get("devices", ()),
        effective=ResourceVector(memory_bytes=row[14], vcpus=row[15]),
        allocated=ResourceVector(memory_bytes=row[16], vcpus=row[17]),
        committed=ResourceVector(memory_bytes=row[18], vcpus=row[19]),
        failover=ResourceVector(memory_bytes=row[20], vcpus=row[21]),
        in_flight=ResourceVector(memory_bytes=row[22], vcpus=row[23]),
        instances=vm_uuids,
        takes_slots=row[24],
        others_left=_others_left(row[25]),
    )


def _others_left(text: str | None) -> Needs:
    return NOTHING_KNOWN if text is None else NOTHING_KNOWN._replace(**orjson.loads(text))


def _texts(pairs: Mapping[str, object]) -> dict[str, str]:
    return {key: str(word) for key, word in pairs.items() if word is not None}
