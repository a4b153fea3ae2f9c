"""What lies around one VM, read without its zone (spec failover, 17.8).

Rooms of hosts are those of the process's host table; rows are read of the VM, its reservations and
their users only. What the other reservations mean for it is asked for as it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import orjson

from capacity.host_table import current_host_table
from core.sql import load_sql
from failover.conf import FailoverConfig
from failover.domain.one_vm import Offer
from failover.domain.shelf import Size
from failover.domain.zone_columns import HostColumns, Int64Column, ZoneSnapshot
from failover.selectors.due_times import latest_cooldown
from failover.selectors.scheduler import ClassRows, class_rows
from failover.selectors.zone import READY_WORDS, ZoneReading, ZoneReports, snapshot_of
from hosts.domain.vm_list import ReportedVM, ReportingHost, active_hosts
from journal.statements import fetch_rows
from scheduling.table import HostTable

ZONE_OF_VM = """
SELECT zone, clock_timestamp() FROM hosts_host
 WHERE id = (SELECT host_id FROM hosts_instance WHERE openstack_id = %(uuid)s)
"""
AROUND_VM = """
SELECT failover_around_vm(%(uuid)s, %(trusts)s, %(now)s, %(latest)s, %(up)s, %(enabled)s,
                          %(harmless)s::text[])
"""
CLOSED = load_sql("failover", "closed_reservations")
TOUCHING = """
SELECT id FROM capacity_reservation WHERE kind = 'failover' AND target_host_id = ANY(%(hosts)s)
 UNION
SELECT reservation_id FROM capacity_reservationallocation WHERE vm_host_id = ANY(%(hosts)s)
"""
SIZES = """
SELECT DISTINCT memory_bytes, vcpus FROM capacity_reservation
 WHERE kind = 'failover' AND zone = %(zone)s AND memory_bytes >= %(memory_bytes)s
   AND vcpus >= %(vcpus)s
 ORDER BY memory_bytes, vcpus
"""
OFFERS = """
SELECT held.id, known.name, held.target_host_id, count(vm.id)
  FROM capacity_reservation AS held
  JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
  LEFT JOIN capacity_reservationallocation AS vm ON vm.reservation_id = held.id
 WHERE held.kind = 'failover' AND held.zone = %(zone)s AND held.is_ready
   AND known.state = 'active' AND held.memory_bytes = %(memory_bytes)s
   AND held.vcpus = %(vcpus)s AND held.id <> ALL(%(without)s)
 GROUP BY held.id, known.name, held.target_host_id
HAVING count(vm.id) < %(below)s
 ORDER BY held.id
"""
USER_HOSTS = """
SELECT vm_host_id FROM capacity_reservationallocation
 WHERE reservation_id = %(key)s AND vm_host_id IS NOT NULL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vicinity:
    """One VM, with what a plan for it stands on.

    Attributes:
        snapshot: All hosts of its zone, the VM, its reservations and their users.
        vm: Row of the VM; -1 if it needs no reservations and has none.
        barred: Rows of hosts that validation refused to it of late.
        table: Host table that the rooms are from.
        class_rows: What the scheduler needs to know of the VM's class.
        is_halted: Whether the zone's brake is on.
        is_known_short: Whether it is on record that the VM lacks reservations.
    """

    snapshot: ZoneSnapshot
    vm: int
    barred: frozenset[int]
    table: HostTable
    class_rows: ClassRows
    is_halted: bool
    is_known_short: bool


def zone_of_vm(vm_uuid: str) -> tuple[str, datetime] | None:
    """Return the zone of a VM's host and the time; None for a VM that the list puts on no host."""
    rows = fetch_rows(ZONE_OF_VM, {"uuid": vm_uuid})
    return rows[0] if rows else None


