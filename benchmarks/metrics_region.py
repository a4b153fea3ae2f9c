"""The region of ``bench metrics``: that of ``bench schedule`` with what scrapes sum up besides."""

from __future__ import annotations

from django.db import connection, transaction

from benchmarks.schedule_region import GROUPS, PROJECTS, VM_GIB, ZONES, fill_schedule_region
from scheduling.resources import GIB

VMS_PER_HOST = 20
#: Resources of a project's quota in a zone: three for each group.
RESOURCES_PER_GROUP = 3
FLAVORS_PER_GROUP = 5
UNCOVERED_SHARE = 50  # every fiftieth VM

PROVIDER_TABLES = (
    "placement_allocation",
    "placement_inventory",
    "placement_provider_trait",
    "placement_provider_aggregate",
    "placement_provider",
)

# Hosts of that region have 10 to 20 VMs.
MORE_VMS = f"""
INSERT INTO hosts_instance (
    openstack_id, name, project_id, user_id, flavor_name, vcpus, memory_bytes, disk_gib,
    flavor_extra_specs, host_id, host_name, zone, status, vm_state, task_state, power_state,
    os_type, image_id, metadata, created_at, updated_at)
SELECT md5(host.id || '-' || n)::uuid, 'vm', 'project-' || (host.id + n) %% {PROJECTS}, '',
       'bench', {VM_GIB // 4}, {VM_GIB * GIB}, 0, '{{}}', host.id, host.name, host.zone, 'ACTIVE',
       'active', '', 1, 'linux', '', '{{}}', now(), now()
  FROM hosts_host host CROSS JOIN generate_series(1, {VMS_PER_HOST}) n
 WHERE n > 10 + host.id %% 11
"""  # noqa: S608 - constants only

FAILOVER = """
INSERT INTO failover_failoverreservation (
    reservation_id, name, state, last_changed_at, acknowledged_at, version)
SELECT id, 'failover-' || id, 'active', now(), CASE WHEN id %% 10 <> 0 THEN now() END, 1
  FROM capacity_reservation WHERE kind = 'failover'
"""

UNCOVERED = f"""
INSERT INTO failover_failoverdecision (
    vm_uuid, zone, required_count, current_count, reason, facts, since)
SELECT openstack_id, zone, 1, 0, 'waiting', '{{}}', now()
  FROM hosts_instance WHERE id %% {UNCOVERED_SHARE} = 0
"""  # noqa: S608 - constants only

QUOTA = f"""
INSERT INTO capacity_projectquota (project_id, project_name, domain_id, domain_name, zone,
    quota_by_resource, generation, total_usage, payg_usage)
SELECT 'project-' || project, '', '', '', 'az-' || zone, used.by_resource, 1, used.by_resource,
       used.by_resource
  FROM generate_series(0, {PROJECTS - 1}) project CROSS JOIN generate_series(0, {ZONES - 1}) zone
 CROSS JOIN (SELECT jsonb_object_agg('resource-' || n, n) AS by_resource
               FROM generate_series(1, {GROUPS * RESOURCES_PER_GROUP}) n) used
"""  # noqa: S608 - constants only

GROUP_ROWS = f"""
INSERT INTO capacity_groupcapacity (
    group_name, zone, smallest_flavor_name, total_memory_bytes, free_memory_bytes, free_vcpus,
    exclusively_free_memory_bytes, exclusively_free_vcpus, exclusively_free_slots,
    running_instances, running_memory_bytes, running_vcpus, reserved_unused_memory_bytes,
    reserved_unused_vcpus, reserved_unused_slots, committed_slots, committed_memory_bytes, is_ready,
    ready_reason, ready_message, computed_at)
SELECT 'group-' || n, 'az-' || zone, 'flavor-0', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, true, '',
       '', now()
  FROM generate_series(0, {GROUPS - 1}) n CROSS JOIN generate_series(0, {ZONES - 1}) zone
"""  # noqa: S608 - constants only

FLAVOR_ROWS = f"""
INSERT INTO capacity_flavorcapacity (
    group_capacity_id, flavor_name, total_vm_slots, total_hosts, placeable_vms, placeable_hosts)
SELECT id, 'flavor-' || n, 1, 1, 1, 1
  FROM capacity_groupcapacity CROSS JOIN generate_series(0, {FLAVORS_PER_GROUP - 1}) n
"""  # noqa: S608 - constants only

PROVIDERS = """
INSERT INTO placement_provider (id, uuid, name, root_id, zone)
SELECT id, gen_random_uuid(), name, id, zone FROM hosts_host
"""

INVENTORIES = """
INSERT INTO placement_inventory (provider_id, resource_class_id, total, used)
SELECT provider.id, class.id, 1000, 500
  FROM placement_provider provider
  JOIN placement_resource_class class ON class.name IN ('VCPU', 'MEMORY_MB', 'DISK_GB')
"""


STATEMENTS = (
    MORE_VMS,
    FAILOVER,
    UNCOVERED,
    QUOTA,
    GROUP_ROWS,
    FLAVOR_ROWS,
    PROVIDERS,
    INVENTORIES,
)


def fill_metrics_region(hosts: int, *, reservations: int) -> None:
    """Replace everything in the database by a region, its figures, quota and providers."""
    fill_schedule_region(hosts, reservations=reservations)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(PROVIDER_TABLES)} CASCADE")
        cursor.execute("ALTER TABLE hosts_instance DISABLE TRIGGER USER")
        for statement in (
            MORE_VMS,
            FAILOVER,
            UNCOVERED,
            QUOTA,
            GROUP_ROWS,
            FLAVOR_ROWS,
            PROVIDERS,
            INVENTORIES,
        ):
            cursor.execute(statement, {})
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE hosts_instance ENABLE TRIGGER USER")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
