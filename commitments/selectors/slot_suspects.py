"""Which slots have to be looked at, because something about them changed (spec commitments, 9.6).

Changes are followed by the ids of the transactions that made them (design, "Concurrency"), so a
look costs what changed and not the region. A full look asks the same of every slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from capacity.selectors.zone_sums import ABSENT_STATUSES
from journal.models import deletions_forgotten_since

POSITION = """
SELECT pg_current_snapshot()::text, pg_snapshot_xmin(pg_current_snapshot())::text::bigint
"""


def _changed(alias: str) -> str:
    """Return the condition that a tracked row was not in the snapshot of the last look."""
    return (
        f"{alias}.changed_xid >= %(xmin)s AND NOT pg_visible_in_snapshot("
        f"{alias}.changed_xid::text::xid8, %(snapshot)s::pg_snapshot)"
    )


FORGOTTEN = deletions_forgotten_since("%(xmin)s")

SLOTS_CHANGED = f"""
EXISTS (SELECT FROM capacity_reservation AS slot
         WHERE slot.kind = 'committed' AND slot.zone = %(zone)s AND {_changed("slot")})
OR EXISTS (SELECT FROM journal_deletedrow AS gone
            WHERE gone.table_name = 'capacity_reservation' AND {_changed("gone")})
OR {FORGOTTEN}
"""  # noqa: S608 - constants only

VMS_DELETED = f"""
EXISTS (SELECT FROM journal_deletedrow AS gone
         WHERE gone.table_name = 'hosts_instance' AND {_changed("gone")})
OR {FORGOTTEN}
"""

HOSTS_CHANGED = f"""
EXISTS (SELECT FROM hosts_host AS host WHERE host.zone = %(zone)s AND {_changed("host")})
"""

WHAT_CHANGED = f"""
SELECT {SLOTS_CHANGED}, {VMS_DELETED}, {HOSTS_CHANGED},
       EXISTS (SELECT FROM hosts_instance AS vm WHERE {_changed("vm")})
       OR EXISTS (SELECT FROM capacity_reservationallocation AS listed WHERE {_changed("listed")})
"""  # noqa: S608 - constants only

# VMs that are waited for; slots whose VMs, size or host changed; slots of VMs that changed, and
# slots of their project where they are now.
CANDIDATES = f"""
SELECT listed.reservation_id AS id FROM capacity_reservationallocation AS listed
 WHERE listed.state = 'expected'
 UNION
SELECT listed.reservation_id FROM capacity_reservationallocation AS listed
 WHERE {_changed("listed")}
 UNION
SELECT slot.id FROM capacity_reservation AS slot
 WHERE slot.kind = 'committed' AND {_changed("slot")}
 UNION
SELECT listed.reservation_id
  FROM hosts_instance AS vm
  JOIN capacity_reservationallocation AS listed ON listed.vm_uuid = vm.openstack_id
 WHERE {_changed("vm")}
 UNION
SELECT slot.id
  FROM hosts_instance AS vm
  JOIN capacity_reservation AS slot
    ON slot.target_host_id = vm.host_id AND slot.project_id = vm.project_id
   AND slot.kind = 'committed'
 WHERE {_changed("vm")}
"""  # noqa: S608 - constants only

UNLISTED = """
 UNION
SELECT listed.reservation_id FROM capacity_reservationallocation AS listed
 WHERE NOT EXISTS (SELECT FROM hosts_instance AS vm WHERE vm.openstack_id = listed.vm_uuid)
