"""A region of hosts, flavor groups, VMs and commitments, made by bulk SQL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from django.db import connection, transaction

from benchmarks.bench_region import empty_database
from benchmarks.schedule_region import HOSTS, ZONES
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import (
    FlavorGroup,
    FlavorGroupMember,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
)
from capacity.nova.pipelines import ensure_shipped_pipelines
from hosts.models import Flavor
from scheduling.resources import GIB

SIZES_GIB = (64, 32, 16)
GIB_PER_VCPU = 4
VMS_PER_PROJECT = 500
GROUPS_PER_PROJECT = 2
COMMITTED_GIB = 1024
COMMITTED_VCPUS = 128
TABLES = ("hosts_host", "hosts_instance", "commitments_commitment")

# VMs of a project are spread over all hosts and zones, and over two neighbouring flavor groups.
VMS = f"""
INSERT INTO hosts_instance (
    openstack_id, name, project_id, user_id, flavor_name, vcpus, memory_bytes, disk_gib,
    flavor_extra_specs, host_id, host_name, zone, status, vm_state, task_state, power_state,
    os_type, image_id, metadata, nova_created_at, created_at, updated_at)
SELECT md5(n::text)::uuid, 'vm-' || n, 'project-' || n %% %(projects)s, '',
       'g' || (n %% %(projects)s + n / %(projects)s %% {GROUPS_PER_PROJECT}) %% %(groups)s
           || '_m' || size.gib,
       size.gib / {GIB_PER_VCPU}, size.gib::bigint * {GIB}, 40, '{{"hw_video:ram_max_mb": "16"}}',
       host.id, host.name, host.zone, 'ACTIVE', 'active', '', 1, 'linux', '', '{{}}',
       timestamptz '2026-01-01' + (hashint8(n) %% 10000000) * interval '1 second', now(), now()
  FROM generate_series(0, %(vms)s - 1) n
  JOIN unnest(ARRAY{list(SIZES_GIB)}) WITH ORDINALITY AS size (gib, place)
    ON size.place = 1 + abs(hashint8(n)) %% {len(SIZES_GIB)}
  JOIN (SELECT id, name, zone, row_number() OVER (ORDER BY id) - 1 AS position FROM hosts_host) host
    ON host.position = (n::bigint * 7919) %% %(hosts)s
"""  # noqa: S608 - constants only

# Per project, zone and group two commitments of memory, and per group one of cores.
COMMITMENTS = f"""
INSERT INTO commitments_commitment (
    commitment_uuid, scheduling_domain, flavor_group_name, resource_type, requested_amount, zone,
    project_id, domain_id, state, allow_rejection, generation, creator_request_id, origin,
    accepted_spec, accepted_at, accepted_amount, used_memory_bytes, used_vcpus, ready_status,
    ready_reason, ready_message, ready_observed_generation, ready_changed_at, status_summary,
    start_time, end_time, created_at, updated_at)
SELECT md5(concat_ws('-', project, zone, place, number))::uuid, 'nova', made.group_name, made.kind,
       made.amount, 'az-' || zone, 'project-' || project, '', 'confirmed', false, 1, '', 'bench',
       jsonb_build_object(
           'state', 'confirmed', 'availabilityZone', 'az-' || zone, 'flavorGroupName',
           made.group_name, 'resourceType', made.kind, 'amount', made.amount,
           'startTime', '2026-02-01T00:00:00+00:00', 'endTime', NULL),
       now(), made.amount, 0, 0, true, 'Accepted', '', 1, now(), '', '2026-02-01',
       now() + interval '1 year', now(), now()
  FROM generate_series(0, %(projects)s - 1) project
 CROSS JOIN generate_series(0, {ZONES - 1}) zone
 CROSS JOIN generate_series(0, {GROUPS_PER_PROJECT - 1}) place
 CROSS JOIN generate_series(1, 3) number
 CROSS JOIN LATERAL (
       SELECT 'group-' || (project + place) %% %(groups)s AS group_name,
              CASE WHEN number = 3 THEN 'cores' ELSE 'memory' END AS kind,
              CASE WHEN number = 3 THEN {COMMITTED_VCPUS} ELSE {COMMITTED_GIB * GIB} END AS amount
       ) made
 WHERE number < 3 OR zone = 0
"""  # noqa: S608 - constants only


def fill_commitment_region(*, hosts: int, vms: int, projects: int, groups: int) -> None:
    """Replace everything in the database.

    Args:
        hosts: Hosts, in three zones.
        vms: VMs, evenly over hosts and projects.
        projects: Projects, each with 14 commitments.
        groups: Flavor groups of three flavors each.
    """
    empty_database()
    ensure_shipped_pipelines(request_id="bench")
    parameters: Mapping[str, int] = {
        "hosts": hosts,
        "vms": vms,
        "projects": projects,
        "groups": groups,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        _make_groups(groups)
        for table in TABLES:  # nobody follows these changes; without triggers it is twice as fast
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        for statement in (HOSTS, VMS, COMMITMENTS):
            cursor.execute(statement, parameters)
        rebuild_host_capacity()
    with transaction.atomic(), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _make_groups(count: int) -> None:
    for number in range(count):
        flavors = [
            Flavor.objects.create(
                openstack_id=f"flavor-{number}-{gib}",
                name=f"g{number}_m{gib}",
                vcpus=gib // GIB_PER_VCPU,
                memory_bytes=gib * GIB,
                extra_specs={
                    "quota:hw_version": f"group-{number}",
                    "capabilities:hypervisor_type": "qemu",
                },
            )
            for gib in SIZES_GIB
        ]
        group = FlavorGroup.objects.create(
            name=f"group-{number}",
            largest_flavor=flavors[0],
            smallest_flavor=flavors[-1],
            ram_core_ratio_mib=GIB_PER_VCPU * 1024,
        )
        for position, flavor in enumerate(flavors):
            FlavorGroupMember.objects.create(group=group, flavor=flavor, position=position)
    FlavorGroupSettings.objects.create(
        group_name="*", ram_unit_gib=16, ram_handles_commitments=True, ram_has_capacity=True
    )
    now = datetime.now(tz=UTC)
    FlavorGroupSnapshot.objects.create(
        is_ready=True, last_extracted_at=now, last_content_change_at=now, content_hash="bench"
    )
