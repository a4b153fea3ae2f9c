"""Writing a generated region, section by section, without holding its VMs in memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

from hosts.region.dump import RegionFileWriter
from hosts.region.generator import limes
from hosts.region.generator.catalog import (
    CARDS_PER_HOST,
    GPU,
    GPU_MODEL_TRAIT,
    GROUPS,
    IMAGE_NAMES,
    VGPUS_PER_CARD,
)
from hosts.region.generator.plan import (
    GeneratorOptions,
    HostPlan,
    RegionPlan,
    new_uuid,
    plan_region,
)
from hosts.region.generator.servers import servers
from hosts.region.host_facts import HOST_FACTS
from hosts.region.registry import Shape
from journal.progress import Advance, unwatched

MIB_PER_GIB: Final = 1024
COMMON_TRAITS: Final = ("COMPUTE_NODE", "COMPUTE_VOLUME_MULTI_ATTACH", "HW_ARCH_X86_64")
SERVER_GROUPS: Final = 8
HOSTS_PER_RACK: Final = 6

Item = dict[str, Any]  # JSON of one element


def generate_region(
    stream: BinaryIO, options: GeneratorOptions, progress: Advance = unwatched
) -> None:
    """Write a plausible region: the same options give the same bytes.

    Args:
        stream: Where to.
        options: Size and seed.
        progress: Called with 1 for each VM that was written; they are most of a region.
    """
    plan = plan_region(options)
    writer = RegionFileWriter(stream)
    writer.write("about", Shape.MEMBERS, iter(_about(options)))
    for path, elements in (
        ("identity.domains", _domains(plan)),
        ("identity.projects", _projects(plan)),
        ("compute.flavors", _flavors(plan)),
        ("compute.aggregates", _aggregates(plan)),
        ("compute.services", _services(plan)),
        ("compute.hypervisors", _hypervisors(plan)),
        ("compute.servers", _counted(servers(plan), progress)),
        ("compute.server_groups", _server_groups(plan)),
        ("image.images", _images(plan)),
        ("placement.resource_providers", _providers(plan)),
        ("limes.commitments", limes.commitments(plan)),
        ("limes.quotas", limes.quotas(plan)),
    ):
        writer.write(path, Shape.LIST, elements)
    writer.write("headroom.flavor_groups", Shape.MAP, _group_settings())
    writer.write("headroom.failover_policies", Shape.LIST, _failover_policies())
    writer.write(HOST_FACTS, Shape.LIST, _host_facts(plan))
    writer.finish()


def _counted(elements: Iterator[Item], progress: Advance) -> Iterator[Item]:
    for element in elements:
        yield element
        progress(1)


def _about(options: GeneratorOptions) -> list[tuple[str, object]]:
    taken_at = datetime.fromtimestamp(options.taken_at, tz=UTC)
    return [
        ("region", f"generated-{options.hosts}-{options.seed}"),
        ("source", "generate_region: nothing in it exists"),
        ("taken_at", taken_at.strftime("%Y-%m-%dT%H:%M:%SZ")),
        ("versions", {"generator": "1"}),
    ]


def _domains(plan: RegionPlan) -> Iterator[Item]:
    for domain_id, name in plan.domains:
        yield {"id": domain_id, "name": name, "enabled": True}


def _projects(plan: RegionPlan) -> Iterator[Item]:
    for project in plan.projects:
        yield {
            "id": project.id,
            "name": project.name,
            "domain_id": project.domain_id,
            "parent_id": project.domain_id,
            "enabled": True,
        }


def _flavors(plan: RegionPlan) -> Iterator[Item]:
    for group in GROUPS:
        for flavor in group.flavors:
            yield {
                "id": plan.flavor_ids[flavor.name],
                "name": flavor.name,
                "vcpus": flavor.vcpus,
                "ram": flavor.memory_gib * MIB_PER_GIB,
                "disk": flavor.disk_gib,
                "OS-FLV-EXT-DATA:ephemeral": 0,
                "os-flavor-access:is_public": True,
                "extra_specs": flavor.extra_specs,
            }


def _aggregates(plan: RegionPlan) -> Iterator[Item]:
    members: dict[str, list[str]] = {name: [] for name in plan.aggregate_ids}
    for host in plan.hosts:
        members[host.zone].append(host.name)
        members[f"shape-{host.hardware.shape}"].append(host.name)
        if host.project_id:
            members["dedicated"].append(host.name)
    for name, uuid in plan.aggregate_ids.items():
        metadata: dict[str, str] = {}
        if name in plan.zones:
            metadata = {"availability_zone": name}
        elif name == "dedicated":
            metadata = {"filter_tenant_id": plan.projects[0].id}
        yield {"uuid": uuid, "name": name, "hosts": members[name], "metadata": metadata}


def _services(plan: RegionPlan) -> Iterator[Item]:
    for host in plan.hosts:
        yield {
            "id": host.service_id,
            "binary": "nova-compute",
            "host": host.name,
            "zone": host.zone,
            "state": host.state,
            "status": host.status,
        }


def _hypervisors(plan: RegionPlan) -> Iterator[Item]:
    for host in plan.hosts:
        yield {
            "id": host.uuid,
            "hypervisor_hostname": host.name,
            "hypervisor_type": "QEMU",
            "hypervisor_version": 9_000_000,
            "state": host.state,
            "status": host.status,
            "service": {
                "id": host.service_id,
                "host": host.name,
                "disabled_reason": host.disabled_reason,
            },
            "cpu_info": {"arch": "x86_64"},
        }


def _server_groups(plan: RegionPlan) -> Iterator[Item]:
    for project in plan.projects[:SERVER_GROUPS]:
        yield {
            "id": plan.new_uuid(),
            "name": f"{project.name}-ha",
            "policy": "anti-affinity",
            "rules": {"max_server_per_host": 1},
            "members": [],
            "project_id": project.id,
        }


def _images(plan: RegionPlan) -> Iterator[Item]:
    for image_id, (name, guest_id) in zip(plan.image_ids, IMAGE_NAMES, strict=True):
        yield {"id": image_id, "name": name, "vmware_ostype": guest_id, "tags": []}


def _providers(plan: RegionPlan) -> Iterator[Item]:
    for host in plan.hosts:
        yield _root_provider(plan, host)
        if host.hardware.shape == GPU:
            for card in range(CARDS_PER_HOST):
                yield _gpu_provider(plan, host, card)


def _root_provider(plan: RegionPlan, host: HostPlan) -> Item:
    hardware = host.hardware
    aggregates = [plan.aggregate_ids[host.zone], plan.aggregate_ids[f"shape-{hardware.shape}"]]
    if host.project_id:
        aggregates.append(plan.aggregate_ids["dedicated"])
    return {
        "uuid": host.uuid,
        "name": host.name,
        "generation": 1,
        "parent_provider_uuid": None,
        "root_provider_uuid": host.uuid,
        "inventories": {
            "resource_provider_generation": 1,
            "inventories": {
                "VCPU": _inventory(
                    hardware.vcpus, hardware.reserved_vcpus, hardware.vcpus_ratio / 10
                ),
                "MEMORY_MB": _inventory(
                    hardware.memory_gib * MIB_PER_GIB, hardware.reserved_gib * MIB_PER_GIB, 1.0
                ),
                "DISK_GB": _inventory(hardware.disk_gib, 0, 1.0),
            },
        },
        "traits": {
            "resource_provider_generation": 1,
            "traits": sorted((*COMMON_TRAITS, *hardware.traits)),
        },
        "aggregates": {"resource_provider_generation": 1, "aggregates": sorted(aggregates)},
    }


def _gpu_provider(plan: RegionPlan, host: HostPlan, card: int) -> Item:
    return {
        "uuid": new_uuid(plan.rng),
        "name": f"{host.name}_gpu{card}",
        "generation": 1,
        "parent_provider_uuid": host.uuid,
        "root_provider_uuid": host.uuid,
        "inventories": {
            "resource_provider_generation": 1,
            "inventories": {"VGPU": _inventory(VGPUS_PER_CARD, 0, 1.0)},
        },
        "traits": {"resource_provider_generation": 1, "traits": [GPU_MODEL_TRAIT]},
        "aggregates": {"resource_provider_generation": 1, "aggregates": []},
    }


def _inventory(total: int, reserved: int, ratio: float) -> Item:
    return {
        "total": total,
        "reserved": reserved,
        "min_unit": 1,
        "max_unit": total,
        "step_size": 1,
        "allocation_ratio": ratio,
    }


def _group_settings() -> Iterator[tuple[str, Item]]:
    for group in sorted(GROUPS, key=lambda each: each.name):
        yield (
            group.name,
            {
                "ram_unit_gib": group.ram_unit_gib,
                "ram": _flags(handles_commitments=group.handles_commitments),
                "cores": _flags(handles_commitments=group.handles_cores),
                "instances": _flags(handles_commitments=False),
            },
        )


def _flags(*, handles_commitments: bool) -> Item:
    return {
        "handles_commitments": handles_commitments,
        "handles_dry_run": handles_commitments,
        "has_capacity": True,
        "has_quota": True,
    }


def _failover_policies() -> Iterator[Item]:
    yield {"flavor": "hana*", "count": 1}
    yield {"flavor": "g_*", "count": 1}
    yield {"flavor": "x_*", "count": 1}


def _host_facts(plan: RegionPlan) -> Iterator[Item]:
    """Fill the racks of each zone with its hosts, in the order of their numbers."""
    for host in plan.hosts:
        number_in_zone = (host.number - 1) // len(plan.zones)
        rack = number_in_zone // HOSTS_PER_RACK + 1
        yield {"name": host.name, "building_block": f"{host.zone}-rack{rack:03d}"}
