"""Reservations of every kind as objects (spec commitments, 2.2; failover, 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from bridge.domain.kinds import Naming, ObjectKind
from bridge.domain.objects import Condition, Json, Rendered, present, resources
from bridge.domain.quantities import timestamp

RESERVATION_TYPES: Final = {
    "committed": ("CommittedResourceReservation", "committed-resource"),
    "failover": ("FailoverReservation", "failover"),
    "in_flight": ("InFlightReservation", "in-flight"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """A VM in a reservation, by what of it is in there."""

    vm_uuid: str
    since: datetime
    memory_bytes: int
    vcpus: int
    confirmed_host: str
    vm_host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRow:
    """A reservation of any kind with the VMs in it.

    Attributes:
        kind: One of :data:`RESERVATION_TYPES`.
        plain_name: Its name within the region.
        commitment_uuid: Of a slot.
        last_changed_at: When the users of a failover reservation last changed.
    """

    source_id: int
    kind: str
    plain_name: str
    scheduling_domain: str
    zone: str
    memory_bytes: int
    vcpus: int
    start_time: datetime | None
    end_time: datetime | None
    target_host: str
    confirmed_host: str
    condition: Condition
    group: str
    resource_name: str = ""
    commitment_uuid: str = ""
    project_id: str = ""
    domain_id: str = ""
    creator: str = ""
    parent_generation: int = 0
    observed_parent_generation: int = 0
    creator_request_id: str = ""
    vm_uuid: str = ""
    user_id: str = ""
    intent: str = ""
    last_changed_at: datetime | None = None
    acknowledged_at: datetime | None = None
    allocations: tuple[AllocationRow, ...] = ()
    part_ids: tuple[int, ...] = ()


def render_reservation(row: ReservationRow, naming: Naming) -> Rendered:
    """Return a reservation of any type (spec commitments, 2.2; failover, 3.1)."""
    type_name, label = RESERVATION_TYPES[row.kind]
    own_spec, own_status = _PARTS[row.kind](row)
    spec = present(
        {
            "type": type_name,
            "schedulingDomain": row.scheduling_domain,
            "availabilityZone": row.zone,
            "resources": resources(memory_bytes=row.memory_bytes, vcpus=row.vcpus),
            "startTime": timestamp(row.start_time),
            "endTime": timestamp(row.end_time),
            "targetHost": row.target_host,
            **own_spec,
        }
    )
    labels = {f"reservations.{naming.group}/type": label}
    if row.kind == "failover" and row.creator:
        labels[f"{naming.group}/creator"] = row.creator
    key = f"reservations.{naming.group}/creator-request-id"
    return Rendered(
        kind=ObjectKind.RESERVATION,
        source_id=row.source_id,
        name=naming.object_name(row.plain_name),
        zone=row.zone,
        spec=spec,
        status={"host": row.confirmed_host, **own_status},
        condition=row.condition,
        labels=labels,
        annotations={key: row.creator_request_id} if row.creator_request_id else {},
        part_ids=row.part_ids,
    )


def _slot(row: ReservationRow) -> tuple[Json, Json]:
    allocations = {
        vm.vm_uuid: {
            "creationTimestamp": timestamp(vm.since),
            "resources": resources(memory_bytes=vm.memory_bytes, vcpus=vm.vcpus),
        }
        for vm in row.allocations
    }
    confirmed = {vm.vm_uuid: vm.confirmed_host for vm in row.allocations if vm.confirmed_host}
    spec: Json = {
        "resourceName": row.resource_name,
        "commitmentUUID": row.commitment_uuid,
        "resourceGroup": row.group,
        "projectID": row.project_id,
        "domainID": row.domain_id,
        "creator": row.creator,
        "parentGeneration": row.parent_generation,
        "allocations": allocations,
    }
    status = {
        "observedParentGeneration": row.observed_parent_generation,
        "allocations": confirmed,
    }
    key = "committedResourceReservation"
    return {key: present(spec)}, {key: present(status)}


def _failover(row: ReservationRow) -> tuple[Json, Json]:
    status = present(
        {
            "allocations": {vm.vm_uuid: vm.vm_host for vm in row.allocations},
            "lastChanged": timestamp(row.last_changed_at),
            "acknowledgedAt": timestamp(row.acknowledged_at),
        }
    )
    key = "failoverReservation"
    return {key: {"resourceGroup": row.group}}, present({key: status})


def _in_flight(row: ReservationRow) -> tuple[Json, Json]:
    spec = {
        "vmID": row.vm_uuid,
        "userID": row.user_id,
        "projectID": row.project_id,
        "intent": row.intent,
    }
    return {"inFlightReservation": spec}, {}


_PARTS: Final = {"committed": _slot, "failover": _failover, "in_flight": _in_flight}