"""

EVERY_SLOT = "SELECT id FROM capacity_reservation WHERE kind = 'committed' AND zone = %(zone)s"

# Not as they should rest: a VM that is seen and not confirmed, confirmed and not seen, waited for
# too long, of another size, or of another flavor group.
RESTLESS = """
SELECT slot.id
  FROM candidate
  JOIN capacity_reservation AS slot ON slot.id = candidate.id
  JOIN capacity_reservationallocation AS listed ON listed.reservation_id = slot.id
  LEFT JOIN hosts_instance AS vm
    ON vm.openstack_id = listed.vm_uuid AND vm.status <> ALL (%(absent)s)
  LEFT JOIN hosts_flavor AS flavor ON flavor.name = vm.flavor_name
  LEFT JOIN capacity_flavorgroupmember AS member ON member.flavor_id = flavor.id
  LEFT JOIN capacity_flavorgroup AS own
    ON own.name = slot.flavor_group_name AND NOT own.is_retired
 WHERE slot.kind = 'committed' AND slot.zone = %(zone)s AND slot.target_host_id IS NOT NULL
   AND CASE
       WHEN vm.host_id = slot.target_host_id
            THEN listed.state = 'expected'
              OR (listed.memory_bytes, listed.vcpus) <> (vm.memory_bytes, vm.vcpus)
              OR own.id IS NOT NULL AND flavor.id IS NOT NULL
                 AND member.group_id IS DISTINCT FROM own.id
       WHEN listed.state = 'confirmed' THEN true
       WHEN listed.missing_since IS NOT NULL
            THEN vm.host_id IS NOT NULL OR listed.missing_since <= %(settled)s
       ELSE listed.since <= %(overdue)s
       END
"""

UNSETTLED = """
SELECT slot.id
  FROM candidate JOIN capacity_reservation AS slot ON slot.id = candidate.id
 WHERE slot.kind = 'committed' AND slot.zone = %(zone)s
   AND (slot.confirmed_host_id IS DISTINCT FROM slot.target_host_id
        OR slot.target_host_id IS NULL
           AND (slot.is_ready
                OR EXISTS (SELECT FROM capacity_reservationallocation AS listed
                            WHERE listed.reservation_id = slot.id)))
"""

# VMs of the same project and flavor group that came to the host of a slot with room after the slot
# was made, and that no slot lists: the VMs first, since a host may have many slots of one project.
ARRIVALS = """
SELECT slot.id AS slot_id, loose.vm_uuid
  FROM (
        SELECT DISTINCT vm.openstack_id AS vm_uuid, vm.host_id, vm.project_id, vm.flavor_name,
               coalesce(vm.nova_created_at, vm.created_at) AS came_at
          FROM (SELECT DISTINCT slot.target_host_id, slot.project_id FROM {chosen}) AS place
          JOIN hosts_instance AS vm
            ON vm.host_id = place.target_host_id AND vm.project_id = place.project_id
         WHERE vm.status <> ALL (%(absent)s)
           AND NOT EXISTS (SELECT FROM capacity_reservationallocation AS listed
                             JOIN capacity_reservation AS other ON other.id = listed.reservation_id
                            WHERE listed.vm_uuid = vm.openstack_id AND other.kind = 'committed')
        OFFSET 0
       ) AS loose
  JOIN {chosen}
    ON slot.target_host_id = loose.host_id AND slot.project_id = loose.project_id
  JOIN hosts_flavor AS flavor ON flavor.name = loose.flavor_name
  JOIN capacity_flavorgroupmember AS member ON member.flavor_id = flavor.id
  JOIN capacity_flavorgroup AS flavor_group
    ON flavor_group.id = member.group_id AND flavor_group.name = slot.flavor_group_name
 WHERE slot.kind = 'committed' AND slot.zone = %(zone)s
   AND slot.confirmed_host_id = slot.target_host_id
   AND loose.came_at >= slot.created_at
   AND slot.memory_bytes > (SELECT coalesce(sum(listed.memory_bytes), 0)
                              FROM capacity_reservationallocation AS listed
                             WHERE listed.reservation_id = slot.id)
