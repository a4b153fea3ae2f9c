"""What consumers hold on hosts, as the host rooms count it (design, "Data"; spec placement, 8.4).

The allocations of a host are those of its whole tree of providers, all of them: what is held for a
VM that has some, in flight or in a slot, is for a move that it has yet to make, and comes beside. A
VM that a slot has seen counts until the VM list no longer has it, so that its slot gets the room
back in the same moment. A host without a provider is counted from the VM list.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from core.conf import headroom
from journal.statements import fetch_rows
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

#: Who was claimed or given up since counts as claimed, everybody else as listed.
LISTED: Final = """
WITH newer AS MATERIALIZED (
    SELECT consumer.uuid FROM placement_consumer AS consumer
     WHERE consumer.updated_at >= %(claimed_since)s::timestamptz
     UNION
    SELECT event.consumer_uuid FROM placement_allocation_event AS event
     WHERE event.created_at >= %(claimed_since)s::timestamptz)
SELECT vm.host_id, sum(vm.memory_bytes)::bigint AS memory_bytes, sum(vm.vcpus)::bigint AS vcpus
  FROM (SELECT vm.host_id, vm.memory_bytes, vm.vcpus FROM hosts_instance AS vm
         WHERE vm.host_id IS NOT NULL
           AND NOT EXISTS (SELECT FROM newer
                            WHERE newer.uuid = hosts_provider_uuid('', vm.openstack_id))
         UNION ALL
        SELECT claim.host, claim.memory_bytes, claim.vcpus
          FROM placement_claimed(ARRAY(SELECT newer.uuid::text FROM newer)) AS claim) AS vm
 WHERE %(host_ids)s::bigint[] IS NULL OR vm.host_id = ANY(%(host_ids)s)
 GROUP BY vm.host_id
"""

#: Who holds something on a host where the VM list does not have it.
UNLISTED: Final = f"""
SELECT consumer.uuid::text, coalesce(kind.name, ''), payer.external_id, consumer.updated_at,
       coalesce(sum(given.used) FILTER (WHERE class.name = 'MEMORY_MB'), 0) * 1048576,
       coalesce(sum(given.used) FILTER (WHERE class.name IN ('VCPU', 'PCPU')), 0)
  FROM hosts_host AS host
  JOIN placement_provider AS root ON {HOST_ROOT}
  JOIN placement_provider AS part ON part.root_id = root.id
  JOIN placement_allocation AS given ON given.provider_id = part.id
  JOIN placement_resource_class AS class ON class.id = given.resource_class_id
  JOIN placement_consumer AS consumer ON consumer.id = given.consumer_id
  JOIN placement_project AS payer ON payer.id = consumer.project_id
  LEFT JOIN placement_consumer_type AS kind ON kind.id = consumer.type_id
 WHERE host.id = %(host_id)s
   AND NOT EXISTS (SELECT FROM hosts_instance AS vm
                    WHERE vm.host_id = host.id
                      AND hosts_provider_uuid('', vm.openstack_id) = consumer.uuid)
 GROUP BY consumer.id, kind.name, payer.external_id
 ORDER BY consumer.updated_at DESC, consumer.id LIMIT %(most)s
"""  # noqa: S608 - constants only

CLAIMS: Final = f"""
SELECT host.id, NULL, NULL::timestamptz, 0::bigint, 0::bigint
  FROM hosts_host AS host JOIN placement_provider AS root ON {HOST_ROOT}
 WHERE host.id = ANY(%(host_ids)s::bigint[])
 UNION ALL
SELECT host.id, consumer.uuid::text, consumer.updated_at,
       coalesce(sum(given.used) FILTER (WHERE class.name = 'MEMORY_MB'), 0)::bigint * 1048576,
       coalesce(sum(given.used) FILTER (WHERE class.name IN ('VCPU', 'PCPU')), 0)::bigint
  FROM (SELECT one::uuid AS uuid FROM unnest(%(vm_uuids)s::text[]) AS one
         WHERE one ~* '^[0-9a-f]{{8}}-?([0-9a-f]{{4}}-?){{3}}[0-9a-f]{{12}}$' OFFSET 0) AS asked
  JOIN placement_consumer AS consumer ON consumer.uuid = asked.uuid
  JOIN placement_allocation AS given ON given.consumer_id = consumer.id
  JOIN placement_resource_class AS class ON class.id = given.resource_class_id
  JOIN placement_provider AS part ON part.id = given.provider_id
  JOIN placement_provider AS root ON root.id = part.root_id
  JOIN hosts_host AS host ON {HOST_ROOT}
 GROUP BY host.id, consumer.id
"""  # noqa: S608 - constants only


class UnlistedClaim(NamedTuple):
    """A consumer that holds something on a host where the VM list does not have it.

    Attributes:
        kind: Type of the consumer, as its client named it; mostly empty.
        since: Time of its last write.
    """

    consumer: str
    kind: str
    project_id: str
    since: datetime
    memory_bytes: int
    vcpus: int


def unlisted_claims(host_id: int, *, most: int) -> list[UnlistedClaim]:
    """Return the newest claims on a host that the VM list lacks, where claims are the source."""
    if headroom().allocation_source != NAME:
        return []
    return [
        UnlistedClaim(consumer, kind, project_id, since, int(memory_bytes), int(vcpus))
        for consumer, kind, project_id, since, memory_bytes, vcpus in fetch_rows(
            UNLISTED, {"host_id": host_id, "most": most}
        )
    ]
