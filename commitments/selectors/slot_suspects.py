"""Which slots have to be looked at, because something about them changed (spec commitments, 9.6).

Changes are followed by the log of them (:mod:`core.changes`), so a
look costs what changed and not the region. A full look asks the same of every slot.

Tables may have been filled a moment ago, and what PostgreSQL knows of them be of the time when they
were empty. So nothing here leaves it to the planner in which order tables are joined: candidates
are listed first, and each statement looks up by index what belongs to a few thousand of them, table
by table (``OFFSET 0`` keeps it that way). That costs the same whatever the statistics say.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from core.changes import changed_rows, has_deletions, is_forgotten
from core.chunks import in_chunks
from hosts.domain.vm import ABSENT_STATUSES
from journal.statements import fetch_row, fetch_rows, fetch_value

SLOTS_AT_ONCE: Final = 2000


def _changed(table: str, alias: str) -> str:
    """Return the rows of a followed table that were written since the last look."""
    return changed_rows(table, alias, since="%(since)s")


_VMS = _changed("hosts_instance", "vm")
_LISTED = _changed("capacity_reservationallocation", "listed")
_SLOTS = _changed("capacity_reservation", "slot")
_HOSTS = _changed("hosts_host", "host")

WHAT_CHANGED = f"""
SELECT EXISTS (SELECT FROM {_SLOTS} WHERE slot.kind = 'committed' AND slot.zone = %(zone)s)
       OR {has_deletions("capacity_reservation", since="%(since)s")},
       {has_deletions("hosts_instance", since="%(since)s")},
       EXISTS (SELECT FROM {_HOSTS} WHERE host.zone = %(zone)s),
       EXISTS (SELECT FROM {_VMS}) OR EXISTS (SELECT FROM {_LISTED}),
       {is_forgotten("%(since)s")}
"""  # noqa: S608 - constants only

# VMs that are waited for; slots whose VMs, size or host changed; slots of VMs that changed, and
# slots of their project where they are now.
CANDIDATES = f"""
SELECT listed.reservation_id AS id FROM capacity_reservationallocation AS listed
 WHERE listed.state = 'expected' AND listed.vm_host_id IS NULL
 UNION
SELECT listed.reservation_id FROM {_LISTED}
 UNION
SELECT slot.id FROM {_SLOTS} WHERE slot.kind = 'committed' AND slot.zone = %(zone)s
 UNION
SELECT listed.reservation_id
  FROM {_VMS}
 CROSS JOIN LATERAL (
       SELECT reservation_id FROM capacity_reservationallocation
        WHERE vm_uuid = vm.openstack_id OFFSET 0) AS listed
 UNION
SELECT slot.id
  FROM {_VMS}
 CROSS JOIN LATERAL (
       SELECT id, kind, project_id FROM capacity_reservation
        WHERE target_host_id = vm.host_id OFFSET 0) AS slot
 WHERE slot.kind = 'committed' AND slot.project_id = vm.project_id
"""  # noqa: S608 - constants only

UNLISTED = """
 UNION
SELECT listed.reservation_id FROM capacity_reservationallocation AS listed
 WHERE NOT EXISTS (SELECT FROM hosts_instance AS vm WHERE vm.openstack_id = listed.vm_uuid OFFSET 0)
"""

# Host by host, so that the VMs of a host are looked at once.
EVERY_SLOT = """
SELECT id FROM capacity_reservation WHERE kind = 'committed' AND zone = %(zone)s
 ORDER BY target_host_id, id
"""
SLOTS_AMONG = """
SELECT held.id
  FROM ({candidates}) AS candidate
 CROSS JOIN LATERAL (
       SELECT id, kind, zone, target_host_id FROM capacity_reservation
        WHERE id = candidate.id OFFSET 0) AS held
 WHERE held.kind = 'committed' AND held.zone = %(zone)s
 ORDER BY held.target_host_id, held.id
