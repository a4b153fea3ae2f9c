"""What consumers hold on hosts, as the host rooms count it (design, "Data"; spec placement, 8.4).

The allocations of a host are those of its whole tree of providers, all of them: what is held for a
VM that has some, in flight or in a slot, is for a move that it has yet to make, and comes beside. A
VM that a slot has seen counts until the VM list no longer has it, so that its slot gets the room
back in the same moment. A host without a provider is counted from the VM list.
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

ALLOCATED: Final = """
SELECT host_id, memory_bytes, vcpus
  FROM placement_allocated(coalesce(%(host_ids)s::bigint[], ARRAY(SELECT id FROM hosts_host)))
"""

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
