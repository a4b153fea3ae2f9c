"""What an operator sets up once: users, projects, catalog, zones, flavors, an image."""

from __future__ import annotations

from typing import Any

from cloud.api import Api, connect
from cloud.layout import (
    FLAVORS,
    PASSWORD,
    PROJECTS,
    REGION,
    SERVICE_USERS,
    SHAPES,
    Layout,
    compute_hosts,
)

SCHEDULER_ROLE = "cloud_resource_scheduler"
LIQUID_ROLE = "cloud_resource_admin"
POLICY = {
    "headroom": {
        "flavor_groups": {"*": {"ram": {"handles_commitments": True, "has_capacity": True}}},
        "failover_policies": [{"flavor": "*", "count": 0}],
    }
}
"""A region file with what the operator decides: memory of all flavor groups is committed in GiB.

No room is kept for failover, so that a host can be committed in whole.
"""
IMAGE = "tiny"


def make_catalog(layout: Layout) -> None:
    """Make service users, projects and endpoints; Placement's address is Headroom."""
    identity = connect(layout).identity
    roles = {role.name: role for role in identity.roles()}
    roles["service"] = roles.get("service") or identity.create_role(name="service")
    for name in (SCHEDULER_ROLE, LIQUID_ROLE):
        roles[name] = identity.create_role(name=name)
    service_project = identity.create_project(name="service", domain_id="default")
    for name in SERVICE_USERS:
        user = identity.create_user(name=name, password=PASSWORD, domain_id="default")
        wanted = ("admin", "service", *([SCHEDULER_ROLE] if name == "nova" else []))
        for role in wanted:
            identity.assign_project_role_to_user(service_project, user, roles[role])
    admin = identity.find_user("admin")
    for domain_name, names in PROJECTS.items():
        domain = identity.create_domain(name=domain_name)
        for name in names:
            project = identity.create_project(name=name, domain_id=domain.id)
            for role in ("admin", "member", LIQUID_ROLE):
                identity.assign_project_role_to_user(project, admin, roles[role])
    endpoints = (
        ("placement", "headroom", f"{layout.url('headroom')}/placement"),
        ("image", "glance", layout.url("glance")),
        ("compute", "nova", f"{layout.url('nova')}/v2.1"),
        ("network", "neutron", layout.url("neutron")),
    )
    for kind, name, url in endpoints:
        service = identity.create_service(type=kind, name=name)
        identity.create_endpoint(
            service_id=service.id, interface="public", region_id=REGION, url=url
        )


def make_region(layout: Layout, api: Api) -> None:
    """Make zones, an aggregate per kind of hardware, flavors and an image."""
    compute = api.connection.compute
    aggregates: dict[str, Any] = {}  # the library has no types
    required = {
        "hana": {"trait:CUSTOM_HANA_EXCLUSIVE_HOST": "required"},
        "gpu": {"trait:CUSTOM_GPU_HOST": "required"},
    }
    for host in compute_hosts(layout.host_count):
        shape = f"shape-{host.shape_name}"
        for name, zone in ((host.zone, {"availability_zone": host.zone}), (shape, {})):
            if name not in aggregates:
                aggregates[name] = compute.create_aggregate(name=name, **zone)
                traits = required.get(host.shape_name)
                if name == shape and traits:
                    compute.set_aggregate_metadata(aggregates[name], traits)
            compute.add_host_to_aggregate(aggregates[name], host.name)
    for kind in SHAPES.values():  # flavors name traits of hosts that a smaller cloud has not
        for trait in (*kind.traits, *kind.child_traits):
            api.placement("PUT", f"/traits/{trait}")
    for plan in FLAVORS:
        flavor = compute.create_flavor(
            name=plan.name,
            vcpus=plan.vcpus,
            ram=plan.memory_mib,
            disk=plan.disk_gib,
            ephemeral=plan.ephemeral_gib,
            swap=plan.swap_mib,
        )
        compute.create_flavor_extra_specs(flavor, dict(plan.extra_specs))
    api.connection.image.create_image(
        name=IMAGE,
        data=b"\0" * 1024,
        disk_format="raw",
        container_format="bare",
        visibility="public",
        wait=True,
    )
