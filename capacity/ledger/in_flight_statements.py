"""Statements that hold room for a VM in flight and give it back (spec commitments, 12.1)."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from capacity.models import ReservationKind

# A host that changed since the snapshot, or one of its aggregates, was filtered by facts that may
# not hold now (spec scheduling, 16.2).
AS_CHOSEN = """
(%(snapshot)s = ''
 OR pg_visible_in_snapshot(host.changed_xid::text::xid8, nullif(%(snapshot)s, '')::pg_snapshot)
    AND NOT EXISTS (
        SELECT FROM hosts_aggregate AS joined
         WHERE joined.uuid = ANY(host.aggregate_uuids)
           AND NOT pg_visible_in_snapshot(
                   joined.changed_xid::text::xid8, nullif(%(snapshot)s, '')::pg_snapshot)))
"""

# What the VM's own slots give it, per slot at most its size (spec scheduling, 7.11 step B, 15.17,
# 15.18). VMs of its project in flight to the host use that room too: what they and the slots block
# twice is added to what is free, and taken from what the slots give. So is what failover slots of
# others and evacuated VMs in flight into them block twice, for a VM that is evacuated as well. The
# room comes from the locked row.
FITTING_HOSTS = """
released AS (
    SELECT asked.host_id,
           {released_columns}
      FROM unnest(%(host_ids)s::bigint[]) AS asked(host_id)
      JOIN capacity_reservation AS held
        ON held.target_host_id = asked.host_id OR held.confirmed_host_id = asked.host_id
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(vm.memory_bytes), 0) AS memory_bytes,
                  coalesce(sum(vm.vcpus), 0) AS vcpus
             FROM capacity_vms_in_slot(
                      held.id, held.target_host_id, held.confirmed_host_id) AS vm
            WHERE held.kind = 'committed' AND vm.vm_uuid <> %(vm_uuid)s AND vm.is_due
           ) AS due
     WHERE held.kind <> ALL(%(ignored)s)
       AND (held.kind = 'committed' AND held.is_ready AND NOT %(is_locked)s
            AND held.flavor_group_name <> ''
            AND held.project_id = %(project_id)s AND held.flavor_group_name = %(group)s
            OR held.kind = 'in_flight'
            AND held.project_id = %(project_id)s AND held.flavor_group_name = %(group)s
            OR held.kind = 'failover' AND held.is_ready AND %(intent)s = 'evacuate'
            AND EXISTS (SELECT FROM capacity_reservationallocation AS vm
                         WHERE vm.reservation_id = held.id AND vm.vm_uuid = %(vm_uuid)s))
     GROUP BY asked.host_id
), filled AS (
    SELECT slot.target_host_id AS host_id,
           sum(least(slot.blocked_memory_bytes, flying.memory_bytes)) AS filled_memory_bytes,
           sum(least(slot.blocked_vcpus, flying.vcpus)) AS filled_vcpus
      FROM capacity_reservation AS slot
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(flight.blocked_memory_bytes), 0) AS memory_bytes,
                  coalesce(sum(flight.blocked_vcpus), 0) AS vcpus
             FROM capacity_reservationallocation AS vm
             JOIN capacity_reservation AS flight ON flight.vm_uuid = vm.vm_uuid
            WHERE vm.reservation_id = slot.id AND flight.kind = 'in_flight'
              AND flight.intent = 'evacuate' AND flight.target_host_id = slot.target_host_id
           ) AS flying
     WHERE %(intent)s = 'evacuate' AND NOT ARRAY['failover', 'in_flight'] && %(ignored)s::text[]
       AND slot.kind = 'failover' AND slot.target_host_id = ANY(%(host_ids)s::bigint[])
       AND NOT EXISTS (SELECT FROM capacity_reservationallocation AS vm
                        WHERE vm.reservation_id = slot.id AND vm.vm_uuid = %(vm_uuid)s)
     GROUP BY slot.target_host_id
), fitting AS (
    SELECT asked.host_id, asked.position, host.zone
      FROM unnest(%(host_ids)s::bigint[]) WITH ORDINALITY AS asked(host_id, position)
      JOIN capacity_hostcapacity AS room ON room.host_id = asked.host_id
      JOIN hosts_host AS host ON host.id = asked.host_id
      LEFT JOIN released ON released.host_id = asked.host_id
      LEFT JOIN filled ON filled.host_id = asked.host_id
     WHERE {room_for_memory_bytes} >= %(memory_bytes)s
       AND {room_for_vcpus} >= %(vcpus)s
       AND {as_chosen}
     ORDER BY asked.position
     LIMIT %(max_held)s
)
"""

HOLD_ROOM = """
WITH {hosts}, taken AS (
    UPDATE capacity_hostcapacity AS room
       SET in_flight_memory_bytes = room.in_flight_memory_bytes + %(memory_bytes)s,
           in_flight_vcpus = room.in_flight_vcpus + %(vcpus)s
      FROM fitting
     WHERE room.host_id = fitting.host_id
    RETURNING room.host_id, fitting.position, fitting.zone
), made AS (
    INSERT INTO capacity_reservation (
        uuid, kind, scheduling_domain, zone, flavor_group_name, resource_name, project_id,
        domain_id, memory_bytes, vcpus, blocked_memory_bytes, blocked_vcpus, target_host_id,
        start_time, end_time, creator, creator_request_id, parent_generation,
        observed_parent_generation, generation, ready_reason, ready_message, vm_uuid, user_id,
        intent, source_host_id, placement_id)
    SELECT gen_random_uuid(), 'in_flight', 'nova', taken.zone, %(group)s, %(flavor_name)s,
           %(project_id)s, %(domain_id)s, %(memory_bytes)s, %(vcpus)s, %(memory_bytes)s, %(vcpus)s,
           taken.host_id, %(now)s, %(end_time)s, %(creator)s, %(request_id)s, 0, 0, 1, '', '',
           %(vm_uuid)s, %(user_id)s, %(intent)s, %(source_host_id)s::bigint, %(placement_id)s
      FROM taken ORDER BY taken.position
    RETURNING target_host_id
)
SELECT target_host_id,
       EXISTS (SELECT FROM capacity_reservationallocation AS vm
                WHERE vm.vm_uuid = %(vm_uuid)s AND vm.state = 'expected')
  FROM made
