"""Rows as objects of Kubernetes (spec commitments, 2 and 13.1; failover, 3.1; liquid, 13.1, 14.1).

An object is rendered whole: server-side apply removes what an earlier one had and this one lacks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from bridge.domain.kinds import Kind, Naming
from bridge.domain.quantities import memory_quantity, timestamp

#: Times that move though nothing else does: sent along with other changes, never by themselves.
MOVING: Final = frozenset({"lastReconcileAt", "lastUsageReconcileAt", "lastFullReconcileAt"})
RESERVATION_TYPES: Final = {
    "committed": ("CommittedResourceReservation", "committed-resource"),
    "failover": ("FailoverReservation", "failover"),
    "in_flight": ("InFlightReservation", "in-flight"),
}

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
TRUTHS: Final = {"True": True, "False": False}
#: What Kubernetes takes as the value of a label; there are no labels of other values.
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

Json = dict[str, Any]  # Any: what JSON holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The Ready condition of a row; nothing is written while ``status`` is None.

    Attributes:
        is_current: Whether it is about the present spec, as far as the row says.
        changed_at: Of the last transition.
        is_latest: The row keeps no such time: it is at the latest when it was written last. What
            was told of the same status before is true then.
    """

    status: bool | None
    reason: str
    message: str
    changed_at: datetime
    is_current: bool = True
    is_latest: bool = False


