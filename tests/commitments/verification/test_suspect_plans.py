"""What a look at slots reads, whatever PostgreSQL knows of tables that were just filled."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from benchmarks.schedule_region import AGGREGATES, ALLOCATIONS, HOSTS, RESERVATIONS, TABLES, VMS
from capacity.models import Reservation, ReservationKind
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.models import Commitment
from commitments.selectors.slot_suspects import (
    Deadlines,
    WhatChanged,
    arrivals_at,
    suspect_slots,
)
from journal.history import read_moment
from tests.plans import (
    Statistics,
    believe,
    believe_in_more,
    expected_rows,
    measured_work,
    without_triggers,
)

pytestmark = pytest.mark.django_db

HOST_COUNT = 600
LARGE_REGION = 10_000
RESERVATION_COUNT = 7200
SLOT_COUNT = RESERVATION_COUNT * 2 // 3
ZONE = "az-2"
LATER = {
    "capacity_reservation": "zone = 'az-2'",
    "capacity_reservationallocation": (
        "reservation_id IN (SELECT id FROM late_capacity_reservation WHERE zone = 'az-2')"
    ),
}
# Each slot in its place, so that nothing is found; the VMs of slots are on the hosts of the slots.
AT_REST = """
UPDATE capacity_reservationallocation AS listed
   SET state = 'confirmed', vm_uuid = vm.openstack_id, memory_bytes = vm.memory_bytes,
       vcpus = vm.vcpus, confirmed_host_id = vm.host_id, confirmed_at = now()
  FROM (SELECT id, target_host_id, row_number() OVER (PARTITION BY target_host_id ORDER BY id) AS n
          FROM capacity_reservation WHERE kind = 'committed') AS slot
  JOIN (SELECT *, row_number() OVER (PARTITION BY host_id ORDER BY id) AS n
          FROM hosts_instance) AS vm
    ON vm.host_id = slot.target_host_id AND vm.n = slot.n
 WHERE listed.reservation_id = slot.id
"""
UNMATCHED = "DELETE FROM capacity_reservationallocation WHERE state = 'expected'"
LONG_AGO = "UPDATE {table} SET changed_xid = 1"


def fill() -> None:
    """Make hosts in three zones with VMs and slots, most slots with a VM that is where it was."""
    parameters = {
        "hosts": HOST_COUNT,
        "slots": SLOT_COUNT,
        "failover": RESERVATION_COUNT // 4,
        "in_flight": RESERVATION_COUNT // 12,
    }
    with without_triggers(TABLES), connection.cursor() as cursor:
        for statement in (AGGREGATES, HOSTS, VMS):
            cursor.execute(statement, parameters)
        Commitment.objects.bulk_create(
            Commitment(
                commitment_uuid=f"commitment-{number}",
                flavor_group_name="group-1",
                resource_type=ResourceType.MEMORY,
                requested_amount=1 << 30,
                zone=ZONE,
                project_id="project-1",
                state=CommitmentStatus.CONFIRMED,
            )
            for number in range(SLOT_COUNT // 10 + 1)
        )
        for statement in (RESERVATIONS, ALLOCATIONS, AT_REST):
            cursor.execute(statement, parameters)
        cursor.execute(UNMATCHED)
        for table in TABLES:
            cursor.execute(LONG_AGO.format(table=table))


def never() -> Deadlines:
    past = timezone.now() - timedelta(days=1)
    return Deadlines(overdue=past, settled=past, latest=past + timedelta(days=1))


@pytest.mark.parametrize("statistics", Statistics)
def test_looks_at_slots_read_the_same_whatever_the_statistics_say(statistics: Statistics) -> None:
    fill()
    believe(statistics, TABLES, others=LATER)
    assert_reads_follow_the_slots()


def test_looks_at_slots_read_the_same_in_a_region_taken_for_10000_hosts() -> None:
    fill()
    believe(Statistics.CURRENT, TABLES, others={})
    believe_in_more(LARGE_REGION // HOST_COUNT, TABLES)
    assert expected_rows("hosts_host") > LARGE_REGION * 0.9
    assert expected_rows("capacity_reservation") > RESERVATION_COUNT * 15
    assert_reads_follow_the_slots()


def assert_reads_follow_the_slots() -> None:
    slot_ids = list(
        Reservation.objects.filter(zone=ZONE, kind=ReservationKind.COMMITTED).values_list(
            "pk", flat=True
        )[:500]
    )
    now = read_moment()
    since = now.snapshot
    with measured_work() as full:
        suspect_slots(ZONE, "", WhatChanged(), never(), adopts=True)
    with measured_work() as changes:
        suspect_slots(ZONE, since, WhatChanged(vms_deleted=False), never(), adopts=True)
    with measured_work() as arrivals:
        arrivals_at(ZONE, slot_ids)
    assert full.total < 60 * SLOT_COUNT, max(full.rows)
    assert changes.total < 20 * SLOT_COUNT, max(changes.rows)
    assert arrivals.total < 100 * len(slot_ids), max(arrivals.rows)
