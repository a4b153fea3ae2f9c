"""The region of ``bench schedule``: hosts with VMs and 60,000 reservations, made by bulk SQL."""

from __future__ import annotations

from django.db import connection, transaction

from benchmarks.bench_region import empty_database
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.nova.pipelines import ensure_shipped_pipelines
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.models import Commitment
from scheduling.resources import GIB

VMS_PER_HOST = 20
HOST_GIB = 4096
HOST_VCPUS = 1024
VM_GIB = 64
SLOT_GIB = 16
SLOT_VCPUS = 4
SLOTS_PER_COMMITMENT = 10
PROJECTS = 500
GROUPS = 20
ZONES = 3

TABLES = (
    "hosts_host",
    "hosts_instance",
    "commitments_commitment",
    "capacity_reservation",
    "capacity_reservationallocation",
)

AGGREGATES = """
INSERT INTO hosts_aggregate (uuid, name, metadata, host_names, created_at, updated_at)
SELECT 'aggregate-' || n, 'aggregate-' || n, '{}', '{}', now(), now() FROM generate_series(0, 49) n
"""

HOSTS = f"""
INSERT INTO hosts_host (
    name, openstack_id, service_host, service_id, zone, hypervisor_type, cpu_arch, state, status,
    disabled_reason, maintenance, total_vcpus, total_memory_bytes, total_disk_gib, reserved_vcpus,
    reserved_memory_bytes, reserved_disk_gib, vcpus_ratio, memory_ratio, disk_ratio,
    effective_vcpus, effective_memory_bytes, effective_disk_gib, traits, aggregate_uuids,
    allowed_projects, provider_uuid, provider_inventories, provider_traits, nested_providers,
    building_block, custom_traits, conditions, domain_capabilities, generation, created_at,
    updated_at)
SELECT 'node' || lpad(n::text, 5, '0'), md5(n::text), 'node' || n, '', 'az-' || n %% {ZONES},
       'QEMU', 'x86_64', 'up', CASE WHEN n %% 97 = 0 THEN 'disabled' ELSE 'enabled' END, '', '',
       {HOST_VCPUS}, {HOST_GIB * GIB}, 0, 0, 0, 0, 1, 1, 1, {HOST_VCPUS}, {HOST_GIB * GIB}, 0,
       ARRAY['CUSTOM_TRAIT_' || n %% 40, 'COMPUTE_NODE', 'HW_CPU_X86_AVX2'],
       ARRAY['aggregate-' || n %% 50],
       CASE WHEN n %% 20 = 0 THEN ARRAY['project-' || n %% {PROJECTS}] ELSE '{{}}' END,
       '', '{{}}', '{{}}', '[]', 'bb-' || n / 20,
       CASE WHEN n %% 10 = 0 THEN ARRAY['CUSTOM_HANA_EXCLUSIVE_HOST'] ELSE '{{}}' END,
       '{{"Ready": "True", "HypervisorDisabled": "False"}}',
       '{{"features": ["sev"], "cpu_modes": ["host-passthrough"], "devices": ["video"]}}',
       1, now(), now()
  FROM generate_series(1, %(hosts)s) n
"""  # noqa: S608 - constants only

VMS = f"""
INSERT INTO hosts_instance (
    openstack_id, name, project_id, user_id, flavor_name, vcpus, memory_bytes, disk_gib,
    flavor_extra_specs, host_id, host_name, zone, status, vm_state, task_state, power_state,
    os_type, image_id, metadata, created_at, updated_at)
SELECT md5(host.id || '-' || n)::uuid, 'vm', 'project-' || (host.id + n) %% {PROJECTS}, '',
       'bench', {VM_GIB // 4}, {VM_GIB * GIB}, 0, '{{}}', host.id, host.name, host.zone, 'ACTIVE',
       'active', '', 1, 'linux', '', '{{}}', now(), now()
  FROM hosts_host host CROSS JOIN generate_series(1, {VMS_PER_HOST}) n
 WHERE n <= 10 + host.id %% 11
"""  # noqa: S608 - constants only

