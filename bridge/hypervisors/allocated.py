"""What VMs take on hosts as Hypervisor objects say (``HEADROOM_ALLOCATION_SOURCE=hypervisor``).

A host that does not say it is counted from the VM list. A VM that a slot has seen counts until the
VM list no longer has it, so that its slot gets the room back in the same moment.
"""

from __future__ import annotations

from typing import Final

from capacity.hooks import AllocationSource
from capacity.ledger.allocated import LISTED_VMS

NAME: Final = "hypervisor"

TAKEN: Final = """
SELECT host.id AS host_id, (host.reported_memory_bytes + gone.memory_bytes)::bigint AS memory_bytes,
       (host.reported_vcpus + gone.vcpus)::bigint AS vcpus
  FROM hosts_host AS host
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(vm.memory_bytes), 0) AS memory_bytes, coalesce(sum(vm.vcpus), 0) AS vcpus
         FROM capacity_reservation AS held
         JOIN capacity_reservationallocation AS vm ON vm.reservation_id = held.id
        WHERE held.target_host_id = host.id AND held.confirmed_host_id = host.id
          AND vm.state = 'confirmed'
          AND NOT host.reported_instances @> jsonb_build_array(jsonb_build_object('id', vm.vm_uuid))
       ) AS gone
 WHERE host.reported_memory_bytes IS NOT NULL
   AND (%(host_ids)s::bigint[] IS NULL OR host.id = ANY(%(host_ids)s))
 UNION ALL
SELECT vm.host_id, sum(vm.memory_bytes)::bigint, sum(vm.vcpus)::bigint
  FROM hosts_instance AS vm JOIN hosts_host AS host ON host.id = vm.host_id
 WHERE host.reported_memory_bytes IS NULL
   AND (%(host_ids)s::bigint[] IS NULL OR vm.host_id = ANY(%(host_ids)s))
 GROUP BY vm.host_id
"""

#: Objects say of no VM what it takes, so none of them is a claim.
NO_CLAIMS: Final = """
SELECT NULL::bigint, NULL::text, NULL::timestamptz, 0::bigint, 0::bigint
 WHERE false AND %(vm_uuids)s::text[] IS NULL AND %(host_ids)s::bigint[] IS NULL
"""
SOURCE: Final = AllocationSource(taken=TAKEN, claims=NO_CLAIMS, listed=LISTED_VMS)
