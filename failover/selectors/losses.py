"""What the loss or the drain of some hosts touches, read without the rest of their zones.

Rooms are read of all hosts of a zone; VMs are those that the list or the hosts' own lists put on
these hosts, slots those that such a VM may use. A drill of these hosts answers as it does on the
whole zone (spec failover, 17.2). A drain also touches slots on these hosts, and who shares slots
with whom, as far as the five rules look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final

from core.changes import one_snapshot
from failover.conf import FailoverConfig, current_config
from failover.domain.drill_columns import drill_state_of
from failover.domain.drill_state import DrillHost, DrillState, FailureSet
from failover.domain.zone_columns import ZoneSnapshot
from failover.selectors.drills import drill_state
from failover.selectors.zone import (
    MEMBER_COLUMNS,
    READY_WORDS,
    SELECT_HOSTS,
    SELECT_VMS,
    SELECT_VMS_BY_UUID,
    SLOT_COLUMNS,
    STOPPED_WORDS,
    ZoneReading,
    ZoneReports,
    failover_requirements,
    failover_zones,
    snapshot_of,
)
from hosts.vm_source import reporting_hosts
from journal.collector import paused_collector
from journal.statements import Row, fetch_rows

#: Of so many hosts of a zone what they touch is read; of more, the zone.
READ_ALONE: Final = 500
#: From the slots on a host to their users, from these to all that share a slot with them.
SHARED_LEVELS: Final = 2

SELECT_VMS_ON = SELECT_VMS + " AND host.name = ANY(%(names)s)"
SELECT_VMS_NAMED = SELECT_VMS + " AND vm.openstack_id = ANY(%(uuids)s)"
SELECT_MEMBERS_OF = (
    MEMBER_COLUMNS + " AND held.zone = %(zone)s AND held.id = ANY(%(slots)s) ORDER BY vm.id"
)
SELECT_MEMBERS_NAMED = (
    MEMBER_COLUMNS + " AND held.zone = %(zone)s AND vm.vm_uuid = ANY(%(uuids)s) ORDER BY vm.id"
)
SELECT_SLOTS_NAMED = (
    SLOT_COLUMNS + " AND held.zone = %(zone)s AND held.id = ANY(%(slots)s) ORDER BY held.id"
)
SELECT_FAILING = """
SELECT host.name, host.zone, host.building_block
  FROM hosts_host AS host JOIN capacity_hostcapacity AS room ON room.host_id = host.id
 WHERE host.zone <> ''
   AND (host.name = ANY(%(hosts)s) OR host.zone = ANY(%(zones)s)
        OR host.building_block <> '' AND host.building_block = ANY(%(racks)s))
"""
SELECT_ELSEWHERE = """
SELECT held.id
  FROM capacity_reservationallocation AS vm
  JOIN capacity_reservation AS held ON held.id = vm.reservation_id
 WHERE held.kind = 'failover' AND held.zone <> %(zone)s AND vm.vm_uuid = ANY(%(uuids)s)
 LIMIT 1
"""
SELECT_KEYS_ON = """
SELECT held.id FROM capacity_reservation AS held
  JOIN hosts_host AS host ON host.id = held.target_host_id
 WHERE held.kind = 'failover' AND held.zone = ANY(%(zones)s) AND host.name = ANY(%(names)s)
"""
SELECT_UUIDS_ON = """
SELECT vm.openstack_id FROM hosts_instance AS vm JOIN hosts_host AS host ON host.id = vm.host_id
 WHERE host.name = ANY(%(names)s)
"""
SELECT_USERS = """
SELECT DISTINCT vm_uuid FROM capacity_reservationallocation
 WHERE reservation_id = ANY(%(slots)s)
"""
SELECT_USED = """
SELECT DISTINCT held.id
  FROM capacity_reservationallocation AS vm
  JOIN capacity_reservation AS held ON held.id = vm.reservation_id
 WHERE held.kind = 'failover' AND held.zone = ANY(%(zones)s) AND vm.vm_uuid = ANY(%(uuids)s)
