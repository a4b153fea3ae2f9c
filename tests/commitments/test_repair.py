from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from capacity.host_table import cache, position
from capacity.host_table.position import Position, load_position
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.locks import LockSpace, take_lock, zone_lock
from capacity.models import FlavorGroup, HostCapacity, Reservation
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.models import Commitment, CommitmentEvent
from commitments.services import repair as repair_service
from commitments.services.repair import RepairReport, count_due_commitments, repair_due_commitments
from commitments.tasks import dispatch_due
from hosts.models import Flavor
from journal.actors import task_actor
from journal.history import Moment
from journal.leases import held_lease
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW, change, decide_ram
from tests.factories import make_group, make_host
from tests.process_tables import reset_host_table

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"


def repair(now: datetime = NOW, limit: int | None = None) -> RepairReport:
    return repair_due_commitments(
        actor=task_actor("test"), request_id="repair-1", now=now, limit=limit
    )


def due(uuid: str, amount_gib: int, state: str = "confirmed", **fields: object) -> Commitment:
    defaults: dict[str, object] = {
        "flavor_group_name": "hana_1",
        "resource_type": ResourceType.MEMORY,
        "requested_amount": amount_gib * GIB,
        "zone": "az-a",
        "project_id": "alpha",
        "state": state,
        "end_time": NOW + timedelta(days=1),
        "next_reconcile_at": NOW,
    }
    return Commitment.objects.create(commitment_uuid=uuid, **{**defaults, **fields})


@pytest.fixture
def cloud() -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)


@pytest.mark.django_db
@pytest.mark.usefixtures("cloud")
class TestRepair:
    def test_due_commitment_gets_its_slots(self) -> None:
        due(A, 4)
        assert repair() == RepairReport(accepted=1)
        row = Commitment.objects.get()
        assert (row.ready_reason, row.next_reconcile_at) == ("Accepted", row.end_time)
        assert Reservation.objects.filter(commitment=row, target_host__name="h1").count() == 4
        assert CommitmentEvent.objects.get().action == "commitment_accepted"

    def test_second_run_finds_nothing_to_do(self) -> None:
        due(A, 4)
        repair()
        before = Commitment.objects.values().get()
        assert repair().handled == 0
        assert Commitment.objects.values().get() == before

    def test_unchanged_commitment_is_not_written_again(self) -> None:
        row = due(A, 4)
        repair()
        Commitment.objects.update(next_reconcile_at=NOW)
        repair(NOW + timedelta(minutes=1))
        assert CommitmentEvent.objects.count() == 1
        slots = set(Reservation.objects.values_list("parent_generation", flat=True))
        assert slots == {row.generation}

    def test_what_does_not_fit_keeps_what_fits_and_waits_longer_each_time(self) -> None:
        due(A, 12)
        assert repair() == RepairReport(reserving=1)
        assert Reservation.objects.filter(target_host__isnull=False).count() == 10
        delays = []
        now = NOW
        for _ in range(4):
            next_at = Commitment.objects.get().next_reconcile_at
            assert next_at is not None
            delays.append(int((next_at - now).total_seconds()))
            now = next_at
            repair(now)
        assert delays == [60, 120, 240, 480]
        make_host("h2", zone="az-a", memory_gib=2, vcpus=8)
        next_at = Commitment.objects.get().next_reconcile_at
        assert next_at is not None
        assert repair(next_at) == RepairReport(accepted=1)
        assert Reservation.objects.filter(target_host__isnull=True).count() == 0

    @pytest.mark.parametrize("state", ["confirmed", "guaranteed", "pending"])
    def test_ended_commitment_releases_its_room(self, state: str) -> None:
        due(A, 4, state)
        repair()
        assert repair(NOW + timedelta(days=2)) == RepairReport(released=1)
        row = Commitment.objects.get()
        assert (row.ready_status, row.ready_reason) == (False, "expired")
        assert row.next_reconcile_at is None
        assert HostCapacity.objects.get().committed_memory_bytes == 0

    def test_planned_commitment_holds_nothing(self) -> None:
        due(A, 4, CommitmentStatus.PLANNED)
        assert repair() == RepairReport(other=1)
        assert Commitment.objects.get().ready_reason == "Planned"

    def test_cores_are_counted_before_they_are_promised(self) -> None:
        due(A, 0, resource_type=ResourceType.CORES, requested_amount=40)
        due(B, 0, resource_type=ResourceType.CORES, requested_amount=1)
        assert repair() == RepairReport(accepted=1, reserving=1)

    @pytest.mark.parametrize("rejectable", [False, True], ids=["promised", "may be refused"])
    def test_confirmed_commitment_gets_its_room_before_those_that_wait_for_some(
        self, *, rejectable: bool
    ) -> None:
        earlier = NOW - timedelta(minutes=5)
        due(A, 8, "guaranteed", next_reconcile_at=earlier, allow_rejection=rejectable)
        due(B, 8, "confirmed")
        repair()
        reasons = dict(Commitment.objects.values_list("commitment_uuid", "ready_reason"))
        assert reasons[B] == "Accepted"
        assert reasons[A] != "Accepted"
        held = Reservation.objects.filter(target_host__isnull=False)
        assert held.filter(commitment__commitment_uuid=B).count() == 8

    def test_confirmed_commitment_with_slots_of_old_sizes_comes_first_too(self) -> None:
        """Its flavors changed size, and its host was lost: it is looked at by itself."""
        due(B, 4)
        repair()
        Flavor.objects.update(memory_bytes=2 * GIB)
        FlavorGroup.objects.update(resized_at=NOW)
        Reservation.objects.update(
            target_host=None, confirmed_host=None, blocked_memory_bytes=0, blocked_vcpus=0
        )
        rebuild_host_capacity()
        Commitment.objects.update(next_reconcile_at=NOW)
        due(A, 8, "guaranteed", next_reconcile_at=NOW - timedelta(minutes=5))
        repair()
        reasons = dict(Commitment.objects.values_list("commitment_uuid", "ready_reason"))
        assert reasons == {A: "Reserving", B: "Accepted"}

    def test_confirmed_commitment_comes_first_also_where_a_run_is_cut_short(self) -> None:
        due(A, 8, "guaranteed", next_reconcile_at=NOW - timedelta(minutes=5))
        due(B, 8, "confirmed")
        assert repair(limit=1) == RepairReport(accepted=1)
        assert Commitment.objects.get(ready_reason="Accepted").commitment_uuid == B

    def test_limit_bounds_a_run(self) -> None:
        due(A, 1)
        due(B, 1)
        assert repair(limit=1).handled == 1
        assert count_due_commitments(NOW) == 1

    def test_commitment_of_a_retired_group_keeps_its_slots(self) -> None:
        decide_ram("alpha", change(A, 4))
        FlavorGroup.objects.update(is_retired=True)
        Commitment.objects.update(next_reconcile_at=NOW)
        assert repair() == RepairReport(accepted=1)
        assert Reservation.objects.count() == 4

    def test_task_repairs_what_is_due(self) -> None:
        due(A, 4, end_time=None, next_reconcile_at=NOW - timedelta(days=1))
        assert dispatch_due() == {"handled": 1, "skipped": []}


