"""What consumers hold on hosts, as the host rooms count it (design, "Data"; spec placement, 8.4).

The allocations of a host are those of its whole tree of providers. A VM that a reservation of the
host still holds is blocked by that, so its allocation is left out until the hold has ended; a VM
that a slot has seen counts until the VM list no longer has it, so that its slot gets the room back
in the same moment. A host without a provider is counted from the VM list.
"""

from __future__ import annotations

from typing import Final

from placement.models import Origin

NAME: Final = "placement"
#: The one way to join hosts and their providers; both tables have an index for it.
HOST_ROOT: Final = (
    "root.uuid = hosts_provider_uuid(host.provider_uuid, host.openstack_id)"
    f" AND root.origin = '{Origin.HOST.value}'"
)

ALLOCATED: Final = f"""
SELECT held.host_id, sum(held.memory_bytes)::bigint AS memory_bytes,
       sum(held.vcpus)::bigint AS vcpus
  FROM (
        SELECT host.id AS host_id,
               CASE class.name WHEN 'MEMORY_MB' THEN given.used * 1048576 ELSE 0 END
                   AS memory_bytes,
               CASE WHEN class.name IN ('VCPU', 'PCPU') THEN given.used ELSE 0 END AS vcpus
          FROM hosts_host AS host
          JOIN placement_provider AS root ON {HOST_ROOT}
          JOIN placement_provider AS part ON part.root_id = root.id
          JOIN placement_allocation AS given ON given.provider_id = part.id
          JOIN placement_resource_class AS class ON class.id = given.resource_class_id
           AND class.name IN ('MEMORY_MB', 'VCPU', 'PCPU')
          JOIN placement_consumer AS consumer ON consumer.id = given.consumer_id
         WHERE (%(host_ids)s::bigint[] IS NULL OR host.id = ANY(%(host_ids)s))
           AND NOT EXISTS (
                SELECT FROM capacity_reservation AS flight
                 WHERE flight.kind = 'in_flight' AND flight.target_host_id = host.id
                   AND flight.vm_uuid = consumer.uuid::text)
           AND NOT EXISTS (
                SELECT FROM capacity_reservationallocation AS vm
                  JOIN capacity_reservation AS slot ON slot.id = vm.reservation_id
                   AND slot.kind = 'committed' AND slot.target_host_id IS NOT NULL
                 WHERE vm.vm_uuid = consumer.uuid::text AND vm.state = 'expected'
                   AND host.id IN (slot.target_host_id, slot.confirmed_host_id))
         UNION ALL
        SELECT slot.target_host_id, vm.memory_bytes, vm.vcpus
          FROM capacity_reservation AS slot
          JOIN hosts_host AS host ON host.id = slot.target_host_id
          JOIN placement_provider AS root ON {HOST_ROOT}
          JOIN capacity_reservationallocation AS vm ON vm.reservation_id = slot.id
           AND vm.state = 'confirmed'
         WHERE slot.kind = 'committed' AND slot.confirmed_host_id = slot.target_host_id
           AND (%(host_ids)s::bigint[] IS NULL OR slot.target_host_id = ANY(%(host_ids)s))
           AND NOT EXISTS (
                SELECT FROM placement_consumer AS consumer
                  JOIN placement_allocation AS given ON given.consumer_id = consumer.id
                  JOIN placement_provider AS part ON part.id = given.provider_id
                   AND part.root_id = root.id
                 WHERE consumer.uuid::text = vm.vm_uuid)
         UNION ALL
        SELECT vm.host_id, vm.memory_bytes, vm.vcpus
          FROM hosts_instance AS vm
          JOIN hosts_host AS host ON host.id = vm.host_id
         WHERE (%(host_ids)s::bigint[] IS NULL OR vm.host_id = ANY(%(host_ids)s))
           AND NOT EXISTS (SELECT FROM placement_provider AS root WHERE {HOST_ROOT})
       ) AS held
 GROUP BY held.host_id
"""  # noqa: S608 - constants only

CLAIMS: Final = f"""
SELECT host.id, NULL
  FROM hosts_host AS host JOIN placement_provider AS root ON {HOST_ROOT}
 WHERE host.id = ANY(%(host_ids)s::bigint[])
 UNION ALL
SELECT DISTINCT host.id, consumer.uuid::text
  FROM (SELECT one::uuid AS uuid FROM unnest(%(vm_uuids)s::text[]) AS one
         WHERE one ~* '^[0-9a-f]{{8}}-?([0-9a-f]{{4}}-?){{3}}[0-9a-f]{{12}}$' OFFSET 0) AS asked
  JOIN placement_consumer AS consumer ON consumer.uuid = asked.uuid
  JOIN placement_allocation AS given ON given.consumer_id = consumer.id
  JOIN placement_provider AS part ON part.id = given.provider_id
  JOIN placement_provider AS root ON root.id = part.root_id
  JOIN hosts_host AS host ON {HOST_ROOT}
"""  # noqa: S608 - constants only