def load_vicinity(vm_uuid: str, config: FailoverConfig, *, now: datetime) -> Vicinity | None:
    """Return what a plan for a VM stands on; None for a VM that the list puts on no host.

    Nothing is locked; whoever writes looks again.

    Args:
        config: Requirements, and which source is believed about locations.
        now: The present, for stopped VMs and cooldowns.
    """
    asked = {
        "uuid": vm_uuid,
        "trusts": bool(config.trust_hypervisor_location),
        "now": now,
        "latest": latest_cooldown(now),
        **READY_WORDS,
    }
    ((document,),) = fetch_rows(AROUND_VM, asked)
    if document is None:
        return None
    around = orjson.loads(document)
    *columns, changed_at = around["vm"]
    reading = ZoneReading(
        zone=around["zone"],
        now=now,
        config=config,
        hosts=around["hosts"],
        vms=[(*columns, changed_at and datetime.fromisoformat(changed_at))],
        slots=around["slots"],
        members=around["members"],
        groups={vm_uuid: around["group"]} if around["group"] else {},
        reports=_reports(vm_uuid, around["reports"]),
    )
    snapshot = _with_users_kept(snapshot_of(reading), vm_uuid)
    table = current_host_table()
    snapshot = _in_whole_zone(snapshot, table)
    return Vicinity(
        snapshot=snapshot,
        vm=snapshot.vm_row.get(vm_uuid, -1),
        barred=_rows_of(snapshot.hosts.ids, around["barred"]),
        table=table,
        class_rows=_class_rows(around),
        is_halted=around["is_halted"],
        is_known_short=around["is_known_short"],
    )


def _class_rows(around: Mapping[str, Any]) -> ClassRows:  # Any: a document
    key, project = around["vm"][0], around["vm"][6]
    return class_rows([(key, around["specs"])], [(project, around["domain"])])


def _reports(vm_uuid: str, reports: Iterable[Sequence[Any]]) -> ZoneReports:  # Any: a document
    hosts = [
        ReportingHost(
            name=name,
            vms=tuple(
                ReportedVM(vm_uuid=vm_uuid, is_active=bool(one.get("active")))
                for one in listed
                if one.get("id") == vm_uuid
            ),
        )
        for name, listed in reports
    ]
    return ZoneReports(
        lists={
            host.name: frozenset(vm.vm_uuid for vm in host.vms if vm.is_active) for host in hosts
        },
        known=frozenset(vm.vm_uuid for host in hosts for vm in host.vms),
        active_host=active_hosts(hosts),
    )


def _with_users_kept(snapshot: ZoneSnapshot, vm_uuid: str) -> ZoneSnapshot:
    """Return the snapshot with the other users as VMs that nothing is decided about here.

    They count as seen on their hosts and not as listed, which the safeguard keeps as they are. The
    only compatibility class is the VM's.
    """
    vms = snapshot.vms
    is_other = np.array([uuid != vm_uuid for uuid in vms.uuids], dtype=np.bool_)
    own = vms.class_code[~is_other].tolist()
    return replace(
        snapshot,
        vms=replace(
            vms,
            is_seen=vms.is_seen | is_other,
            class_code=np.zeros_like(vms.class_code),
            classes=tuple(vms.classes[code] for code in own),
        ),
    )


def _in_whole_zone(snapshot: ZoneSnapshot, table: HostTable) -> ZoneSnapshot:
    """Return the snapshot with all hosts of its zone instead of those next to the VM."""
    hosts = _zone_hosts(table, snapshot.zone)
    at = np.minimum(np.searchsorted(hosts.ids, snapshot.hosts.ids), max(len(hosts) - 1, 0))
    is_there = hosts.ids[at] == snapshot.hosts.ids if len(hosts) else np.zeros(len(at), np.bool_)
    place = np.append(np.where(is_there, at, -1), -1).astype(np.int32)
    vms, slots, members = snapshot.vms, snapshot.slots, snapshot.members
    return replace(
        snapshot,
        hosts=hosts,
        vms=replace(vms, host=place[vms.host]),
        slots=replace(slots, host=place[slots.host]),
        members=replace(members, joined_host=place[members.joined_host]),
    )