#: Status of each condition and the time of its last transition, as they were told.
Transitions = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What a row should look like in its cluster, but for what only the cluster knows.

    Attributes:
        name: In the cluster.
        zone: Decides which cluster; empty where any may hold it.
        status: Without conditions.
        condition: That of the type Ready.
        others: Further conditions by their types.
        has_current_usage: Whether usage was counted for the present spec; None where there is none.
        part_ids: Keys of dependent rows that went into it.
    """

    kind: Kind
    source_id: int
    name: str
    zone: str
    spec: Json
    status: Json
    condition: Condition
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    has_current_usage: bool | None = None
    part_ids: tuple[int, ...] = ()
    others: Mapping[str, Condition] = field(default_factory=dict)

    @property
    def spec_digest(self) -> str:
        """Tells whether anything but the status changed."""
        return digest([self.spec, dict(self.labels), dict(self.annotations)])

    def manifest(self, naming: Naming) -> Json:
        """Return the object without its status, as it is applied."""
        metadata: Json = {
            "name": self.name,
            "labels": {**self.labels, naming.managed_label: naming.region_value},
        }
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        return {
            "apiVersion": naming.api_version,
            "kind": self.kind.value,
            "metadata": metadata,
            "spec": self.spec,
        }

    def whole_status(
        self, generation: int, observed: int | None, told: Transitions | None = None
    ) -> Json:
        """Return the status with its conditions.

        Generations are the cluster's: what the row calls so counts other changes. Those that wait
        for a condition compare it with ``metadata.generation``.

        Args:
            generation: The object's, after its spec was applied.
            observed: The generation that the condition was about when it was last written.
            told: Transitions that were written before.
        """
        status = dict(self.status)
        if self.has_current_usage:
            status["usageObservedGeneration"] = generation
        if self.condition.status is None:
            return status
        seen = generation if self.condition.is_current else observed
        conditions = [
            _condition(type_name, condition, (told or {}).get(type_name))
            for type_name, condition in {"Ready": self.condition, **self.others}.items()
        ]
        if seen is not None:
            status["observedGeneration"] = seen
            for condition in conditions:
                condition["observedGeneration"] = seen
        return {**status, "conditions": conditions}


def _condition(type_name: str, condition: Condition, told: list[str] | None) -> Json:
    status = "Unknown" if condition.status is None else str(condition.status)
    is_told = condition.is_latest and told is not None and told[0] == status
    return {
        "type": type_name,
        "status": status,
        "reason": condition.reason or "Unknown",
        "message": condition.message,
        "lastTransitionTime": told[1] if is_told and told else timestamp(condition.changed_at),
    }


def transitions(status: Json) -> dict[str, list[str]]:
    """Return what a status tells of transitions."""
    return {
        each["type"]: [each["status"], each["lastTransitionTime"]]
        for each in status.get("conditions", ())
    }


def digest(document: Any) -> str:  # Any: what JSON holds
    """Return what tells two documents apart, but for times that move on their own."""
    text = json.dumps(_still(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _still(value: Any) -> Any:  # Any: what JSON holds
    if isinstance(value, dict):
        return {key: _still(each) for key, each in value.items() if key not in MOVING}
    if isinstance(value, list):
        return [_still(each) for each in value]
    return value


def present(document: Mapping[str, Any]) -> Json:
    """Return what is known of a document: no field without a value, and no empty map.

    Server-side apply makes null of a map that had keys and has none; of a list that is a map, too.
    """
    return {key: value for key, value in document.items() if value is not None and value != {}}


def resources(*, memory_bytes: int, vcpus: int, cpu_key: str = "cpu") -> Json:
    """Return an amount as a map of quantities."""
    return {"memory": memory_quantity(memory_bytes), cpu_key: str(vcpus)}


def amount_quantity(resource_type: str, amount: int) -> str:
    """Return the amount of a commitment: bytes with a suffix, or cores."""
    return memory_quantity(amount) if resource_type == "memory" else str(amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentRow:
    """A commitment with what covers it; amounts are bytes or cores.

    Attributes:
        accepted_spec: As the platform stores it: keys as in Kubernetes, amounts as numbers.
        vm_uuids: Covered VMs in order.
    """

    source_id: int
    uuid: str
    scheduling_domain: str
    group: str
    resource_type: str
    amount: int
    zone: str
    project_id: str
    domain_id: str
    start_time: datetime | None
    end_time: datetime | None
    confirmed_at: datetime | None
    state: str
    allow_rejection: bool
    creator_request_id: str
    accepted_spec: Mapping[str, Any] | None
    accepted_at: datetime | None
    last_reconcile_at: datetime | None
    used_memory_bytes: int
    used_vcpus: int
    last_usage_reconcile_at: datetime | None
    has_current_usage: bool | None
    summary: str
    condition: Condition
    vm_uuids: tuple[str, ...] = ()
    part_ids: tuple[int, ...] = ()


def render_commitment(row: CommitmentRow, naming: Naming) -> Rendered:
    """Return a commitment as a CommittedResource (spec commitments, 2.1)."""
    spec = present(
        {
            "commitmentUUID": row.uuid,
            "schedulingDomain": row.scheduling_domain,
            "flavorGroupName": row.group,
            "resourceType": row.resource_type,
            "amount": amount_quantity(row.resource_type, row.amount),
            "availabilityZone": row.zone,
            "projectID": row.project_id,
            "domainID": row.domain_id,
            "startTime": timestamp(row.start_time),
            "endTime": timestamp(row.end_time),
            "confirmedAt": timestamp(row.confirmed_at),
            "state": row.state,
            "allowRejection": row.allow_rejection,
        }
    )
    status = present(
        {
            "acceptedSpec": _accepted(row.accepted_spec),
            "acceptedAt": timestamp(row.accepted_at),
            "lastReconcileAt": timestamp(row.last_reconcile_at),
            "assignedInstances": list(row.vm_uuids),
            "usedResources": resources(memory_bytes=row.used_memory_bytes, vcpus=row.used_vcpus),
            "lastUsageReconcileAt": timestamp(row.last_usage_reconcile_at),
            "statusSummary": row.summary,
        }
    )
    key = f"reservations.{naming.group}/creator-request-id"
    return Rendered(
        kind=Kind.COMMITTED_RESOURCE,
        source_id=row.source_id,
        name=naming.object_name(f"commitment-{row.uuid}"),
        zone=row.zone,
        spec=spec,
        status=status,
        condition=row.condition,
        annotations={key: row.creator_request_id} if row.creator_request_id else {},
        has_current_usage=row.has_current_usage,
        part_ids=row.part_ids,
    )


_ACCEPTED_TIMES: Final = ("startTime", "endTime", "confirmedAt")
_ACCEPTED_TEXTS: Final = (
    "commitmentUUID",
    "schedulingDomain",
    "flavorGroupName",
    "resourceType",
    "availabilityZone",
    "projectID",
    "domainID",
    "state",
    "allowRejection",
)


def _accepted(stored: Mapping[str, Any] | None) -> Json | None:
    """Return the accepted spec with the fields that the schema knows; None when there is none."""
    if stored is None:
        return None
    found = {key: stored.get(key) for key in _ACCEPTED_TEXTS}
    for key in _ACCEPTED_TIMES:
        if stored.get(key):
            found[key] = timestamp(datetime.fromisoformat(str(stored[key])))
    if (amount := stored.get("amount")) is not None:
        found["amount"] = amount_quantity(str(stored.get("resourceType")), int(amount))
    return present(found)


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
        kind=Kind.RESERVATION,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorRow:
    """How many VMs of a flavor fit in a zone."""

    name: str
    placeable_hosts: int
    placeable_vms: int
    total_hosts: int
    total_vm_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """Capacity of a flavor group in a zone; pairs are bytes of memory and vCPUs.

    Attributes:
        total: Its vCPUs are None while they were not probed.
        flavors: In order of their names.
    """

    source_id: int
    plain_name: str
    group: str
    zone: str
    smallest_flavor: str
    total: tuple[int, int | None]
    free: tuple[int, int]
    exclusively_free: tuple[int, int]
    exclusively_free_slots: int
    running_instances: int
    running: tuple[int, int]
    committed_slots: int
    committed_memory_bytes: int
    computed_at: datetime | None
    condition: Condition
    flavors: tuple[FlavorRow, ...] = ()


def render_capacity(row: CapacityRow, naming: Naming) -> Rendered:
    """Return the capacity of a group (spec commitments, 2.4; liquid, 13.1)."""
    status = present(
        {
            "flavors": [
                {
                    "flavorName": flavor.name,
                    "placeableHosts": flavor.placeable_hosts,
                    "placeableVms": flavor.placeable_vms,
                    "totalCapacityHosts": flavor.total_hosts,
                    "totalCapacityVmSlots": flavor.total_vm_slots,
                }
                for flavor in row.flavors
            ]
            or None,
            "committedCapacity": row.committed_slots,
            "committedCapacityBytes": row.committed_memory_bytes,
            "smallestFlavorName": row.smallest_flavor,
            "totalCapacity": _memory_and_cores(row.total),
            "freeCapacity": _memory_and_cores(row.free),
            "exclusivelyFreeCapacity": _memory_and_cores(row.exclusively_free),
            "exclusivelyFreeSlots": row.exclusively_free_slots,
            "runningInstances": row.running_instances,
            "runningResources": _memory_and_cores(row.running),
            "lastReconcileAt": timestamp(row.computed_at),
        }
    )
    return Rendered(
        kind=Kind.FLAVOR_GROUP_CAPACITY,
        source_id=row.source_id,
        name=naming.object_name(row.plain_name),
        zone=row.zone,
        spec={"flavorGroup": row.group, "availabilityZone": row.zone},
        status=status,
        condition=row.condition,
    )


def _memory_and_cores(pair: tuple[int, int | None]) -> Json:
    memory_bytes, cores = pair
    found = {"memory": memory_quantity(memory_bytes)}
    return found if cores is None else {**found, "cores": str(cores)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """A project's quota in a zone; maps of LIQUID names to amounts, memory in GiB."""

    source_id: int
    plain_name: str
    project_id: str
    project_name: str
    domain_id: str
    domain_name: str
    zone: str
    quota: Mapping[str, int]
    total_usage: Mapping[str, int]
    payg_usage: Mapping[str, int]
    total_usage_summary: str
    payg_usage_summary: str
    limes_usage_summary: str
    limes_quota_summary: str
    last_reconcile_at: datetime | None
    last_full_reconcile_at: datetime | None
    condition: Condition


