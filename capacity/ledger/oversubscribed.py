"""Since when hosts promise more than they have, as it stands on their rooms (commitments, 11)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.db import transaction

from capacity.models import HostCapacity
from journal.statements import execute

LACKS: Final = """
(room.allocated_memory_bytes + room.committed_memory_bytes + room.failover_memory_bytes
 + room.in_flight_memory_bytes > room.effective_memory_bytes
 OR room.allocated_vcpus + room.committed_vcpus + room.failover_vcpus
    + room.in_flight_vcpus > room.effective_vcpus
 OR room.host_id IN (SELECT other.host_id FROM hosts_hostresource AS other
                      WHERE other.allocated + other.reserved > other.effective_capacity
                        AND other.source <> 'unknown' AND NOT other.is_stale))
"""
# No capacity at all is no data, not a host that lacks everything.
HAS_CAPACITY: Final = "(room.effective_memory_bytes > 0 OR room.effective_vcpus > 0)"

FORGET_RESOLVED: Final = f"""
UPDATE capacity_hostcapacity SET oversubscribed_since = NULL WHERE id IN (
    SELECT id FROM capacity_hostcapacity AS room
     WHERE room.oversubscribed_since IS NOT NULL AND {HAS_CAPACITY} AND NOT {LACKS}
     ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
"""  # noqa: S608 - constants only


def forget_resolved() -> int:
    """Forget of hosts that have enough again that they had not; return how many there were."""
    with transaction.atomic(durable=True):
        return execute(FORGET_RESOLVED)


def note_oversubscribed(room_id: int, *, since: datetime | None, now: datetime) -> None:
    """Note when a host was looked at, and since when it lacks something; None if it does not."""
    HostCapacity.objects.filter(pk=room_id).update(
        oversubscribed_since=since, oversubscription_checked_at=now
    )
