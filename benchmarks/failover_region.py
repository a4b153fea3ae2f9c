"""The region of ``bench failover`` as rows: the model's hosts and VMs, made by bulk SQL."""

from __future__ import annotations

from django.db import connection, transaction

from benchmarks.bench_region import empty_database
from benchmarks.failover_zones import GIB_PER_VCPU, HOST_GIB
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.nova.pipelines import ensure_shipped_pipelines
from failover.models import FailoverPolicy
from hosts.models import Domain, Project
from scheduling.resources import GIB

PROJECT, DOMAIN = "bench-project", "bench-domain"
TABLES = ("hosts_host", "hosts_instance")

HOSTS = f"""
INSERT INTO hosts_host (
    name, openstack_id, service_host, service_id, zone, hypervisor_type, cpu_arch, state, status,
    disabled_reason, maintenance, total_vcpus, total_memory_bytes, total_disk_gib, reserved_vcpus,
    reserved_memory_bytes, reserved_disk_gib, vcpus_ratio, memory_ratio, disk_ratio,
    effective_vcpus, effective_memory_bytes, effective_disk_gib, traits, aggregate_uuids,
    allowed_projects, provider_uuid, provider_inventories, provider_traits, nested_providers,
    building_block, generation, created_at, updated_at)
SELECT 'node' || lpad(n::text, 5, '0'), md5(n::text), 'node' || n, '', 'az-' || n %% %(zones)s,
       'QEMU', 'x86_64', 'up', 'enabled', '', '', {HOST_GIB // GIB_PER_VCPU},
       {HOST_GIB}::bigint * {GIB}, 0, 0, 0, 0, 1, 1, 1, {HOST_GIB // GIB_PER_VCPU},
       {HOST_GIB}::bigint * {GIB}, 0, '{{}}', '{{}}', '{{}}', '', '{{}}', '{{}}', '[]',
       'bb-' || n / 20, 1, now(), now()
  FROM generate_series(1, %(hosts)s) n
"""  # noqa: S608 - constants only

# Sizes 16 to 512 GiB with frequencies 16:16:8:4:2:1, drawn by a hash of the VM's number.
VMS = f"""
INSERT INTO hosts_instance (
    openstack_id, name, project_id, user_id, flavor_name, vcpus, memory_bytes, disk_gib,
    flavor_extra_specs, host_id, host_name, zone, status, vm_state, task_state, power_state,
    os_type, image_id, metadata, created_at, updated_at)
SELECT md5(vm.n::text)::uuid, 'vm', '{PROJECT}', '', 'm' || vm.gib, vm.gib / {GIB_PER_VCPU},
       vm.gib::bigint * {GIB}, 0, '{{}}', host.id, host.name, host.zone, 'ACTIVE', 'active', '', 1,
       'linux', '', '{{}}', now(), now()
  FROM (SELECT n, CASE WHEN draw < 16 THEN 16 WHEN draw < 32 THEN 32 WHEN draw < 40 THEN 64
                       WHEN draw < 44 THEN 128 WHEN draw < 46 THEN 256 ELSE 512 END AS gib
          FROM (SELECT n, abs(hashint4(n)) %% 47 AS draw
                  FROM generate_series(%(first)s, %(last)s) n) AS drawn) AS vm
  JOIN (SELECT id, name, zone, row_number() OVER (ORDER BY id) - 1 AS place
          FROM hosts_host) AS host ON host.place = vm.n %% %(hosts)s
"""  # noqa: S608 - constants only

MOVE = """
UPDATE hosts_instance AS vm SET host_id = other.id, host_name = other.name
  FROM hosts_host AS host
  JOIN LATERAL (SELECT id, name FROM hosts_host AS next
                 WHERE next.zone = host.zone AND next.id > host.id ORDER BY next.id LIMIT 1)
       AS other ON true
 WHERE host.id = vm.host_id AND {chosen}
RETURNING vm.openstack_id
"""
ONE_IN_500 = "vm.id %% 500 = 0"
SPREAD = """
vm.id IN (SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS place,
                                 count(*) OVER () / %(count)s AS step FROM hosts_instance) AS listed
           WHERE place %% step = 1 ORDER BY id LIMIT %(count)s)
"""
FIRST_ADDED = 10_000_000


def fill_failover_region(hosts: int, vms: int, *, zones: int, required: int) -> None:
    """Replace everything in the database by hosts, VMs of six sizes and one policy."""
    empty_database()
    ensure_shipped_pipelines(request_id="bench")
    Domain.objects.create(openstack_id=DOMAIN, name=DOMAIN)
    Project.objects.create(openstack_id=PROJECT, name=PROJECT, domain_id=DOMAIN)
    FailoverPolicy.objects.create(flavor_pattern="*", required_count=required)
    parameters = {"hosts": hosts, "first": 1, "last": vms, "zones": zones}
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in (HOSTS, VMS):
            cursor.execute(statement, parameters)
        rebuild_host_capacity()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def move_some_vms() -> None:
    """Move a VM in 500 to the next host of its zone."""
    _move(ONE_IN_500, {})


def add_vms(count: int) -> list[str]:
    """Add VMs of the model's sizes, spread over the hosts; return their uuids."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(max(id), 0) FROM hosts_instance")
        (newest,) = cursor.fetchone()
        cursor.execute("SELECT count(*) FROM hosts_host")
        (hosts,) = cursor.fetchone()
        first = FIRST_ADDED + newest
        cursor.execute(VMS, {"first": first, "last": first + count - 1, "hosts": hosts})
        rebuild_host_capacity()
        cursor.execute("SELECT openstack_id FROM hosts_instance WHERE id > %s", [newest])
        return [row[0] for row in cursor.fetchall()]


def move_vms(count: int) -> list[str]:
    """Move some VMs to the next host of their zone; return their uuids."""
    return _move(SPREAD, {"count": count})


def _move(chosen: str, parameters: dict[str, int]) -> list[str]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(MOVE.format(chosen=chosen), parameters)
        moved = [row[0] for row in cursor.fetchall()]
        rebuild_host_capacity()
    return moved