"""


def loss_snapshot(zone: str, names: Collection[str], *, now: datetime) -> ZoneSnapshot:
    """Return what drills of some hosts of a zone stand on, with what the policies require now.

    Args:
        names: The hosts; those of other zones are passed over.
    """
    config = current_config(failover_requirements())
    with paused_collector():
        with one_snapshot():
            reading = _read(zone, sorted(names), config, now)
        return snapshot_of(reading)


def loss_state(failure: FailureSet, *, now: datetime) -> tuple[DrillState, frozenset[str]]:
    """Return the state for a drill of what fails, and the hosts that fail.

    Of few hosts only what they touch is read; where a VM on them has a slot in another zone, or
    many fail, all of all zones.

    Raises:
        UnknownFailureDomainError: a host, rack or zone does not exist.
    """
    asked = {
        "hosts": list(failure.hosts),
        "racks": list(failure.racks),
        "zones": list(failure.zones),
    }
    rows = fetch_rows(SELECT_FAILING, asked)
    known = DrillState.of(
        [DrillHost(name=name, zone=zone, rack=rack) for name, zone, rack in rows], (), ()
    )
    failed = known.expand(failure)
    names_of: dict[str, list[str]] = {}
    for name in failed:
        names_of.setdefault(known.hosts[name].zone, []).append(name)
    if all(len(names) <= READ_ALONE for names in names_of.values()):
        snapshots = [loss_snapshot(zone, names_of[zone], now=now) for zone in sorted(names_of)]
        if not any(map(_uses_other_zones, snapshots)):
            with paused_collector():
                return drill_state_of(snapshots, failing=failed), failed
    return drill_state(failover_zones(), now=now), failed


def _uses_other_zones(snapshot: ZoneSnapshot) -> bool:
    """Return whether a VM of a snapshot has a slot in another zone."""
    asked = {"zone": snapshot.zone, "uuids": list(snapshot.vms.uuids)}
    return bool(fetch_rows(SELECT_ELSEWHERE, asked))


def drain_snapshots(
    zones: Sequence[str], names: Collection[str], *, now: datetime
) -> list[ZoneSnapshot]:
    """Return what the drain of some hosts of some zones stands on, zone by zone.

    Besides the VMs of the hosts and the slots on them, the rules read the slots of all that use
    one of those, and of all that share one with them.

    Args:
        names: The hosts; those of other zones are passed over.
    """
    config = current_config(failover_requirements())
    with paused_collector():
        with one_snapshot():
            reports = {zone: ZoneReports.of(reporting_hosts(zone)) for zone in zones}
            keys, users = _shared(list(zones), sorted(names), reports.values())
            readings = [
                ZoneReading(zone=zone, now=now, config=config, reports=reports[zone])
                for zone in zones
            ]
            for reading in readings:
                _read_part(reading, keys, users)
        return [snapshot_of(reading) for reading in readings]


def _shared(
    zones: list[str], names: list[str], reports: Iterable[ZoneReports]
) -> tuple[list[int], list[str]]:
    """Return the slots that the rules look at when hosts are drained, and all VMs about them."""
    asked = {"zones": zones, "names": names}
    keys = {key for (key,) in fetch_rows(SELECT_KEYS_ON, asked)}
    users = {uuid for (uuid,) in fetch_rows(SELECT_UUIDS_ON, asked)}
    users |= {uuid for one in reports for name in names for uuid in one.lists.get(name, ())}
    for _ in range(SHARED_LEVELS):
        users |= {uuid for (uuid,) in fetch_rows(SELECT_USERS, {"slots": list(keys)})}
        keys |= {key for (key,) in fetch_rows(SELECT_USED, {**asked, "uuids": list(users)})}
    users |= {uuid for (uuid,) in fetch_rows(SELECT_USERS, {"slots": list(keys)})}
    return sorted(keys), sorted(users)


def _read_part(reading: ZoneReading, keys: list[int], users: list[str]) -> None:
    """Read some slots of a zone and some VMs."""
    asked = {"zone": reading.zone, "slots": keys, "uuids": users, **READY_WORDS, **STOPPED_WORDS}
    reading.hosts = fetch_rows(SELECT_HOSTS, asked)
    reading.slots = fetch_rows(SELECT_SLOTS_NAMED, asked)
    reading.members = fetch_rows(SELECT_MEMBERS_OF, asked)
    vms = fetch_rows(SELECT_VMS_NAMED, asked)
    reading.vms = vms + _elsewhere(vms, reading.members)


def _elsewhere(vms: Sequence[Row], members: Sequence[Row]) -> list[Row]:
    """Return users of slots that are on no host of the zone."""
    uuids = sorted({row[2] for row in members} - {row[1] for row in vms})
    return fetch_rows(SELECT_VMS_BY_UUID, {"uuids": uuids, **STOPPED_WORDS}) if uuids else []


def _read(zone: str, names: list[str], config: FailoverConfig, now: datetime) -> ZoneReading:
    asked = {"zone": zone, "names": names, **READY_WORDS, **STOPPED_WORDS}
    reports = ZoneReports.of(reporting_hosts(zone))
    vms = fetch_rows(SELECT_VMS_ON, asked)
    listed = {row[1] for row in vms}
    reported = sorted(set().union(*(reports.lists.get(name, ()) for name in names)) - listed)
    if reported:
        vms += fetch_rows(SELECT_VMS_NAMED, {**asked, "uuids": reported})
    members = fetch_rows(SELECT_MEMBERS_NAMED, {**asked, "uuids": [*listed, *reported]})
    return ZoneReading(
        zone=zone,
        now=now,
        config=config,
        hosts=fetch_rows(SELECT_HOSTS, asked),
        slots=fetch_rows(SELECT_SLOTS_NAMED, {**asked, "slots": sorted({r[1] for r in members})}),
        members=members,
        vms=vms + _elsewhere(vms, members),
        reports=reports,
    )
