"""Rows for tests: small functions that leave the database as the services would.

``HostCapacity`` is recomputed from the rows after every factory call that touches a host, so its
totals always equal what VMs and reservations add up to.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeVar

from django.db.models import Model
from django.utils import timezone

from capacity.ledger.allocated import chosen_source
from capacity.models import (
    AllocationState,
    CapacityHistory,
    FlavorGroup,
    FlavorGroupMember,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
    GroupCapacity,
    HistorySpan,
    HostCapacity,
    HostHistory,
    ProjectQuota,
    ReadyReason,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.models import Commitment, CommitmentEvent, Condition, InstanceAssignment
from commitments.usage_models import (
    CommitmentAccount,
    CommitmentHour,
    GroupPrice,
    ObservedHour,
)
from hosts.models import Domain, Flavor, Host, HostState, HostStatus, Instance, Project
from scheduling.resources import GIB, MIB, ResourceVector

_Row = TypeVar("_Row", bound=Model)
DEFAULT_CONTENT_CHANGE_AT = datetime(2026, 1, 1, tzinfo=UTC)
DEFAULT_FLAVORS = (("small", 4096, 1), ("medium", 8192, 2), ("large", 16384, 4))
DEFAULT_PROJECT_ID = "project-1"
DEFAULT_DOMAIN_ID = "domain-1"

_AMOUNTS = ("memory_bytes", "vcpus")
_SUMS = {
    f"{kind}_{amount}": f"""
    coalesce(sum(blocked_{amount}), 0) FROM capacity_reservation
    WHERE kind = '{kind}' AND (target_host_id = %(host_id)s OR confirmed_host_id = %(host_id)s)
    """
    for kind in ReservationKind.values
    for amount in _AMOUNTS
} | {
    f"allocated_{amount}": f"""
    coalesce(sum({amount}), 0) FROM hosts_instance WHERE host_id = %(host_id)s
    """
    for amount in _AMOUNTS
}
_GIVEN = ("zone", "counted_from", "effective_memory_bytes", "effective_vcpus")
_COLUMNS = (*_GIVEN, *_SUMS)
_RECOUNT = f"""
INSERT INTO capacity_hostcapacity (host_id, {", ".join(_COLUMNS)})
VALUES (%(host_id)s, {", ".join(f"%({column})s" for column in _GIVEN)},
        {", ".join(f"(SELECT {total})" for total in _SUMS.values())})
