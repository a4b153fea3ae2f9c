"""The life of a commitment in the background (spec commitments, 8)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from capacity.models import FlavorGroup, HostCapacity, Reservation, ReservationAllocation
from commitments.domain.statuses import ResourceType
from commitments.models import Commitment, CommitmentEvent
from commitments.services.repair import RepairReport
from hosts.models import Host, Instance
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW, change, decide_ram
from tests.commitments.due_rows import (
    FLAVOR_GIB,
    A,
    B,
    change_spec,
    conditions,
    due,
    make_all_due,
    repair,
    slots,
    use_payg,
)
from tests.factories import (
    make_assignment,
    make_commitment,
    make_group,
    make_group_capacity,
    make_host,
    make_slot,
    make_vm,
)
from tests.ledger import assert_ledger_holds

pytestmark = pytest.mark.django_db


@pytest.fixture
def group() -> FlavorGroup:
    return make_group("hana_1", flavors=[("small", FLAVOR_GIB * 1024, 4)])


@pytest.fixture
def cloud(group: FlavorGroup) -> Host:
    return make_host("h1", zone="az-a", memory_gib=16, vcpus=64)


@pytest.mark.usefixtures("group")
class TestScenarios:
    """Spec commitments, 8.11: one row of the table per test or parameter."""

    @pytest.mark.parametrize(
        ("gib", "state", "expected", "reason"),
        [
            pytest.param(4, "confirmed", 1, "Accepted", id="confirmed 4 GiB"),
            pytest.param(8, "confirmed", 2, "Accepted", id="confirmed 8 GiB"),
            pytest.param(4, "pending", 1, "Accepted", id="pending 4 GiB"),
            pytest.param(4, "guaranteed", 1, "Accepted", id="guaranteed 4 GiB"),
            pytest.param(4, "planned", 0, "Planned", id="planned"),
        ],
    )
    def test_scheduler_accepts(self, gib: int, state: str, expected: int, reason: str) -> None:
        make_host("h1", memory_gib=16, vcpus=64)
        due(gib=gib, state=state)
        repair()
        assert conditions() == [(reason == "Accepted", reason)]
        assert len(slots()) == expected

    def test_scheduler_returns_none(self) -> None:
        make_host("h1", memory_gib=2, vcpus=64)
        due(allow_rejection=True)
        assert repair() == RepairReport(rejected=1)
        assert (conditions(), slots()) == ([(False, "Rejected")], [])

    def test_no_hosts_exist(self) -> None:
        due(allow_rejection=True)
        repair()
        assert (conditions(), slots()) == ([(False, "Rejected")], [])

    def test_unknown_flavor_group(self) -> None:
        due(allow_rejection=True, flavor_group_name="unknown")
        repair()
        assert (conditions(), slots()) == ([(False, "Rejected")], [])
        assert Commitment.objects.get().ready_message == "flavor group not found: unknown"

    def test_two_confirmed(self) -> None:
        make_host("h1", memory_gib=16, vcpus=64)
        due(A)
        due(B)
        repair()
        assert conditions() == [(True, "Accepted")] * 2
        assert len(slots()) == 2

    def test_one_planned_one_confirmed(self) -> None:
        make_host("h1", memory_gib=16, vcpus=64)
        due(A, state="planned")
        due(B)
        repair()
        assert conditions() == [(False, "Planned"), (True, "Accepted")]
        assert len(slots()) == 1

    @pytest.mark.parametrize("state", ["expired", "superseded"])
    def test_inactive_with_one_slot(self, state: str) -> None:
        host = make_host("h1", memory_gib=16, vcpus=64)
        row = due(state=state)
        make_slot(row, host, memory_gib=4, vcpus=4)
        repair()
        assert (conditions(), slots()) == ([(False, state)], [])
        assert HostCapacity.objects.get().committed_memory_bytes == 0

    def test_planned_then_confirmed(self) -> None:
        make_host("h1", memory_gib=16, vcpus=64)
        row = due(state="planned")
        repair()
        assert (conditions(), len(slots())) == ([(False, "Planned")], 0)
        change_spec(row, state="confirmed")
        repair()
        assert (conditions(), len(slots())) == ([(True, "Accepted")], 1)

    def test_without_rejection_it_waits_for_ever(self) -> None:
        make_host("h1", memory_gib=2, vcpus=64)
        due()
        for hours in range(5):
            make_all_due(NOW + timedelta(hours=hours))
            repair(NOW + timedelta(hours=hours))
            assert conditions() == [(False, "Reserving")]

    def test_scheduler_rejects_twice_then_accepts(self) -> None:
        make_host("h1", memory_gib=2, vcpus=64)
        due()
        for minutes in (0, 1):
            make_all_due(NOW + timedelta(minutes=minutes))
            assert repair(NOW + timedelta(minutes=minutes)) == RepairReport(reserving=1)
        make_host("h2", memory_gib=16, vcpus=64)
        make_all_due(NOW + timedelta(minutes=3))
        assert repair(NOW + timedelta(minutes=3)) == RepairReport(accepted=1)
        assert slots() == [("h2", 4)]

    def test_slot_deleted_by_hand(self) -> None:
        host = make_host("h1", memory_gib=16, vcpus=64)
        due()
        repair()
        Reservation.objects.all().delete()
        HostCapacity.objects.update(committed_memory_bytes=0, committed_vcpus=0)
        make_all_due()
        repair()
        assert (conditions(), slots()) == ([(True, "Accepted")], [(host.name, 4)])

    def test_accepted_reconciled_again_twice(self) -> None:
        make_host("h1", memory_gib=16, vcpus=64)
        row = due()
        repair()
        before = Commitment.objects.values().get()
        for _ in range(2):
            Commitment.objects.update(next_reconcile_at=NOW)
            repair()
        after = Commitment.objects.values().get()
        timers = {"changed_xid", "updated_at", "last_reconcile_at"}
        assert {k: v for k, v in before.items() if k not in timers} == {
            k: v for k, v in after.items() if k not in timers
        }
        assert CommitmentEvent.objects.filter(commitment_uuid=row.commitment_uuid).count() == 1

    def test_rejected_reconciled_again_twice(self) -> None:
        make_host("h1", memory_gib=4, vcpus=64)
        row = due(allow_rejection=True)
        repair()
        change_spec(row, requested_amount=8 * GIB)
        for _ in range(3):
            make_all_due()
            assert repair() == RepairReport(rejected=1)
            assert (conditions(), slots()) == ([(False, "Rejected")], [("h1", 4)])
        assert CommitmentEvent.objects.filter(action="commitment_rejected").count() == 1

    def test_payg_vm_present_scheduler_would_reject(self, settings: Any) -> None:
        use_payg(settings)
        host = make_host("h1", memory_gib=4, vcpus=4)
        vm = make_vm(host=host, memory_gib=4, vcpus=4, project_id="alpha")
        due()
        assert repair() == RepairReport(accepted=1)
        slot = Reservation.objects.get()
        assert (slot.target_host, slot.ready_reason) == (host, "PreAllocated")
        assert slot.decision is None
        assert slot.allocations.get().vm_uuid == vm.openstack_id
        assert_ledger_holds()

    def test_malformed_uuid_is_kept_out_by_the_database(self) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            due("x")


class TestRollback:
    """Spec commitments, 8.8."""

    def test_slot_of_an_earlier_generation_is_kept_and_follows(self, cloud: Host) -> None:
        row = due(allow_rejection=True)
        repair()
        slot = Reservation.objects.get()
        change_spec(row, requested_amount=400 * GIB)
        repair()
        after = Reservation.objects.get()
        assert (after.pk, after.target_host) == (slot.pk, cloud)
        assert (after.parent_generation, after.observed_parent_generation) == (2, 2)

    def test_slot_in_another_zone_gives_way_to_one_in_the_accepted_zone(self, cloud: Host) -> None:
        other = make_host("n1", zone="new-az", memory_gib=4, vcpus=4)
        row = due(allow_rejection=True)
        repair()
        Reservation.objects.all().delete()
        HostCapacity.objects.update(committed_memory_bytes=0, committed_vcpus=0)
        change_spec(row, zone="new-az", requested_amount=8 * GIB)
        make_slot(row, other, memory_gib=4, vcpus=4, zone="new-az")
        repair()
        assert (conditions(), slots()) == ([(False, "Rejected")], [(cloud.name, 4)])
        slot = Reservation.objects.get()
        assert (slot.zone, slot.creator) == ("az-a", "committed-resource-controller-rollback")
        assert_ledger_holds()

    def test_nothing_accepted_leaves_nothing(self, cloud: Host) -> None:
        row = due(allow_rejection=True, gib=400)
        make_slot(row, cloud, memory_gib=4, vcpus=4)
        repair()
        assert (conditions(), slots()) == ([(False, "Rejected")], [])

    @pytest.mark.usefixtures("group")
    def test_resize_that_fits_in_part_leaves_what_was_accepted(self) -> None:
        make_host("h1", memory_gib=4, vcpus=64)
        row = due(allow_rejection=True)
        repair()
        accepted = Commitment.objects.get().accepted_spec
        change_spec(row, requested_amount=8 * GIB)
        repair()
        row.refresh_from_db()
        assert (conditions(), slots()) == ([(False, "Rejected")], [("h1", 4)])
        assert (row.accepted_spec, row.accepted_amount) == (accepted, 4 * GIB)
        assert row.ready_message == "insufficient capacity: 1/2 reservation slots could be placed"
        assert row.status_summary.startswith("Rejected (amount 4Gi→8Gi)")

    @pytest.mark.usefixtures("group")
    def test_new_one_that_fits_in_part_leaves_nothing(self) -> None:
        make_host("h1", memory_gib=4, vcpus=64)
        due(allow_rejection=True, gib=8)
        repair()
        assert (conditions(), slots()) == ([(False, "Rejected")], [])

    @pytest.mark.usefixtures("group")
    def test_pending_gives_up_everything(self) -> None:
        make_host("h1", memory_gib=4, vcpus=64)
        row = due(allow_rejection=True, state="pending")
        repair()
        change_spec(row, requested_amount=8 * GIB)
        repair()
        assert (conditions(), slots()) == ([(False, "Rejected")], [])
        assert Commitment.objects.get().accepted_amount is None

    def test_slots_stay_while_the_flavor_group_is_unknown(self, cloud: Host) -> None:
        row = due(allow_rejection=True)
        repair()
        FlavorGroup.objects.all().delete()
        change_spec(row, requested_amount=8 * GIB)
        repair()
        assert (conditions(), slots()) == ([(False, "Rejected")], [(cloud.name, 4)])
        assert Commitment.objects.get().next_reconcile_at == NOW + timedelta(minutes=1)

    def test_adopted_slot_survives_and_nothing_new_is_adopted(
        self, settings: Any, group: FlavorGroup
    ) -> None:
        use_payg(settings)
        host = make_host("h1", memory_gib=4, vcpus=4)
        vm = make_vm(host=host, memory_gib=4, vcpus=4, project_id="alpha")
        row = due(allow_rejection=True)
        repair()
        slot = Reservation.objects.get()
        change_spec(row, requested_amount=8 * GIB)
        repair()
        after = Reservation.objects.get()
        assert conditions() == [(False, "Rejected")]
        assert (after.pk, after.slot_index, after.target_host) == (slot.pk, 0, host)
        assert after.allocations.get().vm_uuid == vm.openstack_id

    def test_refused_slots_are_not_in_the_way_of_the_next(self, group: FlavorGroup) -> None:
        make_host("h1", memory_gib=8, vcpus=64)
        due(A, gib=12, allow_rejection=True)
        due(B, gib=8, allow_rejection=True)
        assert repair() == RepairReport(rejected=1, accepted=1)
        assert slots() == [("h1", 4), ("h1", 4)]

    def test_promise_that_lost_its_host_is_late_and_not_taken_back(self, cloud: Host) -> None:
        due(allow_rejection=True)
        repair()
        Reservation.objects.update(
            target_host=None, confirmed_host=None, blocked_memory_bytes=0, blocked_vcpus=0
        )
        HostCapacity.objects.update(
            committed_memory_bytes=0, committed_vcpus=0, effective_memory_bytes=0
        )
        Host.objects.update(effective_memory_bytes=0)
        make_all_due()
        assert repair() == RepairReport(reserving=1)
        assert Commitment.objects.get().accepted_amount == 4 * GIB


class TestPayg:
    """Spec commitments, 7.3: which VMs are candidates."""

    @pytest.fixture(autouse=True)
    def _on(self, settings: Any, group: FlavorGroup) -> None:
        use_payg(settings)

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"status": "SHUTOFF"}, id="VM inactive"),
            pytest.param({"flavor_name": "other"}, id="other flavor"),
            pytest.param({"project_id": "beta"}, id="other project"),
            pytest.param({"memory_gib": 3}, id="smaller than its flavor"),
        ],
    )
    def test_vm_is_not_a_candidate(self, fields: dict[str, Any]) -> None:
        host = make_host("h1", memory_gib=16, vcpus=64)
        make_vm(host=host, **{"memory_gib": 4, "vcpus": 4, "project_id": "alpha", **fields})
        due()
        repair()
        assert not ReservationAllocation.objects.exists()
        assert slots() == [("h1", 4)]

    def test_vm_on_a_host_of_another_zone_is_not_a_candidate(self) -> None:
        make_host("h1", memory_gib=16, vcpus=64)
        other = make_host("n1", zone="az-b", memory_gib=16, vcpus=64)
        make_vm(host=other, memory_gib=4, vcpus=4, project_id="alpha")
        due()
        repair()
        assert slots() == [("h1", 4)]

    def test_vm_in_another_commitments_slot_is_not_a_candidate(self) -> None:
        host = make_host("h1", memory_gib=16, vcpus=64)
        other = make_commitment(B, amount_gib=4, project_id="alpha")
        taken = make_slot(other, host, memory_gib=4, vcpus=4)
        make_vm(host=host, slot=taken, memory_gib=4, vcpus=4, project_id="alpha")
        due()
        repair()
        slot = Reservation.objects.get(commitment__commitment_uuid=A)
        assert (slot.ready_reason, slot.allocations.count()) == ("ReservationActive", 0)

    def test_flag_off(self, settings: Any) -> None:
        use_payg(settings, is_on=False)
        host = make_host("h1", memory_gib=16, vcpus=64)
        make_vm(host=host, memory_gib=4, vcpus=4, project_id="alpha")
        due()
        repair()
        assert not ReservationAllocation.objects.exists()

    def test_two_commitments_of_one_batch_share_no_vm(self) -> None:
        host = make_host("h1", memory_gib=16, vcpus=64)
        make_vm(host=host, memory_gib=4, vcpus=4, project_id="alpha")
        due(A)
        due(B)
        assert repair() == RepairReport(accepted=2)
        assert ReservationAllocation.objects.count() == 1
        assert sorted(Reservation.objects.values_list("ready_reason", flat=True)) == [
            "PreAllocated",
            "ReservationActive",
        ]
        assert_ledger_holds()

    def test_undersized_slot_knows_what_the_vm_really_takes(self) -> None:
        host = make_host("h1", memory_gib=4, vcpus=4)
        make_vm(host=host, memory_gib=4, vcpus=4, project_id="alpha")
        due(gib=2)
        repair()
        slot = Reservation.objects.get()
        assert (slot.memory_bytes, slot.blocked_memory_bytes) == (2 * GIB, 0)
        assert slot.allocations.get().memory_bytes == 4 * GIB

    def test_api_covers_running_vms_too(self) -> None:
        host = make_host("h1", memory_gib=4, vcpus=4)
        make_vm(host=host, memory_gib=4, vcpus=4, project_id="alpha")
        assert not decide_ram("alpha", change(A, 4)).rejection_reason
        assert Reservation.objects.get().ready_reason == "PreAllocated"
        assert_ledger_holds()


class TestCores:
    """Spec commitments, 8.5, where the answer may be no."""

    def test_rejected_cores_are_not_asked_again(self, cloud: Host) -> None:
        make_group_capacity("hana_1", total_vcpus=16)
        due(resource_type=ResourceType.CORES, requested_amount=65, allow_rejection=True)
        assert repair() == RepairReport(rejected=1)
        row = Commitment.objects.get()
        assert row.ready_message.startswith("insufficient CPU cores: ")
        assert row.next_reconcile_at == row.end_time
        assert slots() == []

    def test_more_cores_than_there_are_leave_those_accepted(self, cloud: Host) -> None:
        row = due(resource_type=ResourceType.CORES, requested_amount=8, allow_rejection=True)
        repair()
        change_spec(row, requested_amount=6500)
        repair()
        row.refresh_from_db()
        assert (conditions(), row.accepted_amount) == ([(False, "Rejected")], 8)


class TestTimers:
    """Spec commitments, 8.7: starts and ends are timers."""

    def test_start_and_end_are_looked_at(self, cloud: Host) -> None:
        start = NOW + timedelta(hours=1)
        row = due(state="guaranteed", start_time=start)
        repair()
        row.refresh_from_db()
        assert (row.ready_reason, row.next_reconcile_at) == ("Accepted", start)
        repair(start)
        row.refresh_from_db()
        assert row.next_reconcile_at == row.end_time
        assert CommitmentEvent.objects.count() == 1
        assert row.end_time is not None
        repair(row.end_time)
        row.refresh_from_db()
        assert (row.ready_reason, row.next_reconcile_at) == ("expired", None)

    def test_planned_commitment_past_its_end_is_over(self, cloud: Host) -> None:
        due(state="planned", end_time=NOW - timedelta(seconds=1))
        repair()
        row = Commitment.objects.get()
        assert (row.ready_reason, row.next_reconcile_at) == ("expired", None)

    def test_rejected_commitment_gives_up_its_acceptance_at_its_end(self, cloud: Host) -> None:
        row = due(allow_rejection=True)
        repair()
        ended = row.end_time
        assert ended is not None
        change_spec(row, requested_amount=400 * GIB, end_time=ended + timedelta(days=9))
        repair()
        assert Commitment.objects.get().next_reconcile_at == ended
        assert repair(ended) == RepairReport(rejected=1)
        assert slots() == []


class TestRows:
    def test_summary_tells_the_covered_vms(self, cloud: Host) -> None:
        row = due(end_time=None)
        for _ in range(2):
            make_assignment(row, make_vm(host=cloud, memory_gib=1))
        repair()
        row.refresh_from_db()
        assert row.status_summary == "Accepted · 2 VMs · no expiry"

    def test_retries_that_change_nothing_make_no_events(self, group: FlavorGroup) -> None:
        make_host("h1", memory_gib=2, vcpus=64)
        due()
        repair()
        first = CommitmentEvent.objects.count()
        for minutes in (1, 3, 7):
            make_all_due(NOW + timedelta(minutes=minutes))
            repair(NOW + timedelta(minutes=minutes))
        assert CommitmentEvent.objects.count() == first == 1

    def test_slot_that_is_made_again_makes_an_event(self, cloud: Host) -> None:
        due()
        repair()
        Reservation.objects.all().delete()
        make_all_due()
        repair()
        assert CommitmentEvent.objects.count() == 2

    def test_one_bad_row_harms_itself_alone(
        self, cloud: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from commitments.services import repair as module  # noqa: PLC0415 - patched below

        due(A)
        due(B)
        real = module.wanted_as_stored

        def failing(row: Commitment) -> Any:
            if row.commitment_uuid == A:
                raise RuntimeError("a bug")
            return real(row)

        monkeypatch.setattr(module, "wanted_as_stored", failing)
        assert repair() == RepairReport(accepted=1, invalid=1)
        bad = Commitment.objects.get(commitment_uuid=A)
        assert bad.next_reconcile_at == NOW + timedelta(seconds=1800)

    def test_end_of_the_time_limit_is_nobodys_fault(
        self, cloud: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        due(A)

        def out_of_time(_: Commitment) -> Any:
            raise SoftTimeLimitExceeded

        monkeypatch.setattr("commitments.services.repair.wanted_as_stored", out_of_time)
        with pytest.raises(SoftTimeLimitExceeded):
            repair()
        assert Commitment.objects.get().next_reconcile_at == NOW

    def test_second_run_writes_nothing(self, cloud: Host) -> None:
        due(A)
        due(B, allow_rejection=True, gib=400)
        repair()
        with CaptureQueriesContext(connection) as captured:
            assert repair().handled == 0
        written = [q["sql"] for q in captured if q["sql"].startswith(("UPDATE", "INSERT", "DEL"))]
        assert written == []


def test_unplaced_slot_says_that_no_host_is_known(group: FlavorGroup) -> None:
    due()
    repair()
    assert Reservation.objects.get().ready_reason == "NoHostsAvailable"
    assert not Instance.objects.exists()


def test_unplaced_slot_of_an_unknown_group_says_so(group: FlavorGroup) -> None:
    due()
    repair()
    FlavorGroup.objects.all().delete()
    make_all_due()
    assert repair() == RepairReport(reserving=1)
    slot = Reservation.objects.get()
    assert (slot.is_ready, slot.ready_reason) == (False, "FlavorNotFound")
    assert slot.ready_message == "flavor group not found: hana_1"


class TestSlotWithoutFlavorName:
    """Spec commitments, 9.2 step 3: nobody is asked where to put it."""

    def nameless(self, host: Host | None) -> Reservation:
        row = make_commitment(A, amount_gib=FLAVOR_GIB, project_id="alpha", next_reconcile_at=NOW)
        return make_slot(row, host, memory_gib=FLAVOR_GIB, vcpus=4, flavor_name="")

    @pytest.mark.usefixtures("cloud")
    def test_it_says_so_and_is_never_placed(self) -> None:
        slot = self.nameless(None)
        Commitment.objects.update(generation=3)
        for minutes in (0, 1, 3, 60):
            make_all_due(NOW + timedelta(minutes=minutes))
            assert repair(NOW + timedelta(minutes=minutes)) == RepairReport(reserving=1)
        slot.refresh_from_db()
        assert (slot.is_ready, slot.ready_reason) == (False, "MissingResourceName")
        assert (slot.target_host, slot.blocked_memory_bytes) == (None, 0)
        assert slot.observed_parent_generation == slot.parent_generation == 3
        assert slot.resource_name == ""
        message = Commitment.objects.get().ready_message
        assert message == "insufficient capacity: 0/1 reservation slots could be placed"
        assert_ledger_holds()

    @pytest.mark.usefixtures("cloud")
    def test_deleted_it_is_made_anew(self) -> None:
        self.nameless(None).delete()
        assert repair() == RepairReport(accepted=1)
        slot = Reservation.objects.get()
        assert (slot.resource_name, slot.is_ready) == ("small", True)

    def test_it_keeps_a_host_that_it_has(self, cloud: Host) -> None:
        slot = self.nameless(cloud)
        assert repair() == RepairReport(accepted=1)
        slot.refresh_from_db()
        assert (slot.target_host, slot.is_ready) == (cloud, True)