RESERVATIONS = f"""
INSERT INTO capacity_reservation (
    uuid, kind, scheduling_domain, zone, flavor_group_name, resource_name, project_id, domain_id,
    memory_bytes, vcpus, blocked_memory_bytes, blocked_vcpus, target_host_id, confirmed_host_id,
    commitment_id, slot_index, end_time, creator, creator_request_id, parent_generation,
    observed_parent_generation, generation, is_ready, ready_reason, ready_message, vm_uuid, user_id,
    intent, placement_id, created_at, updated_at)
SELECT gen_random_uuid(), held.kind, 'nova', host.zone, 'group-' || held.owner %% {GROUPS}, 'bench',
       'project-' || held.owner %% {PROJECTS}, '', {SLOT_GIB * GIB}, {SLOT_VCPUS},
       {SLOT_GIB * GIB}, {SLOT_VCPUS}, host.id,
       CASE WHEN held.kind = 'in_flight' THEN NULL ELSE host.id END,
       CASE WHEN held.kind = 'committed' THEN first.id + held.owner END,
       CASE WHEN held.kind = 'committed' THEN held.n %% {SLOTS_PER_COMMITMENT} END,
       CASE WHEN held.kind = 'in_flight' THEN now() + interval '1 day' END,
       'bench', '', 0, 0, 1, held.kind <> 'in_flight', '', '',
       CASE WHEN held.kind = 'in_flight' THEN 'flight-' || held.n ELSE '' END, '', '',
       CASE WHEN held.kind = 'in_flight' THEN gen_random_uuid() END, now(), now()
  FROM (SELECT n, n / {SLOTS_PER_COMMITMENT} AS owner,
               CASE WHEN n < %(slots)s THEN 'committed'
                    WHEN n < %(slots)s + %(failover)s THEN 'failover' ELSE 'in_flight' END AS kind
          FROM generate_series(0, %(slots)s + %(failover)s + %(in_flight)s - 1) n) held
  JOIN (SELECT id, zone, row_number() OVER (ORDER BY id) - 1 AS position FROM hosts_host) host
    ON host.position = (held.n::bigint * 7919) %% %(hosts)s
 CROSS JOIN (SELECT min(id) AS id FROM commitments_commitment) first
"""  # noqa: S608 - constants only

# Half of the slots are filled by a VM of their host, a tenth waits for one; failover has two users.
ALLOCATIONS = """
INSERT INTO capacity_reservationallocation (
    reservation_id, vm_uuid, state, memory_bytes, vcpus, since, confirmed_host_id, confirmed_at,
    created_at, updated_at)
SELECT held.id, 'user-' || held.id || '-' || n,
       CASE WHEN held.kind = 'committed' AND held.id %% 10 = 1 THEN 'expected' ELSE 'confirmed' END,
       held.memory_bytes / 2, held.vcpus / 2, now(),
       CASE WHEN held.kind = 'committed' AND held.id %% 10 = 1 THEN NULL
            ELSE held.target_host_id END,
       CASE WHEN held.kind = 'committed' AND held.id %% 10 = 1 THEN NULL ELSE now() END,
       now(), now()
  FROM capacity_reservation held CROSS JOIN generate_series(1, 2) n
 WHERE (held.kind = 'failover') OR (held.kind = 'committed' AND n = 1
       AND (held.id %% 10 = 1 OR held.id %% 2 = 0))
"""


def fill_schedule_region(hosts: int, *, reservations: int) -> None:
    """Replace everything in the database by hosts, VMs and reservations.

    Of the reservations two thirds are slots, a quarter is for failover, the rest is in flight.
    """
    empty_database()
    ensure_shipped_pipelines(request_id="bench")
    parameters = {
        "hosts": hosts,
        "slots": reservations * 8 // 12,
        "failover": reservations * 3 // 12,
        "in_flight": reservations // 12,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        for table in TABLES:  # nobody follows these changes; without triggers it is twice as fast
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        for statement in (AGGREGATES, HOSTS, VMS):
            cursor.execute(statement, parameters)
        Commitment.objects.bulk_create(
            Commitment(
                commitment_uuid=f"commitment-{number}",
                flavor_group_name=f"group-{number % GROUPS}",
                resource_type=ResourceType.MEMORY,
                requested_amount=SLOT_GIB * GIB * SLOTS_PER_COMMITMENT,
                zone=f"az-{number % ZONES}",
                project_id=f"project-{number % PROJECTS}",
                state=CommitmentStatus.CONFIRMED,
            )
            for number in range(parameters["slots"] // SLOTS_PER_COMMITMENT + 1)
        )
        for statement in (RESERVATIONS, ALLOCATIONS):
            cursor.execute(statement, parameters)
        rebuild_host_capacity()
    with transaction.atomic(), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