def _zone_hosts(table: HostTable, zone: str) -> HostColumns:
    code = table.zones.index(zone) if zone in table.zones else -1
    rows = np.flatnonzero((table.zone == code) & table.is_known)
    rows = rows[np.argsort(table.host_ids[rows], kind="stable")]
    return HostColumns(
        ids=table.host_ids[rows],
        names=tuple(map(table.names.__getitem__, rows.tolist())),
        racks=("",) * len(rows),
        is_ready=table.state_ok[rows],
        effective_memory_bytes=table.eff_memory_bytes[rows],
        effective_vcpus=table.eff_vcpus[rows],
        used_memory_bytes=table.alloc_memory_bytes[rows],
        used_vcpus=table.alloc_vcpus[rows],
        held_memory_bytes=table.committed_memory_bytes[rows] + table.in_flight_memory_bytes[rows],
        held_vcpus=table.committed_vcpus[rows] + table.in_flight_vcpus[rows],
        failover_memory_bytes=table.failover_memory_bytes[rows],
        failover_vcpus=table.failover_vcpus[rows],
    )


def _rows_of(ids: Int64Column, keys: Sequence[int]) -> frozenset[int]:
    """Return the rows of those keys that are among ascending ids."""
    if not keys or not len(ids):
        return frozenset()
    wanted = np.array(sorted(keys), dtype=np.int64)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return frozenset(at[ids[at] == wanted].tolist())


class DatabaseSlotsAround:
    """Implements ``failover.domain.one_vm.SlotsAround`` on the rows, as they are when asked."""

    def __init__(self, snapshot: ZoneSnapshot) -> None:
        self._zone = snapshot.zone
        self._ids = snapshot.hosts.ids

    def closed_to(self, host: int) -> frozenset[int]:
        """Return the reservations that no VM of a host may join."""
        return _keys(CLOSED, {"host": int(self._ids[host])})

    def touching(self, hosts: Collection[int]) -> frozenset[int]:
        """Return the reservations on some hosts, or with a user there."""
        return _keys(TOUCHING, {"hosts": [int(self._ids[host]) for host in sorted(hosts)]})

    def sizes(self, memory_bytes: int, vcpus: int, *, below: int) -> Sequence[Size]:
        """Return the sizes of reservations that are at least as large, the tightest first."""
        del below  # counting users costs more than asking for a size in vain
        asked = {"zone": self._zone, "memory_bytes": memory_bytes, "vcpus": vcpus}
        return [(int(memory), int(cores)) for memory, cores in fetch_rows(SIZES, asked)]

    def offers(self, size: Size, *, without: Collection[int], below: int) -> Sequence[Offer]:
        """Return usable reservations of a size with fewer users than ``below``, by key."""
        rows = fetch_rows(
            OFFERS,
            {
                "zone": self._zone,
                "memory_bytes": size[0],
                "vcpus": size[1],
                "without": sorted(without),
                "below": below,
            },
        )
        row_of = self._host_rows({row[2] for row in rows})
        return [
            Offer(
                key=key,
                name=name,
                host=row_of[host_id],
                memory_bytes=size[0],
                vcpus=size[1],
                users=users,
            )
            for key, name, host_id, users in rows
            if host_id in row_of
        ]

    def confirmed(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """Return the offers: they are as the rows have them."""
        return offers

    def user_hosts(self, key: int) -> frozenset[int]:
        """Return the hosts of the users of a reservation."""
        return _rows_of(self._ids, [row[0] for row in fetch_rows(USER_HOSTS, {"key": key})])

    def _host_rows(self, keys: Collection[int | None]) -> Mapping[int, int]:
        rows = _rows_of(self._ids, [key for key in keys if key is not None])
        return {int(self._ids[row]): row for row in rows}


def _keys(statement: str, parameters: Mapping[str, Any]) -> frozenset[int]:  # Any: several types
    return frozenset(row[0] for row in fetch_rows(statement, parameters))
