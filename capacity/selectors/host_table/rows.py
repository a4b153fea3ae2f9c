"""Reading hosts, aggregates and reservations as rows of the scheduling engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from django.db import connection

from hosts.models import HostState, HostStatus, Maintenance
from scheduling.filters import conditions_allow_placement
from scheduling.resources import ZERO, ResourceVector
from scheduling.rows import HostAggregate, HostRow, ReservationRow

SELECT_HOSTS = """
SELECT host.id, host.name, host.zone, host.hypervisor_type, host.traits, host.custom_traits,
       host.allowed_projects,
       host.state = %(up)s AND host.status = %(enabled)s AND host.maintenance = ANY(%(harmless)s),
       host.conditions::text, host.cpu_arch, host.building_block, host.maintenance,
       host.aggregate_uuids, host.domain_capabilities::text,
       room.effective_memory_bytes, room.effective_vcpus,
       room.allocated_memory_bytes, room.allocated_vcpus,
       room.committed_memory_bytes, room.committed_vcpus,
       room.failover_memory_bytes, room.failover_vcpus,
       room.in_flight_memory_bytes, room.in_flight_vcpus,
       ARRAY(SELECT vm.openstack_id FROM hosts_instance AS vm
              WHERE vm.host_id = host.id ORDER BY vm.openstack_id)
  FROM hosts_host AS host JOIN capacity_hostcapacity AS room ON room.host_id = host.id
"""
TOUCHED_HOSTS = " WHERE host.id = ANY(%(ids)s) OR host.aggregate_uuids && %(uuids)s::varchar[]"

SELECT_AGGREGATES = "SELECT id, uuid, name, metadata::text FROM hosts_aggregate"

SELECT_RESERVATIONS = """
SELECT held.id, held.kind, held.is_ready IS TRUE, held.project_id, held.flavor_group_name,
       held.zone, held.target_host_id, held.confirmed_host_id, held.memory_bytes, held.vcpus,
       held.blocked_memory_bytes, held.blocked_vcpus, held.vm_uuid, held.placement_id::text,
       vms.uuids, vms.memory_bytes, vms.vcpus, vms.is_expected
  FROM capacity_reservation AS held
  LEFT JOIN LATERAL (
       SELECT array_agg(vm.vm_uuid ORDER BY vm.vm_uuid) AS uuids,
              array_agg(vm.memory_bytes ORDER BY vm.vm_uuid) AS memory_bytes,
              array_agg(vm.vcpus ORDER BY vm.vm_uuid) AS vcpus,
              array_agg(vm.state = 'expected' ORDER BY vm.vm_uuid) AS is_expected
         FROM capacity_reservationallocation AS vm WHERE vm.reservation_id = held.id
       ) AS vms ON true
"""
# Whatever an in-flight row says of a VM decides how the slots that expect it count it.
TOUCHED_RESERVATIONS = """
 WHERE held.id IN (
       SELECT unnest(%(ids)s::bigint[])
        UNION
       SELECT id FROM capacity_reservation WHERE target_host_id = ANY(%(host_ids)s)
        UNION
       SELECT id FROM capacity_reservation WHERE confirmed_host_id = ANY(%(host_ids)s)
        UNION
       SELECT reservation_id FROM capacity_reservationallocation
        WHERE vm_uuid = ANY(%(vm_uuids)s)
        UNION
       SELECT vm.reservation_id
         FROM capacity_reservation AS moving
         JOIN capacity_reservationallocation AS vm ON vm.vm_uuid = moving.vm_uuid
        WHERE moving.id = ANY(%(ids)s) AND moving.kind = 'in_flight')
