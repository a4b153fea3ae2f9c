"""Updates that stay within their page: no index on what every write changes (HOT)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.apps import apps
from django.db import connection, models
from django.utils import timezone

from capacity.ledger.bulk import STAMP_USERS
from capacity.models import (
    AllocationState,
    GroupCapacity,
    ProjectQuota,
    ReservationAllocation,
    ReservationKind,
)
from failover.choices import RunOutcome
from failover.models import FailoverDecision, FailoverReservation, FailoverRun
from journal.models import FollowedModel, TrackedModel
from tests.factories import (
    make_allocation,
    make_commitment,
    make_group,
    make_group_capacity,
    make_host,
    make_hosts,
    make_quota,
    make_reservation,
    make_slot,
    make_vm,
)

pytestmark = pytest.mark.django_db

ROWS = 60
MANY_ROWS = 10 * ROWS
#: Part of the rows that find room in their page when all are updated in one transaction, in which
#: nothing of the old rows can be cleared away; without room, or with the index, it is 0.
LEAST = 0.2
#: Part of few updated rows that do.
MOST = 0.7
UPDATED = """
SELECT pg_stat_get_xact_tuples_updated(%s::regclass),
       pg_stat_get_xact_tuples_hot_updated(%s::regclass)
"""
TRIGGERING = """
SELECT event_object_column FROM information_schema.triggered_update_columns
 WHERE trigger_name = 'capacity_reservationallocation_track_change'
