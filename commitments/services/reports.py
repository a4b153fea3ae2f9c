"""Capacity and usage as Limes asks for them (spec liquid, 8, 9).

Reports name exactly the resources that the ServiceInfo of the same moment declares, and exactly the
zones of the request, so that Limes never has to discard one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings

from capacity.figures.group_capacity import ensure_fresh
from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.groups.group_settings import GroupSettings, ResourceFlags, settings_for_group
from capacity.models import FlavorCapacity, GroupCapacity
from commitments import metrics
from commitments.domain.names import (
    resource_name_cores,
    resource_name_instances,
    resource_name_ram,
)
from commitments.domain.report import (
    ZoneCapacity,
    capacity_entries,
    quota_units,
    vm_ram_units,
)
from commitments.domain.service_info import PLACEABLE_VMS
from commitments.selectors.usage import (
    ProjectVM,
    commitments_by_vm,
    list_project_vms,
    quota_by_zone,
)
from commitments.services.info import ServiceInfo, current_service_info
from journal.clock import database_now
from journal.errors import NotReady
from scheduling.resources import MIB

UNKNOWN_ZONE = "unknown"
MAX_VIDEO_RAM_DIGITS = 18


def report_capacity(zones: Sequence[str]) -> dict[str, object]:
    """Return the ServiceCapacityReport of the zones asked for.

    Args:
        zones: Availability zones, each once; Limes' knowledge, not ours.

    Raises:
        NotReady: flavor groups or a capacity row that the answer needs are not ready.

    Source: spec liquid, 8.1.
    """
    info = current_service_info()
    if zones and any(_reported(info, name) for name in info.groups):
        ensure_fresh(zones)
    rows = {
        (row.group_name, row.zone): row
        for row in GroupCapacity.objects.filter(
            zone__in=zones, group_name__in=list(info.groups)
        ).order_by("pk")
    }
    resources: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    unit_sizes: dict[str, str] = {}
    for name, group in info.groups.items():
        reported = _reported(info, name)
        group_settings = settings_for_group(info.settings, name)
        unit_sizes[resource_name_ram(name)] = str(max(group_settings.ram_unit_gib, 1))
        per_zone: dict[str, dict[str, dict[str, int]]] = {resource: {} for resource in reported}
        for zone in zones if reported else ():
            entries = _zone_entries(
                rows.get((name, zone)),
                group,
                group_settings,
                with_reserved=name in info.retired
                or settings.HEADROOM.liquid.capacity_includes_reserved,
            )
            for resource in reported:
                per_zone[resource][zone] = entries[resource]
        resources.update({resource: {"perAZ": entry} for resource, entry in per_zone.items()})
    _show_capacity(resources, unit_sizes)
    report: dict[str, object] = {"infoVersion": info.version}
    if resources:
        report["resources"] = resources
    if info.payload["capacityMetricFamilies"]:
        shown = [name for name in info.groups if _reported(info, name)]
        report["metrics"] = {PLACEABLE_VMS: _placeable_vms(shown, zones)}
    return report


def _placeable_vms(group_names: Sequence[str], zones: Sequence[str]) -> list[dict[str, object]]:
    """Return how many VMs of every flavor fit now, as values of a metric family.

    Source: spec liquid, 4.1, 20 (16).
    """
    rows = (
        FlavorCapacity.objects.filter(
            group_capacity__group_name__in=group_names, group_capacity__zone__in=zones
        )
        .order_by("group_capacity__group_name", "group_capacity__zone", "flavor_name")
        .values_list(
            "group_capacity__group_name", "group_capacity__zone", "flavor_name", "placeable_vms"
        )
    )
    return [{"v": vms, "l": [group, zone, flavor]} for group, zone, flavor, vms in rows]


def report_usage(project_id: str, zones: Sequence[str]) -> dict[str, object]:
    """Return the ServiceUsageReport of a project in the zones asked for.

    Which commitment covers a VM was computed before; a VM without one is pay-as-you-go.

    Args:
        project_id: The project; one that nobody knows uses nothing.
        zones: Availability zones, each once.

    Raises:
        NotReady: flavor groups were not extracted yet.

    Source: spec liquid, 9.1.
    """
    info = current_service_info()
    vms = list_project_vms(project_id, info.groups)
    covered = commitments_by_vm(project_id, database_now()) if vms else {}
    quotas = quota_by_zone(project_id, zones)
    by_place = _vms_by_place(vms, zones)
    resources: dict[str, object] = {}
    for name, group in info.groups.items():
        group_settings = settings_for_group(info.settings, name)
        in_group = {zone: by_place.get((name, zone), []) for zone in zones}
        if (name, UNKNOWN_ZONE) in by_place:
            in_group.setdefault(UNKNOWN_ZONE, by_place[name, UNKNOWN_ZONE])
        resources.update(_group_usage(group, group_settings, in_group, covered, quotas))
    report: dict[str, object] = {"infoVersion": info.version}
    if resources:
        report["resources"] = resources
    return report


def _reported(info: ServiceInfo, group_name: str) -> tuple[str, ...]:
    """Return the names of a group's resources that report capacity."""
    return tuple(
        name
        for name, flags in _flags_by_resource(
            group_name, settings_for_group(info.settings, group_name)
        ).items()
        if flags.has_capacity
    )


