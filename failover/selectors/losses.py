"""What the loss of some hosts of a zone touches, read without the rest of it (spec failover, 17.2).

Rooms are read of all hosts of the zone; VMs are those that the list or the hosts' own lists put on
the failing hosts, slots those that such a VM may use. A drill of these hosts answers as it does on
the whole zone.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from core.changes import one_snapshot
from failover.conf import FailoverConfig, current_config
from failover.domain.zone_columns import ZoneSnapshot
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
    snapshot_of,
)
from hosts.vm_source import reporting_hosts
from journal.collector import paused_collector
from journal.statements import fetch_rows

SELECT_VMS_ON = SELECT_VMS + " AND host.name = ANY(%(names)s)"
SELECT_VMS_NAMED = SELECT_VMS + " AND vm.openstack_id = ANY(%(uuids)s)"
SELECT_MEMBERS_NAMED = (
    MEMBER_COLUMNS + " AND held.zone = %(zone)s AND vm.vm_uuid = ANY(%(uuids)s) ORDER BY vm.id"
)
SELECT_SLOTS_NAMED = (
    SLOT_COLUMNS + " AND held.zone = %(zone)s AND held.id = ANY(%(slots)s) ORDER BY held.id"
)


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


def _read(zone: str, names: list[str], config: FailoverConfig, now: datetime) -> ZoneReading:
    asked = {"zone": zone, "names": names, **READY_WORDS, **STOPPED_WORDS}
    reports = ZoneReports.of(reporting_hosts(zone))
    vms = fetch_rows(SELECT_VMS_ON, asked)
    listed = {row[1] for row in vms}
    reported = sorted(set().union(*(reports.lists.get(name, ()) for name in names)) - listed)
    if reported:
        vms += fetch_rows(SELECT_VMS_NAMED, {**asked, "uuids": reported})
    members = fetch_rows(SELECT_MEMBERS_NAMED, {**asked, "uuids": [*listed, *reported]})
    elsewhere = sorted({row[2] for row in members} - {row[1] for row in vms})
    if elsewhere:
        vms += fetch_rows(SELECT_VMS_BY_UUID, {**asked, "uuids": elsewhere})
    return ZoneReading(
        zone=zone,
        now=now,
        config=config,
        hosts=fetch_rows(SELECT_HOSTS, asked),
        slots=fetch_rows(SELECT_SLOTS_NAMED, {**asked, "slots": sorted({r[1] for r in members})}),
        members=members,
        vms=vms,
        reports=reports,
    )