"""
#: Writes to these are in the log of changes.
FOLLOWED = {
    "capacity_groupcapacity",
    "capacity_hostcapacity",
    "capacity_projectquota",
    "capacity_reservation",
    "capacity_reservationallocation",
    "commitments_commitment",
    "commitments_instanceassignment",
    "failover_failoverreservation",
    "hosts_aggregate",
    "hosts_host",
    "hosts_hostresource",
    "hosts_instance",
}


def update_quotas() -> type[models.Model]:
    for number in range(ROWS):
        make_quota(project_id=f"p{number}")
    return ProjectQuota


def update_capacities() -> type[models.Model]:
    for number in range(ROWS):
        make_group_capacity(f"g{number}")
    return GroupCapacity


def update_decisions() -> type[models.Model]:
    now = timezone.now()
    for number in range(ROWS):
        FailoverDecision.objects.create(
            vm_uuid=f"vm-{number}", zone="az-a", required_count=1, current_count=0, since=now
        )
    return FailoverDecision


def update_failover_reservations() -> type[models.Model]:
    host = make_host("h1")
    for number in range(ROWS):
        held = make_reservation(host, kind=ReservationKind.FAILOVER)
        FailoverReservation.objects.create(reservation=held, name=f"f{number}")
    return FailoverReservation


def changes(model: type[models.Model]) -> dict[str, object]:
    """Return what a run of the task that owns the table writes again and again."""
    now = timezone.now()
    if model is ProjectQuota:
        return {"total_usage": {"ram": now.microsecond}, "counted_xmin": now.microsecond}
    if model is GroupCapacity:
        return {"free_memory_bytes": now.microsecond, "computed_at": now}
    if model is FailoverDecision:
        run = FailoverRun.objects.create(zone="az-a", started_at=now, outcome=RunOutcome.DONE)
        return {"run": run, "tried_at": now}
    return {"next_validation_at": now, "acknowledged_at": now}


@pytest.mark.parametrize(
    "fill",
    [update_quotas, update_capacities, update_decisions, update_failover_reservations],
    ids=["quota", "capacity", "decisions", "failover"],
)
def test_a_run_updates_rows_within_their_pages(fill: Callable[[], type[models.Model]]) -> None:
    model = fill()
    table = model._meta.db_table
    before, hot_before = updated(table)
    assert model._default_manager.update(**changes(model)) == ROWS
    after, hot_after = updated(table)
    assert after - before == ROWS
    assert (hot_after - hot_before) / ROWS > LEAST


def updated(table: str) -> tuple[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(UPDATED, [table, table])
        row = cursor.fetchone()
    assert row is not None
    return row[0], row[1]


def test_a_validation_stamps_users_of_slots_without_calling_them_changed() -> None:
    make_group()
    slot, now = make_slot(make_commitment(), make_host("h1")), timezone.now()
    with connection.cursor() as cursor:  # as if another transaction had made them
        cursor.execute("TRUNCATE capacity_reservationallocation")  # pages that no other test filled
        cursor.execute("SET LOCAL session_replication_role = replica")
        ReservationAllocation.objects.bulk_create(
            ReservationAllocation(
                reservation=slot,
                vm_uuid=f"vm-{number}",
                state=AllocationState.EXPECTED,
                memory_bytes=1,
                vcpus=1,
                since=now,
                changed_xid=10,
            )
            for number in range(MANY_ROWS)
        )
        cursor.execute("SET LOCAL session_replication_role = origin")
    rows = ReservationAllocation.objects.order_by("pk")
    before, hot_before = updated("capacity_reservationallocation")
    with connection.cursor() as cursor:
        ids = list(rows.values_list("pk", flat=True))
        cursor.execute(STAMP_USERS, {"now": now, "ids": ids})
    after, hot_after = updated("capacity_reservationallocation")
    assert set(rows.values_list("changed_xid", flat=True)) == {10}
    assert rows.filter(validated_at=None).count() == 0
    assert after - before == MANY_ROWS
    assert (hot_after - hot_before) / MANY_ROWS > LEAST
    rows.filter(pk=ids[0]).update(memory_bytes=2)
    assert rows.filter(changed_xid=10).count() == MANY_ROWS - 1


def test_every_other_column_of_a_user_makes_its_row_a_changed_one() -> None:
    with connection.cursor() as cursor:
        cursor.execute(TRIGGERING)
        triggering = {name for (name,) in cursor.fetchall()}
    columns = {field.column for field in ReservationAllocation._meta.concrete_fields}
    assert triggering == columns - {"validated_at"}


def fill_hosts() -> None:
    make_hosts(ROWS)


def fill_vms() -> None:
    host = make_host("h1")
    for number in range(ROWS):
        make_vm(f"vm-{number}", host=host)


def fill_slots() -> None:
    make_group()
    host, commitment = make_host("h1"), make_commitment()
    for _ in range(ROWS):
        make_allocation(make_slot(commitment, host), make_vm(host=host))


def fill_commitments() -> None:
    for number in range(ROWS):
        make_commitment(f"commitment-{number}")


@pytest.mark.parametrize(
    ("table", "fill", "column"),
    [
        ("capacity_hostcapacity", fill_hosts, "in_flight_memory_bytes"),
        ("hosts_host", fill_hosts, "reserved_disk_gib"),
        ("hosts_instance", fill_vms, "memory_bytes"),
        ("capacity_reservation", fill_slots, "blocked_memory_bytes"),
        ("capacity_reservationallocation", fill_slots, "memory_bytes"),
        ("commitments_commitment", fill_commitments, "used_memory_bytes"),
    ],
)
def test_writes_that_others_follow_stay_within_their_pages(
    table: str, fill: Callable[[], None], column: str
) -> None:
    """One row in ten has room in its page even before anything is cleared away there."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {table} CASCADE")  # pages that no other test filled
        fill()
        before, hot_before = updated(table)
        cursor.execute(f"UPDATE {table} SET {column} = {column} + 1 WHERE id % 10 = 0")  # noqa: S608
    after, hot_after = updated(table)
    assert after - before >= ROWS // 10
    assert (hot_after - hot_before) / (after - before) > MOST


def test_no_table_has_an_index_on_the_transaction_that_wrote_a_row() -> None:
    tracked = [model for model in apps.get_models() if issubclass(model, TrackedModel)]
    followed = {model._meta.db_table for model in tracked if issubclass(model, FollowedModel)}
    assert followed == FOLLOWED
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tablename FROM pg_indexes WHERE indexdef LIKE %s AND tablename = ANY(%s)",
            ["%changed_xid%", [model._meta.db_table for model in tracked]],
        )
        assert cursor.fetchall() == []