"""

RELEASED_COLUMNS = """
coalesce(sum(held.blocked_{part} - due.{part}) FILTER (WHERE held.kind = 'committed'), 0)
    AS slots_{part},
coalesce(sum(least(held.blocked_{part} - due.{part}, %({part})s))
         FILTER (WHERE held.kind = 'committed'), 0) AS given_{part},
coalesce(sum(least(held.blocked_{part}, %({part})s)) FILTER (WHERE held.kind = 'failover'), 0)
    AS spare_{part},
coalesce(sum(held.blocked_{part}) FILTER (WHERE held.kind = 'in_flight'), 0) AS flying_{part}
"""

ROOM_FOR = """
{free}
+ least(coalesce(slots_{part}, 0), coalesce(flying_{part}, 0))
+ least(coalesce(given_{part}, 0),
        coalesce(slots_{part}, 0) - least(coalesce(slots_{part}, 0), coalesce(flying_{part}, 0)))
+ coalesce(spare_{part}, 0) + coalesce(filled_{part}, 0)
"""

PARTS = ("memory_bytes", "vcpus")

# The rooms of candidates and of the VM's former hosts are locked, then the best hosts taken, if all
# of them are free (``sql/capacity_hold_free.sql``).
_ASKED = """
    %(vm_uuid)s, %(names)s::text[], %(memory_bytes)s, %(vcpus)s, %(ignored)s::text[],
    %(snapshot)s, %(max_held)s::integer, %(now)s::timestamptz, %(lifetime)s, %(group)s,
    %(flavor_name)s, %(project_id)s, %(domain_id)s, %(creator)s, %(request_id)s, %(user_id)s,
    %(intent)s, %(source_host_id)s::bigint, %(placement_id)s
"""
_HELD = "SELECT start_time, host_ids, names, previous, taken, is_expected FROM"
HOLD_FREE = f"{_HELD} capacity_hold_free({_ASKED})"

# The same with the lock of the VM before it, as a transaction of its own
# (``sql/capacity_hold_alone.sql``): BEGIN and COMMIT in messages of theirs took a tenth of a call.
# Nothing is taken where slots expect the VM, since these are counted again in the same transaction.
HOLD_ALONE = f"{_HELD} capacity_hold_alone(%(lock_timeout)s, %(lock_key)s, {_ASKED})"
IS_EXPECTED = "HR001"

DELETE_ROWS = """
DELETE FROM capacity_reservation
 WHERE id = ANY(%s) AND kind = 'in_flight'
RETURNING vm_uuid, intent, target_host_id, blocked_memory_bytes, blocked_vcpus
"""


@cache
def hold_room_statement(ignored_kinds: frozenset[str]) -> str:
    """Return the statement that takes room on the best hosts, also where slots give it."""
    fitting_hosts = FITTING_HOSTS.format(
        as_chosen=AS_CHOSEN,
        released_columns=", ".join(RELEASED_COLUMNS.format(part=part) for part in PARTS),
        **{
            f"room_for_{part}": ROOM_FOR.format(part=part, free=_free(part, ignored_kinds))
            for part in PARTS
        },
    )
    return HOLD_ROOM.format(hosts=fitting_hosts)


def _free(part: str, ignored_kinds: Collection[str]) -> str:
    counted = ("allocated", *(k for k in ReservationKind.values if k not in ignored_kinds))
    return " - ".join([f"room.effective_{part}", *(f"room.{name}_{part}" for name in counted)])