"""
CHANGED_SLOTS = {
    False: SLOTS_AMONG.format(candidates=CANDIDATES),
    True: SLOTS_AMONG.format(candidates=CANDIDATES + UNLISTED),
}

# Rows of the chosen slots, once for all questions.
CHOSEN = """
WITH slot AS MATERIALIZED (
    SELECT held.*
      FROM unnest(%(slot_ids)s::bigint[]) AS chosen(id)
     CROSS JOIN LATERAL (
           SELECT id, kind, zone, project_id, flavor_group_name, target_host_id, confirmed_host_id,
                  is_ready, created_at
             FROM capacity_reservation WHERE id = chosen.id OFFSET 0) AS held
     WHERE held.kind = 'committed' AND held.zone = %(zone)s
)
"""

# Not as they should rest: a VM that is seen and not confirmed, confirmed and not seen, waited for
# too long, not as large as its parts in the slots of the host, or of another flavor group.
RESTLESS = """
SELECT slot.id
  FROM slot
 CROSS JOIN LATERAL (
       SELECT vm_uuid, state, memory_bytes, vcpus, missing_since, since
         FROM capacity_reservationallocation WHERE reservation_id = slot.id OFFSET 0) AS listed
  LEFT JOIN LATERAL (
       SELECT host_id, memory_bytes, vcpus, flavor_name, status
         FROM hosts_instance WHERE openstack_id = listed.vm_uuid OFFSET 0) AS vm
    ON vm.status <> ALL (%(absent)s)
 WHERE slot.target_host_id IS NOT NULL
   AND CASE
       WHEN vm.host_id = slot.target_host_id
            THEN listed.state = 'expected'
              OR (listed.memory_bytes, listed.vcpus) <> (vm.memory_bytes, vm.vcpus)
                 AND (vm.memory_bytes, vm.vcpus) <> (
                     SELECT sum(part.memory_bytes), sum(part.vcpus)
                       FROM capacity_reservationallocation AS part
                      CROSS JOIN LATERAL (
                            SELECT kind, target_host_id FROM capacity_reservation
                             WHERE id = part.reservation_id OFFSET 0) AS beside
                      WHERE part.vm_uuid = listed.vm_uuid AND beside.kind = 'committed'
                        AND beside.target_host_id = slot.target_host_id)
              OR slot.flavor_group_name IN (SELECT name FROM capacity_flavorgroup
                                             WHERE NOT is_retired)
                 AND vm.flavor_name IN (SELECT name FROM hosts_flavor)
                 AND (vm.flavor_name, slot.flavor_group_name) NOT IN (
                     SELECT flavor.name, own.name
                       FROM capacity_flavorgroupmember AS member
                       JOIN hosts_flavor AS flavor ON flavor.id = member.flavor_id
                       JOIN capacity_flavorgroup AS own ON own.id = member.group_id)
       WHEN listed.state = 'confirmed' THEN true
       WHEN listed.missing_since IS NOT NULL
            THEN vm.host_id IS NOT NULL OR listed.missing_since <= %(settled)s
              OR listed.missing_since > %(latest)s
       ELSE listed.since <= %(overdue)s OR listed.since > %(latest)s
       END
"""

UNSETTLED = """
SELECT slot.id
  FROM slot
 WHERE slot.confirmed_host_id IS DISTINCT FROM slot.target_host_id
    OR slot.target_host_id IS NULL
       AND (slot.is_ready
            OR EXISTS (SELECT FROM capacity_reservationallocation AS listed
                        WHERE listed.reservation_id = slot.id OFFSET 0))
"""

# VMs of the same project and flavor group that came to the host of a slot with room after the slot
# was made, and that no slot lists: the VMs first, since a host may have many slots of one project.
# What is wanted of a VM stands in a CASE, so that it is asked last and of few.
ARRIVALS = """
SELECT entered.id AS slot_id, loose.vm_uuid
  FROM (
        SELECT vm.openstack_id AS vm_uuid, vm.host_id, vm.project_id, vm.flavor_name,
               coalesce(vm.arrived_at, vm.nova_created_at, vm.created_at) AS arrived_at
          FROM (SELECT target_host_id, array_agg(DISTINCT project_id) AS projects FROM slot
                 WHERE target_host_id IS NOT NULL GROUP BY target_host_id) AS place
         CROSS JOIN LATERAL (
               SELECT openstack_id, host_id, project_id, flavor_name, status, arrived_at,
                      nova_created_at, created_at
                 FROM hosts_instance WHERE host_id = place.target_host_id OFFSET 0) AS vm
         WHERE CASE
               WHEN vm.project_id = ANY (place.projects) AND vm.status <> ALL (%(absent)s)
                    THEN NOT EXISTS (
                         SELECT FROM capacity_reservationallocation AS listed
                          CROSS JOIN LATERAL (
                                SELECT kind FROM capacity_reservation
                                 WHERE id = listed.reservation_id OFFSET 0) AS other
                          WHERE listed.vm_uuid = vm.openstack_id AND other.kind = 'committed'
                         OFFSET 0)
               END
        OFFSET 0
       ) AS loose
 CROSS JOIN LATERAL (
       SELECT id, kind, zone, project_id, flavor_group_name, memory_bytes, confirmed_host_id,
              created_at
         FROM capacity_reservation WHERE target_host_id = loose.host_id OFFSET 0) AS entered
 WHERE CASE
       WHEN entered.kind = 'committed' AND entered.zone = %(zone)s
            AND entered.project_id = loose.project_id
            AND entered.confirmed_host_id = loose.host_id
            AND loose.arrived_at >= entered.created_at
            AND entered.id = ANY (%(slot_ids)s)
            THEN (loose.flavor_name, entered.flavor_group_name) IN (
                 SELECT flavor.name, own.name
                   FROM capacity_flavorgroupmember AS member
                   JOIN hosts_flavor AS flavor ON flavor.id = member.flavor_id
                   JOIN capacity_flavorgroup AS own ON own.id = member.group_id)
             AND entered.memory_bytes > (SELECT coalesce(sum(listed.memory_bytes), 0)
                                           FROM capacity_reservationallocation AS listed
                                          WHERE listed.reservation_id = entered.id)
       END