"""

IN_FLIGHT = "in_flight"
COMMITTED = "committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedVm:
    """A VM that was placed into a slot and not seen there yet."""

    vm_uuid: str
    resources: ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """A reservation as read; what depends on other rows is worked out from what is known of them.

    Attributes:
        row: The reservation, its hosts and ``expected_only`` still empty.
        target_host_id: Key of its target host.
        confirmed_host_id: Key of the host it is on.
        expected: VMs expected in it.
    """

    row: ReservationRow
    target_host_id: int | None
    confirmed_host_id: int | None
    expected: tuple[ExpectedVm, ...]

    def resolved(
        self, host_names: Mapping[int, str], in_flight_hosts: Callable[[str], Collection[str]]
    ) -> ReservationRow:
        """Return the row of the engine.

        Expected VMs that an in-flight row holds on each of its hosts are not counted again.

        Args:
            host_names: Host key -> name.
            in_flight_hosts: VM uuid -> hosts that in-flight rows hold for it.

        Source: spec commitments, 10.1; spec scheduling, 16.3.
        """
        target = _name_of(self.target_host_id, host_names)
        observed = _name_of(self.confirmed_host_id, host_names)
        hosts = {name for name in (target, observed) if name}
        expected_only = ZERO
        if self.row.kind == COMMITTED and hosts:
            for vm in self.expected:
                if not hosts.issubset(in_flight_hosts(vm.vm_uuid)):
                    expected_only += vm.resources
        return replace(
            self.row, target_host=target, observed_host=observed, expected_only=expected_only
        )


def read_hosts(
    aggregates: Mapping[str, HostAggregate],
    *,
    ids: Collection[int] | None = None,
    aggregate_uuids: Collection[str] = (),
) -> list[HostRow]:
    """Read hosts that have a capacity row, by key.

    Args:
        aggregates: Known aggregates by uuid.
        ids: Hosts to read; all when left out.
        aggregate_uuids: Read the hosts of these aggregates too.
    """
    parameters: dict[str, Any] = {  # Any: parameters of several types
        "up": HostState.UP.value,
        "enabled": HostStatus.ENABLED.value,
        "harmless": [Maintenance.NONE.value, Maintenance.HA.value],
    }
    statement = SELECT_HOSTS
    if ids is not None:
        statement += TOUCHED_HOSTS
        parameters |= {"ids": sorted(ids), "uuids": sorted(aggregate_uuids)}
    return [
        _host_row(row, aggregates) for row in _fetch(statement + " ORDER BY host.id", parameters)
    ]


def read_aggregates(ids: Collection[int] | None = None) -> dict[int, HostAggregate]:
    """Read aggregates by key; all when ``ids`` is left out."""
    statement = SELECT_AGGREGATES + ("" if ids is None else " WHERE id = ANY(%(ids)s)")
    rows = _fetch(statement + " ORDER BY id", {"ids": sorted(ids or ())})
    return {
        key: HostAggregate(uuid=uuid, name=name, metadata=_texts(orjson.loads(metadata)))
        for key, uuid, name, metadata in rows
    }


def read_reservations(
    *,
    ids: Collection[int] | None = None,
    host_ids: Collection[int] = (),
    vm_uuids: Collection[str] = (),
) -> list[HeldRow]:
    """Read reservations by key.

    Args:
        ids: Reservations to read; all when left out. For in-flight ones also those that expect
            their VM.
        host_ids: Read the reservations on these hosts too.
        vm_uuids: Read the reservations that list these VMs too.
    """
    statement, parameters = SELECT_RESERVATIONS, {}
    if ids is not None:
        statement += TOUCHED_RESERVATIONS
        parameters = {
            "ids": sorted(ids),
            "host_ids": sorted(host_ids),
            "vm_uuids": sorted(vm_uuids),
        }
    return [_held_row(row) for row in _fetch(statement + " ORDER BY held.id", parameters)]


def read_pairs(table: str, child: str, owner: str) -> Iterable[tuple[int, int]]:
    """Read the keys of all rows that have an owner, with the owner's key."""
    statement = f"SELECT {child}, {owner} FROM {table} WHERE {owner} IS NOT NULL"  # noqa: S608 - names from code
    return _fetch(statement, {})


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


def _host_row(row: Sequence[Any], aggregates: Mapping[str, HostAggregate]) -> HostRow:
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
        instances=row[24],
    )


def _held_row(row: Sequence[Any]) -> HeldRow:
    vm_uuids, vm_memory, vm_vcpus, is_expected = (column or () for column in row[14:18])
    return HeldRow(
        row=ReservationRow(
            reservation_id=row[0],
            kind=row[1],
            is_ready=row[2],
            project_id=row[3],
            resource_group=row[4],
            zone=row[5],
            full=ResourceVector(memory_bytes=row[8], vcpus=row[9]),
            blocked=ResourceVector(memory_bytes=row[10], vcpus=row[11]),
            expected_memory_bytes=sum(vm_memory),
            vm_uuids=((row[12],) if row[12] else ()) if row[1] == IN_FLIGHT else tuple(vm_uuids),
            placement_id=row[13] or "",
        ),
        target_host_id=row[6],
        confirmed_host_id=row[7],
        expected=tuple(
            ExpectedVm(
                vm_uuid=vm_uuid,
                resources=ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus),
            )
            for vm_uuid, memory_bytes, vcpus, is_only_expected in zip(
                vm_uuids, vm_memory, vm_vcpus, is_expected, strict=True
            )
            if is_only_expected
        ),
    )


def _fetch(statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def _name_of(host_id: int | None, host_names: Mapping[int, str]) -> str:
    return "" if host_id is None else host_names.get(host_id, "")


def _texts(pairs: Mapping[str, object]) -> dict[str, str]:
    return {key: str(word) for key, word in pairs.items() if word is not None}