def _flags_by_resource(group_name: str, group_settings: GroupSettings) -> dict[str, ResourceFlags]:
    return {
        resource_name_ram(group_name): group_settings.ram,
        resource_name_cores(group_name): group_settings.cores,
        resource_name_instances(group_name): group_settings.instances,
    }


def _zone_entries(
    row: GroupCapacity | None,
    group: FlavorGroupDef,
    group_settings: GroupSettings,
    *,
    with_reserved: bool,
) -> Mapping[str, dict[str, int]]:
    if row is None:
        return {name: {"capacity": 0} for name in _flags_by_resource(group.name, group_settings)}
    if not row.is_ready:
        raise NotReady(
            f"capacity of flavor group {group.name} in {row.zone} is not ready",
            code="capacity_not_ready",
            group=group.name,
            zone=row.zone,
        )
    entries = capacity_entries(
        ZoneCapacity(
            running_instances=row.running_instances,
            running_slots=row.running_slots,
            running_memory_bytes=row.running_memory_bytes,
            running_vcpus=row.running_vcpus,
            free_slots=row.exclusively_free_slots,
            free_memory_bytes=row.exclusively_free_memory_bytes,
            free_vcpus=row.exclusively_free_vcpus,
            reserved_slots=row.reserved_unused_slots * with_reserved,
            reserved_memory_bytes=row.reserved_unused_memory_bytes * with_reserved,
            reserved_vcpus=row.reserved_unused_vcpus * with_reserved,
        ),
        group,
        group_settings,
    )
    return {
        name: {"capacity": entry.capacity, "usage": entry.usage} for name, entry in entries.items()
    }


def _show_capacity(
    resources: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]],
    unit_sizes: Mapping[str, str],
) -> None:
    metrics.set_reported_capacity(
        {
            name: {zone: entry["capacity"] for zone, entry in resource["perAZ"].items()}
            for name, resource in resources.items()
        },
        unit_sizes,
    )


def _vms_by_place(
    vms: Iterable[ProjectVM], zones: Collection[str]
) -> dict[tuple[str, str], list[ProjectVM]]:
    known = frozenset(zones)
    by_place: defaultdict[tuple[str, str], list[ProjectVM]] = defaultdict(list)
    lost = 0
    for vm in vms:
        if vm.zone in known:
            by_place[vm.group, vm.zone].append(vm)
            continue
        lost += 1
        if settings.HEADROOM.liquid.report_unknown_zone:
            by_place[vm.group, UNKNOWN_ZONE].append(vm)
    metrics.UNKNOWN_ZONE_VMS.inc(lost)
    return by_place


def _group_usage(
    group: FlavorGroupDef,
    group_settings: GroupSettings,
    vms_by_zone: Mapping[str, Sequence[ProjectVM]],
    covered: Mapping[str, str],
    quotas: Mapping[str, Mapping[str, int]],
) -> dict[str, object]:
    unit_mib = group_settings.ram_unit_mib
    tolerance_mib = settings.HEADROOM.liquid.ram_tolerance_mib
    ram_name = resource_name_ram(group.name)
    resources: dict[str, object] = {}
    for name, flags in _flags_by_resource(group.name, group_settings).items():
        per_zone: dict[str, dict[str, Any]] = {}
        for zone, vms in vms_by_zone.items():
            entry: dict[str, Any] = {}
            if name == ram_name:
                sizes = Counter(vm.memory_bytes for vm in vms)
                entry["usage"] = sum(
                    count
                    * vm_ram_units(
                        memory_bytes, group=group, unit_mib=unit_mib, tolerance_mib=tolerance_mib
                    )
                    for memory_bytes, count in sizes.items()
                )
            elif name == resource_name_cores(group.name):
                entry["usage"] = sum(vm.vcpus for vm in vms)
            else:
                entry["usage"] = len(vms)
                if vms:
                    entry["subresources"] = [_subresource(vm, covered.get(vm.uuid)) for vm in vms]
            if flags.has_quota and zone != UNKNOWN_ZONE:
                entry["quota"] = quota_units(
                    quotas.get(zone, {}).get(name),
                    ram_unit_mib=unit_mib if name == ram_name else None,
                )
            per_zone[zone] = entry
        resources[name] = {"forbidden": False, "perAZ": per_zone}
    return resources


def _subresource(vm: ProjectVM, commitment_uuid: str | None) -> dict[str, object]:
    flavor: dict[str, object] = {
        "name": vm.flavor_name,
        "vcpu": vm.vcpus,
        "ram_mib": vm.memory_bytes // MIB,
        "disk_gib": vm.disk_gib,
    }
    video_ram = vm.video_ram
    if video_ram.isascii() and video_ram.isdigit() and len(video_ram) <= MAX_VIDEO_RAM_DIGITS:
        flavor["video_ram_mib"] = int(video_ram)
    subresource: dict[str, object] = {
        "id": vm.uuid,
        "attributes": {
            "status": vm.status,
            "flavor": flavor,
            "os_type": vm.os_type,
            "commitment_id": commitment_uuid,
        },
    }
    if vm.name:
        subresource["name"] = vm.name
    return subresource