@pytest.mark.django_db
def test_nothing_happens_before_flavor_groups_are_known() -> None:
    due(A, 4)
    assert repair().handled == 0
    assert Commitment.objects.get().ready_reason == ""


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize("is_planner", [True, False], ids=["planner at work", "other repair"])
def test_zone_that_somebody_works_on_is_skipped(is_planner: bool) -> None:
    due(A, 4)
    other = connections.create_connection("default")
    try:
        connections["default"], mine = other, connections["default"]
        with transaction.atomic():
            if is_planner:
                zone_lock(["az-a"])
            else:
                take_lock(LockSpace.TASK, ["commitments.repair:az-a"])
            connections["default"] = mine
            assert repair().skipped == ("az-a",)
            connections["default"] = other
    finally:
        connections["default"] = mine
        other.close()
    assert repair().accepted == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("cloud")
def test_commitment_that_somebody_writes_stays_due_and_holds_up_no_other(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.1})
    busy, free = due(A, 4), due(B, 4)
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT FROM commitments_commitment WHERE id = %s FOR UPDATE", [busy.pk])
            assert repair() == RepairReport(accepted=1)
            cursor.execute("ROLLBACK")
    finally:
        other.close()
    free.refresh_from_db()
    assert free.ready_reason == "Accepted"
    assert Commitment.objects.get(pk=busy.pk).next_reconcile_at == NOW
    assert repair() == RepairReport(accepted=1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("cloud")
def test_a_fresh_process_reads_the_hosts_once_however_many_chunks_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction under a lease has written before it plans; what it reads is not kept."""
    monkeypatch.setattr(repair_service, "CHUNK_ROWS", 1)
    read: list[Moment] = []

    def counted(moment: Moment) -> Position:
        read.append(moment)
        return load_position(moment)

    monkeypatch.setattr(cache, "load_position", counted)
    monkeypatch.setattr(position, "load_position", counted)
    reset_host_table()
    for number in range(4):
        due(f"{A[:-1]}{number}", 2, "pending")
    with held_lease("test") as is_mine:
        assert is_mine
        assert repair().handled == 4
    assert len(read) == 1
