"""Network, disk I/O and GPUs that slots hold (spec hosts, D.12).

Triggers of ``capacity_reservation`` take and give them back, whoever writes a slot. Here is what
the database refuses, as a value, and the daily look that the sums are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
from django.db import DatabaseError, transaction

from capacity.ledger.rooms import lock_rooms
from capacity.locks import set_lock_timeout
from capacity.metrics import RESERVED_DRIFT
from core.chunks import in_chunks
from core.jobs import tried
from journal.statements import fetch_rows

log = structlog.get_logger(__name__)

HAS_ROOM: Final = "hosts_resource_has_room"
HOSTS_PER_PART: Final = 500

_ALL_HOSTS: Final = """
SELECT target_host_id FROM capacity_reservation
 WHERE kind = 'committed' AND target_host_id IS NOT NULL
 UNION SELECT confirmed_host_id FROM capacity_reservation
 WHERE kind = 'committed' AND confirmed_host_id IS NOT NULL
 UNION SELECT host_id FROM hosts_hostresource WHERE reserved > 0
 UNION SELECT host_id FROM capacity_leavingroom
 ORDER BY 1
"""
# Setting a column is enough: the trigger works out what a slot holds. What it holds more is counted
# and not refused, as its size is the same.
_HOLD_ANEW: Final = """
UPDATE capacity_reservation AS slot SET held_gpus = -1
  FROM hosts_flavor AS flavor CROSS JOIN capacity_flavor_needs(flavor.extra_specs) AS need
 WHERE slot.kind = 'committed' AND flavor.name = slot.resource_name AND flavor.memory_bytes > 0
   AND (slot.target_host_id = ANY (%(hosts)s) OR slot.confirmed_host_id = ANY (%(hosts)s))
   AND (slot.held_network_bps, slot.held_disk_io_bps, slot.held_gpus) IS DISTINCT FROM (
       ceil(need.network::numeric * slot.blocked_memory_bytes / flavor.memory_bytes)::bigint,
       ceil(need.disk_io::numeric * slot.blocked_memory_bytes / flavor.memory_bytes)::bigint,
       ceil(need.gpu::numeric * slot.blocked_memory_bytes / flavor.memory_bytes)::bigint)
RETURNING slot.id
"""
_COUNT_ANEW: Final = """
WITH wanted AS (
    SELECT place.host_id, kind.resource, coalesce(sum(kind.held), 0)::bigint AS reserved
      FROM (SELECT DISTINCT slot.id, host.id AS host_id, slot.held_network_bps AS network_bps,
                   slot.held_disk_io_bps AS disk_io_bps, slot.held_gpus AS gpus
              FROM capacity_reservation AS slot
              JOIN hosts_host AS host ON host.id IN (slot.target_host_id, slot.confirmed_host_id)
             WHERE slot.kind = 'committed' AND host.id = ANY (%(hosts)s)
             UNION ALL
            SELECT -left_room.id, host_id, network_bps, disk_io_bps, gpus
              FROM capacity_leavingroom AS left_room
             WHERE host_id = ANY (%(hosts)s)) AS place
     CROSS JOIN unnest('{network,disk_io,gpu}'::text[], ARRAY[
           place.network_bps, place.disk_io_bps, place.gpus])
           AS kind (resource, held)
     GROUP BY place.host_id, kind.resource
), differs AS (
    SELECT counted.id, coalesce(wanted.reserved, 0) AS reserved
      FROM hosts_hostresource AS counted
      LEFT JOIN wanted ON wanted.host_id = counted.host_id AND wanted.resource = counted.resource
     WHERE counted.host_id = ANY (%(hosts)s) AND counted.reserved <> coalesce(wanted.reserved, 0)
)
UPDATE hosts_hostresource AS counted SET reserved = differs.reserved
  FROM differs WHERE counted.id = differs.id
RETURNING counted.resource
"""


def shortage_of(error: DatabaseError) -> str:
    """Return what a host lacks for a slot, with the numbers; empty for other errors."""
    diagnosis = getattr(error.__cause__, "diag", None)
    if getattr(diagnosis, "constraint_name", None) != HAS_ROOM:
        return ""
    return str(diagnosis.message_primary) if diagnosis is not None else ""


def verify_reserved() -> Counter[str]:
    """Make what slots hold agree with their flavors, and what is reserved with what they hold.

    It opens its transactions itself, each for some hosts, whose rooms it locks. Two at once do no
    harm.

    Returns:
        How many sums were wrong, by resource, and under ``slots`` how many slots held otherwise.

    Raises:
        Busy: a room was not free in time, three times.
    """
    found: Counter[str] = Counter()
    for part in in_chunks([row[0] for row in fetch_rows(_ALL_HOSTS)], HOSTS_PER_PART):
        found += tried(partial(_verify, part), event="reserved_tried_again")
    for resource, count in found.items():
        if resource != "slots":
            RESERVED_DRIFT.labels(resource=resource).inc(count)
    if found:
        log.warning("reserved_repaired", counts=dict(found))
    return found


def _verify(host_ids: Sequence[int]) -> Counter[str]:
    with transaction.atomic(durable=True):
        set_lock_timeout()
        lock_rooms(host_ids)
        slots = len(fetch_rows(_HOLD_ANEW, {"hosts": list(host_ids)}))
        counted = fetch_rows(_COUNT_ANEW, {"hosts": list(host_ids)})
        return Counter(row[0] for row in counted) + Counter({"slots": slots})
