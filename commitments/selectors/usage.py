"""Reads behind the usage report and the usage assignment (spec commitments, 13, 14.3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, Q
from django.db.models.fields.json import KeyTextTransform

from capacity.groups.flavor_groups import FlavorGroupDef, groups_of_flavors
from capacity.groups.reading import load_group_definitions
from capacity.models import ProjectQuota
from commitments.domain.statuses import ACTIVE_STATUSES, ResourceType
from commitments.models import InstanceAssignment
from hosts.domain.vm import ABSENT_STATUSES
from hosts.models import Instance

VIDEO_RAM_EXTRA_SPEC = "hw_video:ram_max_mb"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectVM:
    """A VM that uses capacity of a flavor group.

    Attributes:
        uuid: Server uuid.
        name: Server name.
        status: Nova status.
        zone: Zone of its host; empty while Nova gives the VM none (building, in error).
        group: The flavor group of its flavor.
        flavor_name: Name of its flavor.
        memory_bytes: Its memory.
        disk_gib: Its root disk.
        os_type: Operating system for licence billing, ``unknown`` when not determined.
        video_ram: What its flavor says of video RAM in MiB, as text; empty when nothing.
    """

    uuid: str
    name: str
    status: str
    zone: str
    group: str
    flavor_name: str
    memory_bytes: int
    vcpus: int
    disk_gib: int
    os_type: str
    video_ram: str


def list_project_vms(
    project_id: str, groups: Mapping[str, FlavorGroupDef] | None = None
) -> tuple[ProjectVM, ...]:
    """Return a project's VMs that have a host and a flavor of some group, oldest first.

    The same VMs as those the capacity report counts as running, in the same zones.

    Args:
        groups: Flavor groups by name; all known ones, retired included, when left out.

    Raises:
        NotReady: flavor groups were asked for and are not extracted yet.

    Source: spec liquid, 9.1, 9.3, 20 (17): ordered by creation time (unknown first), then uuid.
    """
    if groups is None:
        groups = load_group_definitions(include_retired=True)
    group_of = groups_of_flavors(groups.values())
    rows = (
        Instance.objects.filter(
            project_id=project_id, host__isnull=False, flavor_name__in=list(group_of)
        )
        .exclude(status__in=ABSENT_STATUSES)
        .order_by(F("nova_created_at").asc(nulls_first=True), "openstack_id")
        .values_list(
            "openstack_id",
            "name",
            "status",
            "zone",
            "flavor_name",
            "memory_bytes",
            "vcpus",
            "disk_gib",
            "os_type",
            "host__zone",
            KeyTextTransform(VIDEO_RAM_EXTRA_SPEC, "flavor_extra_specs"),
        )
    )
    return tuple(
        ProjectVM(
            uuid=row[0],
            name=row[1],
            status=row[2],
            zone=row[3] and (row[9] or row[3]),
            group=group_of[row[4]],
            flavor_name=row[4],
            memory_bytes=row[5],
            vcpus=row[6],
            disk_gib=row[7],
            os_type=row[8] or "unknown",
            video_ram=row[10] or "",
        )
        for row in rows
    )


def commitments_by_vm(project_id: str, now: datetime) -> dict[str, str]:
    """Return the commitment in force that covers each VM of a project.

    A VM that is covered for memory and for cores shows the commitment of its memory.

    Args:
        now: The present: commitments that ended or have not begun cover nothing.

    Source: spec liquid, 9.1, 9.5.
    """
    rows = (
        InstanceAssignment.objects.filter(
            Q(commitment__start_time__isnull=True) | Q(commitment__start_time__lte=now),
            Q(commitment__end_time__isnull=True) | Q(commitment__end_time__gt=now),
            commitment__project_id=project_id,
            commitment__state__in=[status.value for status in ACTIVE_STATUSES],
        )
        .order_by("pk")
        .values_list("vm_uuid", "resource_type", "commitment__commitment_uuid")
    )
    covered: dict[str, str] = {}
    for vm_uuid, resource_type, commitment_uuid in rows:
        if resource_type == ResourceType.MEMORY:
            covered[vm_uuid] = commitment_uuid
        else:
            covered.setdefault(vm_uuid, commitment_uuid)
    return covered


def quota_by_zone(project_id: str, zones: Collection[str]) -> dict[str, Mapping[str, int]]:
    """Return a project's stored quota: zone -> resource name -> GiB of memory or count."""
    rows = ProjectQuota.objects.filter(project_id=project_id, zone__in=list(zones))
    return dict(rows.order_by("zone").values_list("zone", "quota_by_resource"))
