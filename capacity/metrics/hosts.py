"""What agents report of their hosts, beside what slots hold there (spec hosts, D.13).

One statement of a scrape, which tells nothing above the number of hosts up to which hosts have
series of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django.db.backends.utils import CursorWrapper

from capacity.metrics.limits import tells_hosts
from journal.kept_sums import Rows
from journal.metrics import once_per_scrape
from journal.readings import Reading, Scraped, gauge

# Rows of several kinds: three labels after the host's name, then six numbers. A check that an agent
# made of its host fails or does not; a condition has the reason that its object tells.
REPORTED: Final = """
WITH reports AS MATERIALIZED (
    SELECT agent.host_name, coalesce(host.zone, '') AS zone, host.id AS host_id,
           agent.report - '{allocations,numa,hugepages}'::text[] AS report
      FROM hosts_hostagent AS agent LEFT JOIN hosts_host AS host ON host.name = agent.host_name
     WHERE %(tells_hosts)s AND agent.decommissioned_at IS NULL AND agent.report IS NOT NULL
)
SELECT 'resource' AS kind, reports.host_name, reports.zone, kind.resource, '' AS third,
       (kind.status ->> 'capacity')::numeric, (kind.status ->> 'effective_limit')::numeric,
       (kind.status ->> 'allocated')::numeric, held.reserved,
       greatest(0, (kind.status ->> 'effective_limit')::numeric
                   - (kind.status ->> 'allocated')::numeric - held.reserved),
       (kind.status ->> 'oversub_ratio')::numeric
  FROM reports
 CROSS JOIN LATERAL jsonb_each(reports.report) AS kind (resource, status)
  LEFT JOIN capacity_hostcapacity AS room ON room.host_id = reports.host_id
  LEFT JOIN hosts_hostresource AS other
         ON other.host_id = reports.host_id AND other.resource = kind.resource
 CROSS JOIN LATERAL (SELECT coalesce(CASE kind.resource
           WHEN 'cpu' THEN room.committed_vcpus + room.failover_vcpus + room.in_flight_vcpus
           WHEN 'memory' THEN room.committed_memory_bytes + room.failover_memory_bytes
                              + room.in_flight_memory_bytes
           ELSE other.reserved END, 0)::numeric AS reserved) AS held
 WHERE kind.resource IN ('cpu', 'memory', 'disk', 'network', 'disk_io')
 UNION ALL
SELECT 'resource', reports.host_name, reports.zone, 'gpu', '', other.capacity,
       other.effective_capacity, other.allocated, other.reserved,
       greatest(0, other.effective_capacity - other.allocated - other.reserved), NULL
  FROM reports JOIN hosts_hostresource AS other
       ON other.host_id = reports.host_id AND other.resource = 'gpu' AND other.capacity > 0
 UNION ALL
SELECT 'breakdown', reports.host_name, replace(part.name, '_bytes', ''), '', '',
       part.bytes::numeric, NULL, NULL, NULL, NULL, NULL
  FROM reports
 CROSS JOIN LATERAL jsonb_each_text(
       coalesce(reports.report -> 'disk_breakdown', '{}')) AS part (name, bytes)
 UNION ALL
SELECT 'images', reports.host_name, replace(part.name, '_bytes', ''), '', '',
       part.bytes::numeric, NULL, NULL, NULL, NULL, NULL
  FROM reports
 CROSS JOIN LATERAL jsonb_each_text(
       coalesce(reports.report -> 'image_storage', '{}')) AS part (name, bytes)
 UNION ALL
SELECT 'gpu', reports.host_name, kind.name, '', '',
       (reports.report -> 'gpu' ->> (kind.name || '_slots'))::numeric, NULL, NULL, NULL, NULL, NULL
  FROM reports
 CROSS JOIN unnest('{allocatable,quarantined,total,used}'::text[]) AS kind (name)
 WHERE reports.report ? 'gpu'
 UNION ALL
SELECT 'profile', reports.host_name, profile.one ->> 'name', '', '',
       max((profile.one ->> 'available')::numeric), NULL, NULL, NULL, NULL, NULL
  FROM reports
 CROSS JOIN LATERAL jsonb_array_elements(
       coalesce(reports.report -> 'gpu' -> 'profiles', '[]')) AS profile (one)
 GROUP BY 2, 3
 UNION ALL
SELECT 'condition', host.name, host.zone, stated.type,
       coalesce(host.condition_reasons -> stated.type ->> 'reason', ''),
       (stated.status = 'True')::int,
       NULL, NULL, NULL, NULL, NULL
  FROM hosts_host AS host
 CROSS JOIN LATERAL jsonb_each_text(host.conditions) AS stated (type, status)
 WHERE %(tells_hosts)s
 UNION ALL
SELECT 'condition', reports.host_name, reports.zone, made.one ->> 'check',
       CASE WHEN bool_and((made.one ->> 'ok')::bool) THEN '' ELSE 'failed' END,
       bool_and((made.one ->> 'ok')::bool)::int, NULL, NULL, NULL, NULL, NULL
  FROM reports
 CROSS JOIN LATERAL jsonb_array_elements(coalesce(reports.report -> 'health', '[]')) AS made (one)
 GROUP BY 2, 3, 4
 ORDER BY 1, 2, 3, 4
"""


def _reported(cursor: CursorWrapper) -> Rows:
    cursor.execute(REPORTED, {"tells_hosts": tells_hosts(cursor)})
    rows: Rows = cursor.fetchall()
    return rows


def _rows(kind: str, labels: int, numbers: int) -> Callable[[CursorWrapper], Rows]:
    """Return what tells the rows of a kind: so many labels with the host's, and numbers."""

    def told(cursor: CursorWrapper) -> Rows:
        found = once_per_scrape(_reported, cursor)
        return [(*row[1 : 1 + labels], *row[5 : 5 + numbers]) for row in found if row[0] == kind]

    return told


HOSTS: Final = Scraped(
    "hosts",
    Reading(
        _rows("resource", 3, 6),
        ("host", "az", "resource"),
        (
            gauge("host_resource_capacity", "What a host has, as its agent reports it."),
            gauge("host_resource_effective_limit", "What may be promised of it."),
            gauge("host_resource_allocated", "What VMs take of it."),
            gauge("host_resource_reserved", "What reservations hold of it beyond that."),
            gauge("host_resource_available", "What is left of it; 0 where too much is promised."),
            gauge("host_oversub_ratio", "Ratio of the limit to the capacity."),
        ),
    ),
    Reading(
        _rows("breakdown", 2, 1),
        ("host", "component"),
        (gauge("host_disk_breakdown_bytes", "What takes the disk of a host."),),
    ),
    Reading(
        _rows("images", 2, 1),
        ("host", "kind"),
        (
            gauge(
                "host_image_storage_bytes",
                "What images and layers take of a host's disk, and the most that they may.",
            ),
        ),
    ),
    Reading(
        _rows("gpu", 2, 1),
        ("host", "kind"),
        (gauge("host_gpu_slots", "GPUs of a host, by what may be done with them."),),
    ),
    Reading(
        _rows("profile", 2, 1),
        ("host", "profile"),
        (gauge("host_gpu_profile_slots", "Virtual GPUs of a profile that a host can make."),),
    ),
    Reading(
        _rows("condition", 4, 1),
        ("host", "az", "type", "reason"),
        (
            gauge(
                "host_condition",
                "1 for a condition or check of a host that holds, 0 for one that does not.",
            ),
        ),
    ),
)