def render_quota(row: QuotaRow, naming: Naming) -> Rendered:
    """Return a project's quota in a zone (spec commitments, 2.5; liquid, 14.1)."""
    return Rendered(
        kind=Kind.PROJECT_QUOTA,
        source_id=row.source_id,
        name=naming.object_name(row.plain_name),
        zone=row.zone,
        spec=present(
            {
                "projectID": row.project_id,
                "projectName": row.project_name,
                "domainID": row.domain_id,
                "domainName": row.domain_name,
                "availabilityZone": row.zone,
                "quota": dict(row.quota),
            }
        ),
        status=present(
            {
                "totalUsage": dict(row.total_usage),
                "paygUsage": dict(row.payg_usage),
                "totalUsageSummary": row.total_usage_summary,
                "paygUsageSummary": row.payg_usage_summary,
                "limesUsageSummary": row.limes_usage_summary,
                "limesQuotaSummary": row.limes_quota_summary,
                "lastReconcileAt": timestamp(row.last_reconcile_at),
                "lastFullReconcileAt": timestamp(row.last_full_reconcile_at),
            }
        ),
        condition=row.condition,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A hypervisor; pairs are bytes of memory and vCPUs.

    Attributes:
        ratios: Of memory, vCPUs and disk, as decimal numbers.
        held: Held room by who holds it: ``committed``, ``failover``, ``inFlight``.
        instances: Id, name and whether it runs, of each VM, in order of the ids.
        reported: Condition types of the host itself -> ``True``, ``False`` or ``Unknown``.
        changed_at: When the row was written last.
    """

    source_id: int
    name: str
    plain_name: str
    zone: str
    building_block: str
    is_enabled: bool
    disabled_reason: str
    maintenance: str
    custom_traits: tuple[str, ...]
    aggregate_uuids: tuple[str, ...]
    allowed_projects: tuple[str, ...]
    ratios: tuple[str, str, str]
    openstack_id: str
    service_id: str
    provider_uuid: str
    hypervisor_type: str
    cpu_arch: str
    state: str
    down_since: datetime | None
    terminating_since: datetime | None
    traits: tuple[str, ...]
    total: tuple[int, int]
    effective: tuple[int, int]
    allocated: tuple[int, int]
    held: Mapping[str, tuple[int, int]]
    instances: tuple[tuple[str, str, bool], ...]
    condition: Condition
    reported: Mapping[str, str]
    changed_at: datetime
    part_ids: tuple[int, ...] = ()


def render_host(row: HostRow, naming: Naming) -> Rendered:
    """Return a hypervisor (spec hosts, C.1 to C.3)."""
    spec: Json = {
        "hostName": row.name,
        "availabilityZone": row.zone,
        "buildingBlock": row.building_block,
        "enabled": row.is_enabled,
        "disabledReason": row.disabled_reason,
        "maintenance": row.maintenance,
        "customTraits": list(row.custom_traits),
        "aggregates": list(row.aggregate_uuids),
        "allowedProjects": list(row.allowed_projects),
        "overcommit": dict(zip(("memory", "cpu", "disk"), row.ratios, strict=True)),
    }
    status = present(
        {
            "hypervisorId": row.openstack_id,
            "serviceId": row.service_id,
            "providerId": row.provider_uuid,
            "hypervisorType": row.hypervisor_type,
            "cpuArch": row.cpu_arch,
            "state": row.state,
            "downSince": timestamp(row.down_since),
            "terminatingSince": timestamp(row.terminating_since),
            "traits": list(row.traits),
            "capacity": _room(row.total),
            "effectiveCapacity": _room(row.effective),
            "allocation": _room(row.allocated),
            "held": {name: _room(pair) for name, pair in row.held.items()},
            "numInstances": len(row.instances),
            "instances": [
                {"id": vm_id, "name": name, "active": is_active}
                for vm_id, name, is_active in row.instances
            ]
            or None,
        }
    )
    labels = {ZONE_LABEL: row.zone, f"{naming.group}/building-block": row.building_block}
    return Rendered(
        kind=Kind.HOST,
        source_id=row.source_id,
        name=naming.object_name(row.plain_name),
        zone=row.zone,
        spec=spec,
        status=status,
        condition=row.condition,
        labels={key: value for key, value in labels.items() if _LABEL_VALUE.fullmatch(value)},
        part_ids=row.part_ids,
        others={
            type_name: Condition(
                status=TRUTHS.get(said),
                reason="Reported",
                message="",
                changed_at=row.changed_at,
                is_latest=True,
            )
            for type_name, said in sorted(row.reported.items())
            if type_name and type_name != "Ready"
        },
    )


def _room(pair: tuple[int, int]) -> Json:
    memory_bytes, vcpus = pair
    return resources(memory_bytes=memory_bytes, vcpus=vcpus)
