"""What PostgreSQL plans and reads for one VM, whatever it knows of tables just filled."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from capacity.host_table import current_host_table
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import Reservation, ReservationAllocation
from capacity.nova.pipelines import ensure_shipped_pipelines
from failover.models import FailoverReservation
from failover.services.replanning import ReplanOutcome, replan_vm
from hosts.models import Host, Instance, ServerGroup
from tests.failover.zones import flavor, hosts, require, vm
from tests.plans import Statistics, believe, without_triggers
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db(transaction=True)

HOSTS, VMS_PER_HOST, SLOTS_PER_HOST, SERVER_GROUPS = 150, 20, 8, 2000
TABLES = (
    "hosts_host",
    "hosts_instance",
    "hosts_servergroup",
    "capacity_hostcapacity",
    "capacity_reservation",
    "capacity_reservationallocation",
    "failover_failoverreservation",
    "failover_failovercooldown",
    "failover_failoverdecision",
)
#: Of hosts and rooms there are few; tables of a few pages may be read whole.
COUNTED = ("hosts_instance", "hosts_servergroup", *TABLES[4:7])
FEW_ROWS = 400
ROWS_READ = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))
  FROM pg_stat_user_tables WHERE relname = ANY(%s)
"""


def fill() -> None:
    """Make a zone in which the reservations of each host are for VMs of the hosts after it."""
    names = " ".join(f"host{number}" for number in range(HOSTS))
    hosts(names, vcpus=256, gib=512)
    ensure_shipped_pipelines(request_id="test")
    homes = list(Host.objects.order_by("id"))
    kind = flavor()
    now = timezone.now()
    with without_triggers(["hosts_instance", *TABLES[4:7]]):
        Instance.objects.bulk_create(
            Instance(
                openstack_id=f"vm-{home}-{number}",
                host=homes[home],
                zone="az-a",
                status="ACTIVE",
                project_id="p",
                flavor_name=kind.name,
                flavor_extra_specs=kind.extra_specs,
                vcpus=kind.vcpus,
                memory_bytes=kind.memory_bytes,
                nova_updated_at=now,
            )
            for home in range(HOSTS)
            for number in range(VMS_PER_HOST)
        )
        held = Reservation.objects.bulk_create(
            Reservation(
                kind="failover",
                zone="az-a",
                target_host=homes[home],
                memory_bytes=kind.memory_bytes,
                vcpus=kind.vcpus,
                blocked_memory_bytes=kind.memory_bytes,
                blocked_vcpus=kind.vcpus,
                is_ready=True,
            )
            for home in range(HOSTS)
            for _ in range(SLOTS_PER_HOST)
        )
        FailoverReservation.objects.bulk_create(
            FailoverReservation(
                reservation=row,
                name=f"slot-{row.pk}",
                last_changed_at=now,
                next_validation_at=now + timedelta(minutes=30),
            )
            for row in held
        )
        ReservationAllocation.objects.bulk_create(
            ReservationAllocation(
                reservation=row,
                vm_uuid=f"vm-{home}-{place % SLOTS_PER_HOST}",
                state="expected",
                memory_bytes=kind.memory_bytes,
                vcpus=kind.vcpus,
                since=now,
                vm_host=homes[home],
            )
            for place, row in enumerate(held)
            for home in ((place // SLOTS_PER_HOST + 1) % HOSTS,)
        )
    ServerGroup.objects.bulk_create(
        ServerGroup(openstack_id=f"group-{number}", policy="anti-affinity", members=[f"x{number}"])
        for number in range(SERVER_GROUPS)
    )
    rebuild_host_capacity()


def rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(ROWS_READ, [list(COUNTED)])
        ((count,),) = cursor.fetchall()
    return int(count)


def plan(uuid: str) -> None:
    done = replan_vm(uuid, request_id="replan-test")
    assert (done.outcome, done.joined) == (ReplanOutcome.COVERED, 2), done


@pytest.mark.sql("failover_lock_slots", "failover_lock_vms")
@pytest.mark.parametrize("statistics", [Statistics.NEVER, Statistics.EMPTY, Statistics.CURRENT])
def test_one_vm_is_planned_with_a_few_rows_whatever_the_statistics_say(
    statistics: Statistics,
) -> None:
    fill()
    require(any=2)
    reset_host_table()
    current_host_table()
    believe(statistics, TABLES, others={})
    reads = []
    for number in (3, 4, 5):
        vm(f"new-{number}@host{number}")
        before = rows_read()
        plan(f"new-{number}")
        reads.append(rows_read() - before)
    assert max(reads) < FEW_ROWS, reads


def test_no_statement_of_a_plan_of_one_vm_leaves_the_order_of_a_join_to_the_planner() -> None:
    fill()
    require(any=2)
    reset_host_table()
    vm("new-3@host3")
    vm("new-4@host4")
    plan("new-3")
    with CaptureQueriesContext(connection) as statements:
        plan("new-4")
    assert [one["sql"] for one in statements if " JOIN " in one["sql"]] == []