"""
ARRIVALS_OF_SLOTS = f"{CHOSEN} {ARRIVALS} ORDER BY 2, 1"
AT_REST = f"{CHOSEN} {RESTLESS} UNION {UNSETTLED}"
SUSPECTS = {
    False: AT_REST,
    True: f"{AT_REST} UNION SELECT slot_id FROM ({ARRIVALS}) AS arrival",  # noqa: S608
}

LISTED_VMS = """
SELECT count(*) FROM hosts_instance AS vm JOIN hosts_host AS host ON host.id = vm.host_id
 WHERE host.zone = %s AND vm.status <> ALL (%s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatChanged:
    """What changed in a zone since the last look.

    Attributes:
        slots: Whether slots were written or removed.
        vms_deleted: Whether VMs were removed from the list.
        hosts: Whether hosts of the zone were written.
        others: Whether VMs, or VMs in slots, were written.
        is_told: Whether the rows that were written are known; if not, every slot is looked at.
    """

    slots: bool = True
    vms_deleted: bool = True
    hosts: bool = True
    others: bool = True
    is_told: bool = True

    @property
    def is_nothing(self) -> bool:
        """Whether nothing did."""
        return not (self.slots or self.vms_deleted or self.hosts or self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Times from which what is waited for counts as overdue; None never does.

    Attributes:
        overdue: VMs that were placed until then and never seen.
        settled: VMs that have been missing since then.
        latest: What is dated later was so by a fast clock, and is due.
    """

    overdue: datetime | None
    settled: datetime | None
    latest: datetime


def what_changed(zone: str, since: str) -> WhatChanged:
    """Return what changed in a zone; everything, when there was no look before."""
    if not since:
        return WhatChanged(is_told=False)
    slots, vms_deleted, hosts, others, is_lost = fetch_row(
        WHAT_CHANGED, {"zone": zone, "since": since}
    )
    if is_lost:
        return WhatChanged(is_told=False)
    return WhatChanged(slots=slots, vms_deleted=vms_deleted, hosts=hosts, others=others)


def suspect_slots(
    zone: str, since: str, changed: WhatChanged, deadlines: Deadlines, *, adopts: bool
) -> list[int]:
    """Return the slots of a zone that are not as they should rest, by key.

    Args:
        since: Position of the last look; an empty one asks every slot.
        changed: What changed since.
        deadlines: What counts as overdue.
        adopts: Whether VMs that nobody booked may enter slots.

    Returns:
        Keys, ascending.
    """
    parameters: dict[str, Any] = {  # Any: database parameters
        "zone": zone,
        "since": since,
        "absent": list(ABSENT_STATUSES),
        "overdue": deadlines.overdue,
        "settled": deadlines.settled,
        "latest": deadlines.latest,
    }
    is_partial = since and changed.is_told
    candidates = CHANGED_SLOTS[changed.vms_deleted] if is_partial else EVERY_SLOT
    suspects: list[int] = []
    for slot_ids in in_chunks(
        [row[0] for row in fetch_rows(candidates, parameters)], SLOTS_AT_ONCE
    ):
        found = fetch_rows(SUSPECTS[adopts], {**parameters, "slot_ids": slot_ids})
        suspects.extend(row[0] for row in found)
    return sorted(suspects)


def arrivals_at(zone: str, slot_ids: list[int]) -> dict[str, list[int]]:
    """Return the VMs that may enter some slots without having been booked, each with those slots.

    Returns:
        VM uuid to slot keys, both sorted.
    """
    found: dict[str, list[int]] = {}
    for slot_id, vm_uuid in fetch_rows(
        ARRIVALS_OF_SLOTS,
        {"zone": zone, "absent": list(ABSENT_STATUSES), "slot_ids": slot_ids},
    ):
        found.setdefault(vm_uuid, []).append(slot_id)
    return found


def count_listed_vms(zone: str) -> int:
    """Return how many VMs are listed on the hosts of a zone."""
    return int(fetch_value(LISTED_VMS, [zone, list(ABSENT_STATUSES)]))
