"""The rules read what belongs to a change, also with plans that a session made long before."""

from __future__ import annotations

import pytest
from django.db import connection

from capacity.models import ReservationAllocation
from failover.models import FailoverReservation
from tests.factories import make_allocation, make_hosts, make_reservation, make_vm
from tests.plans import Statistics, believe, without_triggers

pytestmark = pytest.mark.django_db

OTHERS = 20_000
FEW_ROWS = 200
GROW = """
INSERT INTO capacity_reservationallocation
       (reservation_id, vm_uuid, state, memory_bytes, vcpus, since, vm_host_id, created_at,
        updated_at)
SELECT %s, 'other-' || n, 'expected', 1, 1, now(), NULL, now(), now()
  FROM generate_series(1, %s) n
"""
ROWS_READ = """
SELECT coalesce(sum(seq_tup_read), 0) + coalesce(sum(idx_tup_fetch), 0)
  FROM pg_stat_xact_user_tables
 WHERE relname IN ('capacity_reservation', 'capacity_reservationallocation',
                   'failover_failoverreservation')
"""
TABLES = (
    "capacity_reservation",
    "capacity_reservationallocation",
    "failover_failoverreservation",
    "hosts_instance",
)


def rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute(ROWS_READ)
        ((count,),) = cursor.fetchall()
    return int(count)


@pytest.mark.parametrize("statistics", [one for one in Statistics if one != Statistics.HALF])
def test_rules_read_a_few_rows_after_the_tables_grew_under_the_plans_of_a_session(
    statistics: Statistics,
) -> None:
    homes = make_hosts(12)
    slot = make_reservation(homes[0])
    FailoverReservation.objects.create(reservation=slot, name="failover-az-a-steady")
    for number in range(1, 9):  # from the sixth time on, a session may keep its plan
        early = make_vm(f"early-{number}", homes[number])
        make_allocation(slot, early)
    for _ in range(6):
        early.host = homes[10] if early.host != homes[10] else homes[9]
        early.save()
    other = make_reservation(homes[11])
    with without_triggers(["capacity_reservationallocation"]), connection.cursor() as cursor:
        cursor.execute(GROW, [other.pk, OTHERS])
    believe(statistics, TABLES, others={})
    before = rows_read()
    mover = make_vm("mover", homes[9])
    assert rows_read() - before < FEW_ROWS
    before = rows_read()
    make_allocation(slot, mover)
    assert rows_read() - before < FEW_ROWS
    before = rows_read()
    mover.host = homes[10]
    mover.save()
    assert rows_read() - before < FEW_ROWS
    assert not ReservationAllocation.objects.filter(vm_uuid=mover.openstack_id).exists()