ON CONFLICT (host_id) DO UPDATE
SET {", ".join(f"{column} = EXCLUDED.{column}" for column in _COLUMNS)}
RETURNING *
"""  # noqa: S608 - constants only

_numbers = itertools.count(1)


def make_uuid() -> str:
    """Return a uuid that no other call of this process returns."""
    return f"00000000-0000-4000-8000-{next(_numbers):012d}"


def _put(row: _Row, key: str, *columns: str) -> _Row:
    """Write a row, or these columns of the one with its key, in one statement."""
    (made,) = type(row)._default_manager.bulk_create(
        [row], update_conflicts=True, unique_fields=[key], update_fields=columns
    )
    return made


def make_domain(openstack_id: str = DEFAULT_DOMAIN_ID, name: str = "") -> Domain:
    row = Domain(openstack_id=openstack_id, name=name or openstack_id)
    return _put(row, "openstack_id", "name")


def make_project(
    openstack_id: str = DEFAULT_PROJECT_ID, *, name: str = "", domain_id: str = DEFAULT_DOMAIN_ID
) -> Project:
    row = Project(openstack_id=openstack_id, name=name or openstack_id, domain_id=domain_id)
    return _put(row, "openstack_id", "name", "domain_id")


def make_host(
    name: str = "h1",
    zone: str = "az-a",
    memory_gib: int = 64,
    vcpus: int = 32,
    **fields: Any,
) -> Host:
    """Make a ready host and its capacity row; total, effective and ratio 1 agree."""
    defaults: dict[str, Any] = {
        "openstack_id": make_uuid(),
        "service_host": name,
        "hypervisor_type": "QEMU",
        "cpu_arch": "x86_64",
        "state": HostState.UP,
        "status": HostStatus.ENABLED,
        "total_memory_bytes": memory_gib * GIB,
        "total_vcpus": vcpus,
        "total_disk_gib": 1000,
        "effective_memory_bytes": memory_gib * GIB,
        "effective_vcpus": vcpus,
        "effective_disk_gib": 1000,
    }
    host = Host.objects.create(name=name, zone=zone, **{**defaults, **fields})
    recount_room(host)
    return host


def make_hosts(count: int, *, zone: str = "az-a", prefix: str = "h", **fields: Any) -> list[Host]:
    """Make ``count`` hosts named ``<prefix>1`` and so on."""
    return [make_host(f"{prefix}{number}", zone=zone, **fields) for number in range(1, count + 1)]


def make_flavor(
    name: str = "small",
    memory_mib: int = 4096,
    vcpus: int = 1,
    *,
    group: str = "",
    **fields: Any,
) -> Flavor:
    """Make a flavor; with ``group`` it carries the extra specs that put it there."""
    extra_specs = {"capabilities:hypervisor_type": "qemu"}
    if group:
        extra_specs["quota:hw_version"] = group
    fields.setdefault("extra_specs", extra_specs)
    fields.setdefault("openstack_id", f"flavor-{name}")
    return Flavor.objects.create(name=name, memory_bytes=memory_mib * MIB, vcpus=vcpus, **fields)


def make_group(
    name: str = "hana_1",
    *,
    flavors: Sequence[tuple[str, int, int]] = DEFAULT_FLAVORS,
    ram_unit_gib: int = 1,
    handles: Sequence[str] = ("ram", "cores"),
    capacity: Sequence[str] = ("ram", "cores", "instances"),
    quota: Sequence[str] = (),
    content_changed_at: datetime = DEFAULT_CONTENT_CHANGE_AT,
) -> FlavorGroup:
    """Make a flavor group with flavors, settings, the snapshot ready, and the default domain.

    Args:
        name: Group name.
        flavors: Triples of flavor name, memory in MiB, vCPUs; in any order.
        ram_unit_gib: GiB per declared unit of memory.
        handles: Resources that handle commitments, of ``ram``, ``cores``, ``instances``.
        capacity: Resources that report capacity.
        quota: Resources that have quota.
        content_changed_at: Time of the last content change: the info version.
    """
    Domain.objects.bulk_create(
        [Domain(openstack_id=DEFAULT_DOMAIN_ID, name=DEFAULT_DOMAIN_ID)], ignore_conflicts=True
    )
    rows = [
        make_flavor(flavor_name, memory_mib, vcpus, group=name)
        for flavor_name, memory_mib, vcpus in flavors
    ]
    rows.sort(key=lambda flavor: (-flavor.memory_bytes, -flavor.vcpus, flavor.name))
    ratios = sorted({row.memory_bytes // MIB // row.vcpus for row in rows})
    group = FlavorGroup.objects.create(
        name=name,
        smallest_flavor=rows[-1],
        largest_flavor=rows[0],
        ram_core_ratio_mib=ratios[0] if len(ratios) == 1 else None,
        ram_core_ratio_min_mib=None if len(ratios) == 1 else ratios[0],
        ram_core_ratio_max_mib=None if len(ratios) == 1 else ratios[-1],
    )
    FlavorGroupMember.objects.bulk_create(
        FlavorGroupMember(group=group, flavor=row, position=position)
        for position, row in enumerate(rows)
    )
    make_group_settings(
        name, ram_unit_gib=ram_unit_gib, handles=handles, capacity=capacity, quota=quota
    )
    make_snapshot(content_changed_at)
    return group


def make_group_settings(
    name: str,
    *,
    ram_unit_gib: int = 1,
    handles: Sequence[str] = ("ram", "cores"),
    capacity: Sequence[str] = ("ram", "cores", "instances"),
    quota: Sequence[str] = (),
) -> FlavorGroupSettings:
    flags: dict[str, bool] = {}
    for resource in ("ram", "cores", "instances"):
        flags[f"{resource}_handles_commitments"] = resource in handles
        flags[f"{resource}_handles_dry_run"] = resource in handles
        flags[f"{resource}_has_capacity"] = resource in capacity
        flags[f"{resource}_has_quota"] = resource in quota
    return FlavorGroupSettings.objects.create(group_name=name, ram_unit_gib=ram_unit_gib, **flags)


def make_snapshot(content_changed_at: datetime | None = DEFAULT_CONTENT_CHANGE_AT) -> None:
    """Say that flavor groups were extracted."""
    row = FlavorGroupSnapshot(
        singleton=True,
        is_ready=True,
        last_extracted_at=content_changed_at,
        last_content_change_at=content_changed_at,
    )
    _put(row, "singleton", "is_ready", "last_extracted_at", "last_content_change_at")


def make_group_capacity(
    group: FlavorGroup | str = "hana_1", zone: str = "az-a", **fields: Any
) -> GroupCapacity:
    """Make the capacity row of a group in a zone; room for 100 small VMs unless told."""
    defaults: dict[str, Any] = {
        "smallest_flavor_name": "small",
        "total_memory_bytes": 400 * GIB,
        "total_vcpus": 100,
        "free_memory_bytes": 400 * GIB,
        "free_vcpus": 100,
        "exclusively_free_memory_bytes": 400 * GIB,
        "exclusively_free_vcpus": 100,
        "exclusively_free_slots": 100,
        "running_slots": 0,
        "is_ready": True,
        "ready_reason": "Computed",
        "computed_at": timezone.now(),
    }
    return GroupCapacity.objects.create(group_name=str(group), zone=zone, **{**defaults, **fields})


def make_capacity_history(
    *, at: datetime, zone: str = "az-a", group_name: str = "", **columns: Any
) -> CapacityHistory:
    """Make an hour of a group, or of a whole zone, in which nothing was used unless told."""
    names = [field.name for field in CapacityHistory._meta.concrete_fields]
    chosen: dict[str, Any] = {name: 0 for name in names if name.endswith(("_bytes", "_vcpus"))}
    chosen |= {"span": HistorySpan.HOUR, "at": at, "zone": zone, "group_name": group_name}
    return CapacityHistory.objects.create(**{**chosen, **columns})


def make_host_history(host_name: str, *, day: date, **columns: Any) -> HostHistory:
    """Make a day of a host, empty unless told."""
    names = [field.name for field in HostHistory._meta.concrete_fields]
    chosen: dict[str, Any] = {name: 0 for name in names if name.endswith(("_bytes", "_vcpus"))}
    return HostHistory.objects.create(host_name=host_name, day=day, **{**chosen, **columns})


def make_commitment_hour(
    commitment: Commitment, *, at: datetime, promised: int = 2048, used: int = 512
) -> CommitmentHour:
    """Make an hour of a commitment that was observed whole, with a price; amounts in MiB."""
    account, _ = CommitmentAccount.objects.get_or_create(
        commitment_uuid=commitment.commitment_uuid,
        project_id=commitment.project_id,
        domain_id=commitment.domain_id,
        zone=commitment.zone,
        flavor_group_name=commitment.flavor_group_name,
        resource_type=commitment.resource_type,
        defaults={
            "is_open": True, "seen_at": at, "promised_amount": promised, "used_amount": used
        },
    )  # fmt: skip
    ObservedHour.objects.get_or_create(at=at, defaults={"observed_seconds": 3600})
    GroupPrice.objects.get_or_create(
        flavor_group_name=commitment.flavor_group_name,
        resource_type=commitment.resource_type,
        valid_from=at,
        defaults={"currency": "EUR", "hourly_price": Decimal("0.005")},
    )
    return CommitmentHour.objects.create(
        account=account,
        at=at,
        observed_seconds=3600,
        promised_amount_seconds=promised * 3600,
        used_amount_seconds=used * 3600,
    )


def make_quota(
    project_id: str = DEFAULT_PROJECT_ID,
    zone: str = "az-a",
    quota_by_resource: dict[str, int] | None = None,
) -> ProjectQuota:
    return ProjectQuota.objects.create(
        project_id=project_id,
        project_name=project_id,
        domain_id=DEFAULT_DOMAIN_ID,
        domain_name=DEFAULT_DOMAIN_ID,
        zone=zone,
        quota_by_resource=quota_by_resource or {"hw_version_hana_1_ram": 10},
    )


def make_commitment(
    uuid: str = "",
    *,
    amount_gib: int | None = None,
    requested_amount: int | None = None,
    zone: str = "az-a",
    group: FlavorGroup | str = "hana_1",
    project_id: str = DEFAULT_PROJECT_ID,
    resource_type: str = ResourceType.MEMORY,
    state: str = CommitmentStatus.CONFIRMED,
    is_accepted: bool | None = None,
    **fields: Any,
) -> Commitment:
    """Make a commitment row, without slots.

    Args:
        uuid: Its uuid; a fresh one when empty.
        amount_gib: Amount in GiB, for memory; 16 when no amount is given.
        requested_amount: Amount in bytes, or in vCPUs for cores.
        zone: Its zone.
        group: Its flavor group.
        project_id: Its project.
        resource_type: ``memory`` or ``cores``.
        state: One of the six Limes states.
        is_accepted: Whether it was accepted as it is; guessed from the state when left out.
        fields: Other columns.
    """
    if requested_amount is None:
        requested_amount = (16 if amount_gib is None else amount_gib) * GIB
    accepted = (
        state in {CommitmentStatus.CONFIRMED, CommitmentStatus.GUARANTEED}
        if is_accepted is None
        else is_accepted
    )
    row = Commitment(
        commitment_uuid=uuid or make_uuid(),
        flavor_group_name=str(group),
        resource_type=resource_type,
        requested_amount=requested_amount,
        zone=zone,
        project_id=project_id,
        domain_id=fields.pop("domain_id", DEFAULT_DOMAIN_ID),
        state=state,
    )
    if accepted:
        now = timezone.now()
        row.accepted_at = now
        row.accepted_amount = requested_amount
        row.accepted_spec = {
            "commitmentUUID": row.commitment_uuid,
            "schedulingDomain": row.scheduling_domain,
            "flavorGroupName": row.flavor_group_name,
            "resourceType": resource_type,
            "amount": requested_amount,
            "availabilityZone": zone,
            "projectID": project_id,
            "domainID": row.domain_id,
            "startTime": None,
            "endTime": None,
            "state": state,
            "allowRejection": False,
        }
        row.ready_status = True
        row.ready_reason = Condition.ACCEPTED
        row.ready_observed_generation = 1
        row.ready_changed_at = now
        row.status_summary = "Accepted · 0 VMs · no expiry"
    for field, content in fields.items():
        setattr(row, field, content)
    row.save()
    return row


def make_slot(
    commitment: Commitment,
    host: Host | None,
    *,
    index: int | None = None,
    flavor_name: str = "small",
    memory_gib: int = 4,
    vcpus: int = 1,
    **fields: Any,
) -> Reservation:
    """Make a slot of a commitment; on a host it is ready, without one it found no host."""
    if index is None:
        index = commitment.slots.count()
    defaults: dict[str, Any] = {
        "resource_name": flavor_name,
        "is_ready": host is not None,
        "ready_reason": ReadyReason.ACTIVE if host else ReadyReason.NO_HOSTS_FOUND,
        "ready_changed_at": timezone.now(),
        "creator": "commitments",
        "parent_generation": commitment.generation,
        "observed_parent_generation": commitment.generation,
        "flavor_group_name": commitment.flavor_group_name,
        "project_id": commitment.project_id,
        "domain_id": commitment.domain_id,
        "zone": commitment.zone,
    }
    return make_reservation(
        host,
        kind=ReservationKind.COMMITTED,
        memory_gib=memory_gib,
        vcpus=vcpus,
        commitment=commitment,
        slot_index=index,
        **{**defaults, **fields},
    )


def make_reservation(
    host: Host | None,
    *,
    kind: str = ReservationKind.FAILOVER,
    memory_gib: int = 4,
    vcpus: int = 1,
    **fields: Any,
) -> Reservation:
    """Make a reservation that blocks all of its size on its host."""
    defaults: dict[str, Any] = {
        "zone": host.zone if host else "",
        "target_host": host,
        "confirmed_host": host,
        "blocked_memory_bytes": memory_gib * GIB if host else 0,
        "blocked_vcpus": vcpus if host else 0,
        "is_ready": host is not None,
        "ready_reason": ReadyReason.ACTIVE if host else ReadyReason.NO_HOSTS_FOUND,
    }
    row = Reservation.objects.create(
        kind=kind,
        memory_bytes=memory_gib * GIB,
        vcpus=vcpus,
        **{**defaults, **fields},
    )
    for touched in {row.target_host, row.confirmed_host} - {None}:
        recount_room(touched)  # type: ignore[arg-type]  # None was taken out
    return row


def make_vm(
    name: str = "",
    host: Host | None = None,
    *,
    slot: Reservation | None = None,
    slot_state: str = AllocationState.CONFIRMED,
    flavor_name: str = "small",
    memory_gib: int = 4,
    vcpus: int = 1,
    project_id: str = DEFAULT_PROJECT_ID,
    **fields: Any,
) -> Instance:
    """Make a VM; with ``slot`` it sits in that reservation, which then blocks less."""
    uuid = fields.pop("openstack_id", "") or make_uuid()
    defaults: dict[str, Any] = {
        "zone": host.zone if host else "",
        "host_name": host.name if host else "",
        "status": "ACTIVE",
        "vm_state": "active",
        "power_state": 1,
        "nova_created_at": timezone.now(),
    }
    row = Instance.objects.create(
        openstack_id=uuid,
        name=name or f"vm-{uuid[-4:]}",
        project_id=project_id,
        flavor_name=flavor_name,
        vcpus=vcpus,
        memory_bytes=memory_gib * GIB,
        host=host,
        **{**defaults, **fields},
    )
    if slot is not None:
        make_allocation(slot, row, state=slot_state)
    if host is not None:
        recount_room(host)
    return row


def make_allocation(
    slot: Reservation, vm: Instance, *, state: str = AllocationState.CONFIRMED
) -> ReservationAllocation:
    """Put a VM into a reservation and set what the reservation blocks from then on.

    A user of a failover reservation runs elsewhere, and is only expected there.
    """
    now = timezone.now()
    if slot.kind == ReservationKind.FAILOVER:
        return ReservationAllocation.objects.create(
            reservation=slot,
            vm_uuid=vm.openstack_id,
            state=AllocationState.EXPECTED,
            memory_bytes=vm.memory_bytes,
            vcpus=vm.vcpus,
            since=now,
            vm_host=vm.host,
        )
    is_confirmed = state == AllocationState.CONFIRMED
    row = ReservationAllocation.objects.create(
        reservation=slot,
        vm_uuid=vm.openstack_id,
        state=state,
        memory_bytes=vm.memory_bytes,
        vcpus=vm.vcpus,
        since=now,
        confirmed_host=vm.host if is_confirmed else None,
        confirmed_at=now if is_confirmed else None,
    )
    if slot.target_host is not None:
        blocked = _blocked(slot)
        slot.blocked_memory_bytes, slot.blocked_vcpus = blocked.memory_bytes, blocked.vcpus
        slot.save(update_fields=["blocked_memory_bytes", "blocked_vcpus", "updated_at"])
        recount_room(slot.target_host)
    return row


def make_assignment(
    commitment: Commitment, vm: Instance, *, position: int = 0
) -> InstanceAssignment:
    return InstanceAssignment.objects.create(
        commitment=commitment,
        vm_uuid=vm.openstack_id,
        resource_type=commitment.resource_type,
        position=position,
    )


def make_event(
    commitment: Commitment, action: str = "commitment_accepted", **fields: Any
) -> CommitmentEvent:
    defaults = {"actor": "limes", "request_id": "committed-resource-test"}
    return CommitmentEvent.objects.create(
        commitment_uuid=commitment.commitment_uuid, action=action, **{**defaults, **fields}
    )


def recount_room(host: Host) -> HostCapacity:
    """Set a host's capacity row to what its VMs and reservations add up to."""
    given = {column: getattr(host, column) for column in _GIVEN if column != "counted_from"}
    row = {"host_id": host.pk, "counted_from": chosen_source(), **given}
    return HostCapacity.objects.raw(_RECOUNT, row)[0]


def _blocked(slot: Reservation) -> ResourceVector:
    allocations = list(slot.allocations.all())
    sums = {
        state: ResourceVector(
            memory_bytes=sum(row.memory_bytes for row in rows),
            vcpus=sum(row.vcpus for row in rows),
        )
        for state in AllocationState.values
        for rows in [[row for row in allocations if row.state == state]]
    }
    whole = ResourceVector(memory_bytes=slot.memory_bytes, vcpus=slot.vcpus)
    if slot.target_host_id != slot.confirmed_host_id:
        return whole
    remaining = (whole - sums[AllocationState.CONFIRMED]).clamped()
    return remaining.maximum(sums[AllocationState.EXPECTED])
