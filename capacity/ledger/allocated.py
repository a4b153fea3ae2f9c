"""What VMs take on hosts, from the source that the deployment chose (design, "Data").

``HEADROOM_ALLOCATION_SOURCE`` names it: the VM list, or what a higher app registered. The truth
stays in the host rooms; only where their ``allocated_*`` comes from differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, NamedTuple

from django.conf import settings

from capacity.hooks import allocation_sources
from core.conf import headroom
from hosts.listing import vms_listed_at
from journal.statements import execute, fetch_rows, fetch_value

LISTED: Final = "instances"

#: One row per host that carries VMs; ``host_ids`` is null for every host.
LISTED_VMS: Final = """
SELECT vm.host_id, sum(vm.memory_bytes)::bigint AS memory_bytes, sum(vm.vcpus)::bigint AS vcpus
  FROM hosts_instance AS vm
 WHERE vm.host_id IS NOT NULL
   AND (%(host_ids)s::bigint[] IS NULL OR vm.host_id = ANY(%(host_ids)s))
 GROUP BY vm.host_id
"""
RECOUNT: Final = """
UPDATE capacity_hostcapacity AS room
   SET allocated_memory_bytes = coalesce(vms.memory_bytes, 0),
       allocated_vcpus = coalesce(vms.vcpus, 0), counted_from = %(source)s
  FROM unnest(%(host_ids)s::bigint[]) AS chosen(host_id)
  LEFT JOIN ({allocated}) AS vms ON vms.host_id = chosen.host_id
 WHERE room.host_id = chosen.host_id
   AND (room.allocated_memory_bytes, room.allocated_vcpus, room.counted_from)
       IS DISTINCT FROM (coalesce(vms.memory_bytes, 0), coalesce(vms.vcpus, 0), %(source)s)
"""
DRIFT: Final = """
SELECT room.host_id, room.zone,
       coalesce(vms.memory_bytes, 0) - room.allocated_memory_bytes AS memory_bytes,
       coalesce(vms.vcpus, 0) - room.allocated_vcpus AS vcpus
  FROM capacity_hostcapacity AS room
  LEFT JOIN ({allocated}) AS vms ON vms.host_id = room.host_id
 WHERE (room.allocated_memory_bytes, room.allocated_vcpus)
       IS DISTINCT FROM (coalesce(vms.memory_bytes, 0), coalesce(vms.vcpus, 0))
 ORDER BY room.host_id
"""
LOCK_ROOMS: Final = """
SELECT id FROM capacity_hostcapacity WHERE host_id = ANY(%s::bigint[]) ORDER BY id FOR NO KEY UPDATE
"""


class UnknownSourceError(Exception):
    """``HEADROOM_ALLOCATION_SOURCE`` names a source that no app offers."""


class Drift(NamedTuple):
    """A host of which a source says otherwise than its room.

    Attributes:
        memory_bytes: How much more the source says, in bytes; negative is less.
        vcpus: Likewise vCPUs.
    """

    host_id: int
    zone: str
    memory_bytes: int
    vcpus: int


def known_sources() -> Mapping[str, str]:
    """Return every source by name: a query of host, bytes and vCPUs.

    Beside a source that knows of later claims, the VM list is told with them.
    """
    offered = allocation_sources()
    in_force = offered.get(chosen_source())
    taken = {name: source.taken for name, source in offered.items()}
    return MappingProxyType({LISTED: in_force.listed if in_force else LISTED_VMS, **taken})


def chosen_source() -> str:
    """Return the name of the source in force."""
    return str(settings.HEADROOM.allocation_source)


def allocated_rows() -> str:
    """Return the query of what VMs take on hosts; its parameter is ``host_ids``.

    Raises:
        UnknownSourceError: no app offers the source in force.
    """
    name = chosen_source()
    try:
        return known_sources()[name]
    except KeyError as error:
        raise UnknownSourceError(f"nobody offers the allocation source {name}") from error


def recount_allocated(host_ids: Iterable[int]) -> None:
    """Make what VMs take on hosts agree with the source, where that is not the VM list.

    The VM list changes by imports alone, which count all rooms themselves. In other sources a VM
    counts for as long as a slot sees it. Locks the rooms in primary key order; runs inside the
    caller's transaction.

    Args:
        host_ids: Hosts whose holds or allocations changed.
    """
    ids = sorted(set(host_ids))
    if not ids or chosen_source() == LISTED:
        return
    execute(LOCK_ROOMS, [ids])
    parameters = {"host_ids": ids, "source": chosen_source()}
    execute(RECOUNT.format(allocated=allocated_rows()), parameters)


def drift_from(source: str) -> list[Drift]:
    """Return the hosts of which a source says otherwise than their rooms, by key."""
    statement = DRIFT.format(allocated=known_sources()[source])
    return [Drift(*row) for row in fetch_rows(statement, drift_parameters())]


def is_silent(source: str) -> bool:
    """Return whether a source tells of no VM at all, as where nobody writes to it."""
    asked = f"SELECT EXISTS ({known_sources()[source]})"
    return not fetch_value(asked, drift_parameters())


def drift_parameters() -> dict[str, str | None]:
    """Return the parameters of queries of all hosts."""
    since = claims_unlisted_since() if chosen_source() != LISTED else None
    return {"host_ids": None, "claimed_since": since.isoformat() if since else None}


def claims_unlisted_since() -> datetime | None:
    """Return since when the VM list cannot know of claims; None where it is of no known time.

    A VM may take the grace of slots from its claim until a list shows it on its host.
    """
    listed_at = vms_listed_at()
    if listed_at is None:
        return None
    return listed_at - timedelta(seconds=headroom().slots.allocation_grace_seconds)
