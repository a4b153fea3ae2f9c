"""Rows that are mirrored, read for the pure part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from django.conf import settings
from django.db.models import Model

from bridge.domain.commitments import CommitmentRow, render_commitment
from bridge.domain.figures import (
    CapacityRow,
    FlavorRow,
    QuotaRow,
    render_capacity,
    render_quota,
)
from bridge.domain.hosts import HostRow, render_host
from bridge.domain.kinds import Naming, ObjectKind
from bridge.domain.objects import Condition, Rendered
from bridge.domain.reservations import AllocationRow, ReservationRow, render_reservation
from capacity.ledger.slot_request import slot_name, slot_name_prefix
from capacity.models import (
    FlavorCapacity,
    GroupCapacity,
    HostCapacity,
    ProjectQuota,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from capacity.resource_names import group_capacity_resource_name, host_resource_name
from commitments.models import Commitment, InstanceAssignment
from hosts.domain.readiness import hindering_conditions
from hosts.models import Host, HostState, HostStatus, Instance, Maintenance
from hosts.vm_source import DELETED

Row = TypeVar("Row", bound=Model)
#: Rendered, or why there can be no object.
Readable = Rendered | str


def render_rows(kind: ObjectKind, ids: Iterable[int], naming: Naming) -> dict[int, Readable]:
    """Return the rows of some keys as objects; those that are gone are missing.

    In the caller's snapshot, with a fixed number of statements.
    """
    return _READERS[kind](list(ids), naming)


def _each(rows: Iterable[Row], render: Callable[[Row], Rendered]) -> dict[int, Readable]:
    found: dict[int, Readable] = {}
    for row in rows:
        try:
            found[row.pk] = render(row)
        except ValueError as error:  # no name in Kubernetes, or a spec that nobody can read
            found[row.pk] = str(error)
    return found


def _commitments(ids: list[int], naming: Naming) -> dict[int, Readable]:
    vms: dict[int, list[tuple[int, str]]] = defaultdict(list)
    assigned = InstanceAssignment.objects.filter(commitment__in=ids).order_by("position", "id")
    for pk, commitment_id, vm_uuid in assigned.values_list("pk", "commitment_id", "vm_uuid"):
        vms[commitment_id].append((pk, vm_uuid))
    return _each(
        Commitment.objects.filter(pk__in=ids),
        lambda row: render_commitment(_commitment(row, vms[row.pk]), naming),
    )


def _commitment(row: Commitment, vms: list[tuple[int, str]]) -> CommitmentRow:
    usage_seen = row.usage_observed_generation
    return CommitmentRow(
        source_id=row.pk,
        uuid=row.commitment_uuid,
        scheduling_domain=row.scheduling_domain,
        group=row.flavor_group_name,
        resource_type=row.resource_type,
        amount=row.requested_amount,
        zone=row.zone,
        project_id=row.project_id,
        domain_id=row.domain_id,
        start_time=row.start_time,
        end_time=row.end_time,
        confirmed_at=row.confirmed_at,
        state=row.state,
        allow_rejection=row.allow_rejection,
        creator_request_id=row.creator_request_id,
        accepted_spec=row.accepted_spec,
        accepted_at=row.accepted_at,
        last_reconcile_at=row.last_reconcile_at,
        used_memory_bytes=row.used_memory_bytes,
        used_vcpus=row.used_vcpus,
        last_usage_reconcile_at=row.last_usage_reconcile_at,
        has_current_usage=None if usage_seen is None else usage_seen == row.generation,
        summary=row.status_summary,
        condition=Condition(
            status=row.ready_status,
            reason=row.ready_reason,
            message=row.ready_message,
            changed_at=row.ready_changed_at or row.created_at,
            is_current=row.ready_observed_generation == row.generation,
        ),
        vm_uuids=tuple(vm_uuid for _, vm_uuid in vms),
        part_ids=tuple(pk for pk, _ in vms),
    )


def _reservations(ids: list[int], naming: Naming) -> dict[int, Readable]:
    users: dict[int, list[ReservationAllocation]] = defaultdict(list)
    allocations = ReservationAllocation.objects.filter(reservation__in=ids)
    for user in allocations.select_related("confirmed_host", "vm_host").order_by("vm_uuid"):
        users[user.reservation_id].append(user)
    rows = Reservation.objects.filter(pk__in=ids).select_related(
        "target_host", "confirmed_host", "commitment", "failover"
    )
    return _each(rows, lambda row: render_reservation(_reservation(row, users[row.pk]), naming))


def _reservation(row: Reservation, users: list[ReservationAllocation]) -> ReservationRow:
    failover = getattr(row, "failover", None)
    if row.kind == ReservationKind.COMMITTED and row.commitment is not None:
        prefix = slot_name_prefix(row.commitment.commitment_uuid)
        plain_name = slot_name(prefix, row.slot_index or 0)
    else:
        plain_name = failover.name if failover else f"{row.kind.replace('_', '-')}-{row.uuid}"
    is_failover = row.kind == ReservationKind.FAILOVER
    creator = settings.HEADROOM.failover.creator if is_failover else row.creator
    return ReservationRow(
        source_id=row.pk,
        kind=row.kind,
        plain_name=plain_name,
        scheduling_domain=row.scheduling_domain,
        zone=row.zone,
        memory_bytes=row.memory_bytes,
        vcpus=row.vcpus,
        start_time=row.start_time,
        end_time=row.end_time,
        target_host=row.target_host.name if row.target_host else "",
        confirmed_host=row.confirmed_host.name if row.confirmed_host else "",
        condition=Condition(
            status=row.is_ready,
            reason=row.ready_reason,
            message=row.ready_message,
            changed_at=row.ready_changed_at or row.created_at,
        ),
        group=row.flavor_group_name or (row.resource_name if is_failover else ""),
        resource_name=row.resource_name,
        commitment_uuid=row.commitment.commitment_uuid if row.commitment else "",
        project_id=row.project_id,
        domain_id=row.domain_id,
        creator=creator,
        parent_generation=row.parent_generation,
        observed_parent_generation=row.observed_parent_generation,
        creator_request_id=row.creator_request_id,
        vm_uuid=row.vm_uuid,
        user_id=row.user_id,
        intent=row.intent,
        last_changed_at=failover.last_changed_at if failover else None,
        acknowledged_at=failover.acknowledged_at if failover else None,
        allocations=tuple(
            AllocationRow(
                vm_uuid=user.vm_uuid,
                since=user.since,
                memory_bytes=user.memory_bytes,
                vcpus=user.vcpus,
                confirmed_host=user.confirmed_host.name if user.confirmed_host else "",
                vm_host=user.vm_host.name if user.vm_host else "",
            )
            for user in users
        ),
        part_ids=tuple(user.pk for user in users),
    )


def _capacities(ids: list[int], naming: Naming) -> dict[int, Readable]:
    flavors: dict[int, list[FlavorRow]] = defaultdict(list)
    rows = FlavorCapacity.objects.filter(group_capacity__in=ids).order_by("flavor_name")
    for one in rows:
        flavors[one.group_capacity_id].append(
            FlavorRow(
                name=one.flavor_name,
                placeable_hosts=one.placeable_hosts,
                placeable_vms=one.placeable_vms,
                total_hosts=one.total_hosts,
                total_vm_slots=one.total_vm_slots,
            )
        )
    return _each(
        GroupCapacity.objects.filter(pk__in=ids),
        lambda row: render_capacity(_capacity(row, flavors[row.pk]), naming),
    )


def _capacity(row: GroupCapacity, flavors: list[FlavorRow]) -> CapacityRow:
    exclusive = (row.exclusively_free_memory_bytes, row.exclusively_free_vcpus)
    return CapacityRow(
        source_id=row.pk,
        plain_name=row.resource_name,
        group=row.group_name,
        zone=row.zone,
        smallest_flavor=row.smallest_flavor_name,
        total=(row.total_memory_bytes, row.total_vcpus),
        free=(row.free_memory_bytes, row.free_vcpus),
        exclusively_free=exclusive,
        exclusively_free_slots=row.exclusively_free_slots,
        running_instances=row.running_instances,
        running=(row.running_memory_bytes, row.running_vcpus),
        committed_slots=row.committed_slots,
        committed_memory_bytes=row.committed_memory_bytes,
        computed_at=row.computed_at,
        condition=Condition(
            status=row.is_ready if row.ready_reason else None,
            reason=row.ready_reason,
            message=row.ready_message,
            changed_at=row.updated_at,
            is_latest=True,
        ),
        flavors=tuple(flavors),
    )


def _quotas(ids: list[int], naming: Naming) -> dict[int, Readable]:
    return _each(
        ProjectQuota.objects.filter(pk__in=ids), lambda row: render_quota(_quota(row), naming)
    )


def _quota(row: ProjectQuota) -> QuotaRow:
    return QuotaRow(
        source_id=row.pk,
        plain_name=group_capacity_resource_name(row.project_id, row.zone),
        project_id=row.project_id,
        project_name=row.project_name,
        domain_id=row.domain_id,
        domain_name=row.domain_name,
        zone=row.zone,
        quota=row.quota_by_resource,
        total_usage=row.total_usage,
        payg_usage=row.payg_usage,
        total_usage_summary=row.total_usage_summary,
        payg_usage_summary=row.payg_usage_summary,
        limes_usage_summary=row.limes_usage_summary,
        limes_quota_summary=row.limes_quota_summary,
        last_reconcile_at=row.last_reconcile_at,
        last_full_reconcile_at=row.last_full_reconcile_at,
        condition=Condition(
            status=True if row.observed_generation is not None else None,
            reason="Reconciled",
            message="",
            changed_at=row.updated_at,
            is_latest=True,
            is_current=row.observed_generation == row.generation,
        ),
    )


def _hosts(ids: list[int], naming: Naming) -> dict[int, Readable]:
    vms: dict[int, list[tuple[int, str, str, bool]]] = defaultdict(list)
    found = Instance.objects.filter(host__in=ids).order_by("openstack_id")
    for pk, host_id, vm_id, name, status in found.values_list(
        "pk", "host_id", "openstack_id", "name", "status"
    ):
        if host_id is not None and status != DELETED:
            vms[host_id].append((pk, vm_id, name, status == "ACTIVE"))
    rooms = {room.host_id: room for room in HostCapacity.objects.filter(host__in=ids)}
    return _each(
        Host.objects.filter(pk__in=ids),
        lambda row: render_host(_host(row, rooms.get(row.pk), vms[row.pk]), naming),
    )


def _host(row: Host, room: HostCapacity | None, vms: list[tuple[int, str, str, bool]]) -> HostRow:
    room = room or HostCapacity()
    ratios = (row.memory_ratio, row.vcpus_ratio, row.disk_ratio)
    return HostRow(
        source_id=row.pk,
        name=row.name,
        plain_name=host_resource_name(row.name),
        zone=row.zone,
        building_block=row.building_block,
        is_enabled=row.status == HostStatus.ENABLED,
        disabled_reason=row.disabled_reason,
        maintenance=row.maintenance,
        custom_traits=tuple(row.custom_traits),
        aggregate_uuids=tuple(row.aggregate_uuids),
        allowed_projects=tuple(row.allowed_projects),
        ratios=(f"{ratios[0]:f}", f"{ratios[1]:f}", f"{ratios[2]:f}"),
        openstack_id=row.openstack_id,
        service_id=row.service_id,
        provider_uuid=row.provider_uuid,
        hypervisor_type=row.hypervisor_type,
        cpu_arch=row.cpu_arch,
        state=row.state,
        down_since=row.down_since,
        terminating_since=row.terminating_since,
        traits=tuple(row.traits),
        total=(row.total_memory_bytes, row.total_vcpus),
        effective=(row.effective_memory_bytes, row.effective_vcpus),
        allocated=(room.allocated_memory_bytes, room.allocated_vcpus),
        held={
            "committed": (room.committed_memory_bytes, room.committed_vcpus),
            "failover": (room.failover_memory_bytes, room.failover_vcpus),
            "inFlight": (room.in_flight_memory_bytes, room.in_flight_vcpus),
        },
        instances=tuple((vm_id, name, is_active) for _, vm_id, name, is_active in vms),
        condition=_host_ready(row),
        reported={str(name): str(said) for name, said in row.conditions.items()},
        changed_at=row.updated_at,
        part_ids=tuple(pk for pk, _, _, _ in vms),
    )


def _host_ready(row: Host) -> Condition:
    """Return whether VMs may be placed on a host, and the first reason why not."""
    hindering = hindering_conditions(row.conditions)
    reason, message = "Ready", ""
    if row.state != HostState.UP:
        reason = "Down" if row.state == HostState.DOWN else "StateUnknown"
    elif row.fenced_since is not None:
        reason = "Fenced"
    elif row.status != HostStatus.ENABLED:
        reason, message = "Disabled", row.disabled_reason
    elif row.maintenance not in {Maintenance.NONE, Maintenance.HA}:
        reason, message = "Maintenance", row.maintenance
    elif hindering:
        reason, message = "Conditions", "; ".join(hindering)
    return Condition(
        status=row.is_ready,
        reason=reason,
        message=message,
        changed_at=row.updated_at,
        is_latest=True,
    )


_READERS: Final[Mapping[ObjectKind, Callable[[list[int], Naming], dict[int, Readable]]]] = {
    ObjectKind.COMMITTED_RESOURCE: _commitments,
    ObjectKind.RESERVATION: _reservations,
    ObjectKind.FLAVOR_GROUP_CAPACITY: _capacities,
    ObjectKind.PROJECT_QUOTA: _quotas,
    ObjectKind.HOST: _hosts,
}