"""
ARRIVALS_OF_CANDIDATES = ARRIVALS.format(
    chosen="(candidate JOIN capacity_reservation AS slot ON slot.id = candidate.id)"
)
CHOSEN_SLOTS = "(SELECT * FROM capacity_reservation WHERE id = ANY (%(slot_ids)s)) AS slot"
ARRIVALS_OF_SLOTS = f"{ARRIVALS.format(chosen=CHOSEN_SLOTS)} ORDER BY 2, 1"

LISTED_VMS = """
SELECT count(*) FROM hosts_instance AS vm JOIN hosts_host AS host ON host.id = vm.host_id
 WHERE host.zone = %s AND vm.status <> ALL (%s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """From which state of the database changes are followed, and up to which.

    Attributes:
        snapshot: Text of the ``pg_snapshot`` of the last look; empty looks at everything.
        snapshot_xmin: Every transaction with a lower id was in it.
    """

    snapshot: str = ""
    snapshot_xmin: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatChanged:
    """What changed in a zone since the last look.

    Attributes:
        slots: Whether slots were written or removed.
        vms_deleted: Whether VMs were removed from the list.
        hosts: Whether hosts of the zone were written.
        others: Whether VMs, or VMs in slots, were written.
    """

    slots: bool = True
    vms_deleted: bool = True
    hosts: bool = True
    others: bool = True

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
    """

    overdue: datetime | None
    settled: datetime | None


def current_look() -> Look:
    """Return the present state of the database, to follow changes from it later."""
    with connection.cursor() as cursor:
        cursor.execute(POSITION)
        snapshot, snapshot_xmin = cursor.fetchone() or ("", 0)
    return Look(snapshot=snapshot, snapshot_xmin=snapshot_xmin)


def what_changed(zone: str, since: Look) -> WhatChanged:
    """Return what changed in a zone; everything, when there was no look before."""
    if not since.snapshot:
        return WhatChanged()
    with connection.cursor() as cursor:
        cursor.execute(WHAT_CHANGED, _parameters(zone, since))
        row = cursor.fetchone()
    if row is None:
        return WhatChanged()
    slots, vms_deleted, hosts, others = row
    return WhatChanged(slots=slots, vms_deleted=vms_deleted, hosts=hosts, others=others)


def suspect_slots(
    zone: str, since: Look, changed: WhatChanged, deadlines: Deadlines, *, adopts: bool
) -> list[int]:
    """Return the slots of a zone that are not as they should rest, by key.

    Args:
        zone: Availability zone.
        since: The last look; an empty one asks every slot.
        changed: What changed since.
        deadlines: What counts as overdue.
        adopts: Whether VMs that nobody booked may enter slots.
    """
    candidates = EVERY_SLOT
    if since.snapshot:
        candidates = CANDIDATES + (UNLISTED if changed.vms_deleted else "")
    parts = [RESTLESS, UNSETTLED]
    if adopts:
        parts.append(f"SELECT slot_id FROM ({ARRIVALS_OF_CANDIDATES}) AS arrival")  # noqa: S608
    statement = f"WITH candidate AS ({candidates}) {' UNION '.join(parts)} ORDER BY 1"
    parameters = {
        **_parameters(zone, since),
        "overdue": deadlines.overdue,
        "settled": deadlines.settled,
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return [row[0] for row in cursor.fetchall()]


def arrivals_at(zone: str, slot_ids: list[int]) -> dict[str, list[int]]:
    """Return the VMs that may enter some slots without having been booked, each with those slots.

    Returns:
        VM uuid to slot keys, both sorted.
    """
    found: dict[str, list[int]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            ARRIVALS_OF_SLOTS,
            {"zone": zone, "absent": list(ABSENT_STATUSES), "slot_ids": slot_ids},
        )
        for slot_id, vm_uuid in cursor.fetchall():
            found.setdefault(vm_uuid, []).append(slot_id)
    return found


def count_listed_vms(zone: str) -> int:
    """Return how many VMs are listed on the hosts of a zone."""
    with connection.cursor() as cursor:
        cursor.execute(LISTED_VMS, [zone, list(ABSENT_STATUSES)])
        row = cursor.fetchone()
    return int(row[0]) if row else 0


def _parameters(zone: str, since: Look) -> dict[str, Any]:
    return {
        "zone": zone,
        "snapshot": since.snapshot,
        "xmin": since.snapshot_xmin,
        "absent": list(ABSENT_STATUSES),
    }
