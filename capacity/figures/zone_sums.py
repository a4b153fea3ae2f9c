"""What VMs run and what slots hold in a zone, per flavor group (spec liquid, 8.1, 13.6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hosts.domain.vm import ABSENT_STATUSES
from journal.statements import fetch_rows
from scheduling.resources import ZERO, ResourceVector

RUNNING_VMS = """
SELECT flavor_group.name, count(*),
       coalesce(sum(vm.memory_bytes / nullif(smallest.memory_bytes, 0)), 0)::bigint,
       sum(vm.memory_bytes)::bigint, sum(vm.vcpus)::bigint,
       count(*) FILTER (WHERE vm.zone <> host.zone)
  FROM hosts_instance AS vm
  JOIN hosts_host AS host ON host.id = vm.host_id
  LEFT JOIN hosts_flavor AS flavor ON flavor.name = vm.flavor_name
  LEFT JOIN capacity_flavorgroupmember AS member ON member.flavor_id = flavor.id
  LEFT JOIN capacity_flavorgroup AS flavor_group ON flavor_group.id = member.group_id
  LEFT JOIN hosts_flavor AS smallest ON smallest.id = flavor_group.smallest_flavor_id
 WHERE host.zone = %s AND vm.status <> ALL (%s)
 GROUP BY flavor_group.name
"""

RUNNING_VCPUS = """
SELECT flavor_group.name, host.zone, vm.project_id, sum(vm.vcpus)::bigint
  FROM unnest(%s::text[], %s::text[]) AS wanted(group_name, zone)
  JOIN capacity_flavorgroup AS flavor_group ON flavor_group.name = wanted.group_name
  JOIN capacity_flavorgroupmember AS member ON member.group_id = flavor_group.id
  JOIN hosts_flavor AS flavor ON flavor.id = member.flavor_id
  JOIN hosts_instance AS vm ON vm.flavor_name = flavor.name
  JOIN hosts_host AS host ON host.id = vm.host_id AND host.zone = wanted.zone
 WHERE vm.status <> ALL (%s)
 GROUP BY 1, 2, 3
 ORDER BY 1, 2, 3
"""

RESERVED_UNUSED = """
SELECT flavor_group_name, sum(blocked_memory_bytes)::bigint, sum(blocked_vcpus)::bigint
  FROM capacity_reservation
 WHERE kind = 'committed' AND zone = %s
   AND (target_host_id IS NOT NULL OR confirmed_host_id IS NOT NULL)
 GROUP BY flavor_group_name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningVMs:
    """VMs of one flavor group on the hosts of a zone.

    Attributes:
        vms: How many.
        slots: Sum over VMs of the smallest flavors that fit into their memory (floor per VM).
        resources: Sum of their memory and vCPUs.
    """

    vms: int = 0
    slots: int = 0
    resources: ResourceVector = ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneUse:
    """VMs in a zone.

    Attributes:
        running: Flavor group name to its VMs.
        ungrouped_vms: VMs whose flavor is in no group.
        misplaced_vms: VMs whose own zone is not that of their host; they count at their host.
    """

    running: Mapping[str, RunningVMs] = field(default_factory=dict)
    ungrouped_vms: int = 0
    misplaced_vms: int = 0


def running_vms(zone: str) -> ZoneUse:
    """Return the VMs on the hosts of a zone by flavor group, in one statement.

    A VM that has a host counts in every status but ``ABSENT_STATUSES``: a stopped one keeps its
    room. The zone is that of the host (spec liquid, 20, row 17).
    """
    running: dict[str, RunningVMs] = {}
    ungrouped = misplaced = 0
    for name, vms, slots, memory_bytes, vcpus, elsewhere in fetch_rows(
        RUNNING_VMS, [zone, list(ABSENT_STATUSES)]
    ):
        misplaced += elsewhere
        if name is None:
            ungrouped = vms
            continue
        running[name] = RunningVMs(
            vms=vms,
            slots=slots,
            resources=ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus),
        )
    return ZoneUse(running=running, ungrouped_vms=ungrouped, misplaced_vms=misplaced)


def running_vcpus_by_project(
    keys: Collection[tuple[str, str]],
) -> Mapping[tuple[str, str], Mapping[str, int]]:
    """Return the vCPUs of running VMs by (flavor group, zone) and project, in one statement.

    VMs count as in :func:`running_vms`.
    """
    running: dict[tuple[str, str], dict[str, int]] = {}
    groups = [group for group, _zone in keys]
    zones = [zone for _group, zone in keys]
    for group, zone, project_id, vcpus in fetch_rows(
        RUNNING_VCPUS, [groups, zones, list(ABSENT_STATUSES)]
    ):
        running.setdefault((group, zone), {})[project_id] = int(vcpus)
    return running


def reserved_unused(zone: str) -> Mapping[str, ResourceVector]:
    """Return what the slots of a zone hold beyond their VMs, by flavor group.

    Slots without a host hold nothing; one in migration counts once although it blocks two hosts.
    """
    return {
        name: ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
        for name, memory_bytes, vcpus in fetch_rows(RESERVED_UNUSED, [zone])
    }
