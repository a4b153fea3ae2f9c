"""The VMs of a generated region: placed within capacity and traits, leaving room free."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from hosts.region.generator.catalog import (
    CARDS_PER_HOST,
    FLAVORS_BY_SHAPE,
    GENERAL,
    ROLES,
    VGPUS_PER_CARD,
    FlavorPlan,
)
from hosts.region.generator.plan import HostPlan, RegionPlan

DAY_SECONDS: Final = 86_400
OLDEST_VM_DAYS: Final = 1000
LEAST_FILL_PERCENT: Final = 60
MOST_FILL_PERCENT: Final = 75
SMALL_SHAPE_WEIGHT: Final = 15
GENERAL_WEIGHT: Final = 100
ODD_VMS_PER: Final = 2500
LEAST_ODD_VMS: Final = 4
MOST_LEFT_OVER: Final = 50
GIB_PER_MIB: Final = 1024

Item = dict[str, Any]  # JSON of a server


def servers(plan: RegionPlan) -> Iterator[Item]:
    """Yield servers host by host, then those that no known host carries."""
    wanted = plan.options.vms
    odd = min(wanted, LEAST_ODD_VMS + wanted // ODD_VMS_PER) if wanted else 0
    to_place = wanted - odd
    weights = [
        GENERAL_WEIGHT if host.hardware.shape == GENERAL else SMALL_SHAPE_WEIGHT
        for host in plan.hosts
    ]
    total_weight = sum(weights)
    due = placed = number = 0
    for host, weight in zip(plan.hosts, weights, strict=True):
        due += weight
        host_vms = to_place * due // total_weight - placed
        for flavor in _flavors_for(plan, host, host_vms):
            number += 1
            placed += 1
            yield _placed(plan, host, flavor, number)
    # The last hosts may have had no room for the last few: these stand nowhere as well.
    for index in range(min(wanted - placed, odd + MOST_LEFT_OVER)):
        yield _unplaced(plan, index, number + index + 1)


def _flavors_for(plan: RegionPlan, host: HostPlan, count: int) -> Iterator[FlavorPlan]:
    """Yield flavors that fill a host to 60 to 75 percent with about ``count`` VMs."""
    rng = plan.rng
    fill = rng.randint(LEAST_FILL_PERCENT, MOST_FILL_PERCENT)
    budget_gib = host.hardware.usable_gib * fill // 100
    budget_vcpus = host.hardware.usable_vcpus * fill // 100
    choices = FLAVORS_BY_SHAPE[host.hardware.shape]
    sizes = [flavor.memory_gib for flavor in choices]
    host.free_vgpus = CARDS_PER_HOST * VGPUS_PER_CARD
    for left in range(count, 0, -1):
        goal_gib = budget_gib * rng.randint(50, 160) // 100 // left
        index = min(bisect_left(sizes, goal_gib), len(choices) - 1)
        index = max(0, index - rng.randint(0, 1))
        while index >= 0 and not _fits(choices[index], budget_gib, budget_vcpus, host.free_vgpus):
            index -= 1
        if index < 0:
            return
        flavor = choices[index]
        budget_gib -= flavor.memory_gib
        budget_vcpus -= flavor.vcpus
        host.free_gib -= flavor.memory_gib
        host.free_vcpus -= flavor.vcpus
        host.free_vgpus -= flavor.vgpus
        yield flavor


def _fits(flavor: FlavorPlan, gib: int, vcpus: int, vgpus: int) -> bool:
    return flavor.memory_gib <= gib and flavor.vcpus <= vcpus and flavor.vgpus <= vgpus


def _placed(plan: RegionPlan, host: HostPlan, flavor: FlavorPlan, number: int) -> Item:
    project_id = host.project_id or plan.projects[_skewed(plan)].id
    plan.count_use(project_id, host.zone, flavor)
    item = _server(plan, flavor, project_id, number)
    is_off = plan.rng.randrange(20) == 0
    item |= {
        "status": "SHUTOFF" if is_off else "ACTIVE",
        "OS-EXT-STS:vm_state": "stopped" if is_off else "active",
        "OS-EXT-STS:power_state": 4 if is_off else 1,
        "OS-EXT-AZ:availability_zone": host.zone,
        "OS-EXT-SRV-ATTR:host": host.name,
        "OS-EXT-SRV-ATTR:hypervisor_hostname": host.name,
    }
    return item


def _unplaced(plan: RegionPlan, index: int, number: int) -> Item:
    flavor = FLAVORS_BY_SHAPE[GENERAL][index % 3]
    item = _server(plan, flavor, plan.projects[_skewed(plan)].id, number)
    status, vm_state = (("SHELVED_OFFLOADED", "shelved_offloaded"), ("ERROR", "error"))[index % 2]
    host_name = "node99999-decommissioned" if index % 4 == 3 else None  # noqa: PLR2004 - one in 4
    item |= {
        "status": status,
        "OS-EXT-STS:vm_state": vm_state,
        "OS-EXT-STS:power_state": 0,
        "OS-EXT-AZ:availability_zone": "",
        "OS-EXT-SRV-ATTR:host": host_name,
        "OS-EXT-SRV-ATTR:hypervisor_hostname": host_name,
    }
    return item


def _server(plan: RegionPlan, flavor: FlavorPlan, project_id: str, number: int) -> Item:
    rng = plan.rng
    created = plan.options.taken_at - rng.randrange(DAY_SECONDS, OLDEST_VM_DAYS * DAY_SECONDS)
    role = ROLES[rng.randrange(len(ROLES))]
    return {
        "id": plan.new_uuid(),
        "name": f"{role}-{number:06d}",
        "tenant_id": project_id,
        "user_id": plan.user_id,
        "created": _iso(created),
        "updated": _iso(created + 60),
        "flavor": {
            "original_name": flavor.name,
            "vcpus": flavor.vcpus,
            "ram": flavor.memory_gib * GIB_PER_MIB,
            "disk": flavor.disk_gib,
            "ephemeral": 0,
            "swap": 0,
            "extra_specs": flavor.extra_specs,
        },
        "image": {"id": plan.image_ids[rng.randrange(len(plan.image_ids))]},
        "metadata": {"role": role},
        "OS-EXT-STS:task_state": None,
        "OS-SRV-USG:launched_at": _iso(created + 30),
    }


def _skewed(plan: RegionPlan) -> int:
    """Return the index of a project: few own many VMs, many own few."""
    count = len(plan.projects)
    return min(plan.rng.randrange(count), plan.rng.randrange(count))


def _iso(unix_seconds: int) -> str:
    return datetime.fromtimestamp(unix_seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
