"""VMs seen in slots, followed, missing and gone (spec commitments, 9)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from commitments.models import CommitmentEvent, SlotCheck
from commitments.services.verification import VerificationReport
from hosts.models import Host, HostStatus, Instance
from scheduling.resources import GIB
from tests.commitments.slot_worlds import (
    SLOT_GIB,
    VM_GIB,
    accepted_slot,
    commitment_of,
    delete,
    in_slot,
    move,
    put_into,
    verify,
    vm_on,
)
from tests.factories import make_host, make_reservation
from tests.ledger import assert_rooms_add_up

from .world import CONFIRMED, EXPECTED, follows_changes, use_slots

pytestmark = pytest.mark.django_db


class TestTable:
    """The table of 9.3; ages against the grace period of 15 minutes."""

    @pytest.mark.parametrize("status", ["ACTIVE", "SHUTOFF"], ids=["active", "inactive"])
    def test_30_min_on_host_1(self, host_1: Host, status: str) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1, status=status)
        put_into(slot, vm.openstack_id, minutes=30)
        assert verify().events == {"confirmed": 1}
        assert in_slot(slot) == [(vm.openstack_id, CONFIRMED, "host-1")]
        assert_rooms_add_up()
        slot.refresh_from_db()
        assert slot.blocked_memory_bytes == (SLOT_GIB - VM_GIB) * GIB

    @follows_changes
    def test_vm_that_was_there_before_it_was_booked(self, host_1: Host) -> None:
        vm = vm_on(host_1)
        slot = accepted_slot(host_1)
        verify()
        put_into(slot, vm.openstack_id, minutes=0)
        assert verify(is_full=False).events == {"confirmed": 1}

    def test_30_min_nowhere(self, host_1: Host) -> None:
        slot = accepted_slot(host_1)
        put_into(slot, "nowhere", minutes=30)
        assert verify().events == {"never_arrived": 1}
        assert in_slot(slot) == []
        assert_rooms_add_up()

    def test_5_min_nowhere(self, host_1: Host) -> None:
        slot = accepted_slot(host_1)
        put_into(slot, "nowhere", minutes=5)
        assert verify() == VerificationReport()
        assert in_slot(slot) == [("nowhere", EXPECTED, None)]

    def test_5_min_new_and_30_min_old_on_host_1(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1, openstack_id="old")
        put_into(slot, vm.openstack_id, minutes=30)
        put_into(slot, "new", minutes=5)
        verify()
        assert in_slot(slot) == [("new", EXPECTED, None), ("old", CONFIRMED, "host-1")]

    def test_confirmed_and_nowhere_is_removed_at_once(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=2, is_confirmed=True)
        delete(vm)
        assert verify().events == {"gone": 1}
        assert in_slot(slot) == []
        slot.refresh_from_db()
        assert slot.blocked_memory_bytes == SLOT_GIB * GIB
        assert_rooms_add_up()

    def test_only_vm_moved_to_a_host_with_room(self, host_1: Host, host_new: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        move(vm, host_new)
        assert verify().events == {"followed": 1}
        slot.refresh_from_db()
        assert (slot.target_host, slot.confirmed_host) == (host_new, host_new)
        assert in_slot(slot) == [(vm.openstack_id, CONFIRMED, "host-new")]
        assert HostCapacity.objects.get(host=host_1).committed_memory_bytes == 0
        assert_rooms_add_up()
        assert verify() == VerificationReport()

    def test_slot_follows_wherever_its_vm_is_already(self, host_1: Host, host_new: Host) -> None:
        """No filter is asked (spec 9.3): who moved the VM decided that it may be there."""
        Host.objects.filter(pk=host_new.pk).update(
            allowed_projects=["other"], status=HostStatus.DISABLED
        )
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        move(vm, host_new)
        assert verify().events == {"followed": 1}
        assert_rooms_add_up()

    def test_only_vm_moved_to_a_host_that_is_blocked(self, host_1: Host) -> None:
        host_new = make_host("host-new", memory_gib=VM_GIB + SLOT_GIB, vcpus=80)
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        accepted_slot(host_new)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        move(vm, host_new)
        assert verify().events == {"moved_away": 1}
        slot.refresh_from_db()
        assert (slot.target_host, in_slot(slot)) == (host_1, [])
        assert_rooms_add_up()

    def test_two_confirmed_one_moved(self, host_1: Host, host_new: Host) -> None:
        slot = accepted_slot(host_1)
        stays, moves = vm_on(host_1, openstack_id="a"), vm_on(host_1, openstack_id="b")
        for vm in (stays, moves):
            put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        move(moves, host_new)
        verify()
        slot.refresh_from_db()
        assert slot.target_host == host_1
        assert in_slot(slot) == [("a", CONFIRMED, "host-1")]
        assert_rooms_add_up()

    def test_confirmed_on_no_host(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        move(vm, None)
        verify()
        assert in_slot(slot) == []

    def test_slot_does_not_follow_into_another_zone(self, host_1: Host) -> None:
        elsewhere = make_host("far", zone="az-b", memory_gib=960, vcpus=80)
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        move(vm, elsewhere)
        assert verify().events == {"moved_away": 1}
        slot.refresh_from_db()
        assert slot.target_host == host_1


class TestWaiting:
    @follows_changes
    def test_missing_vm_gives_its_room_back_to_the_slot_while_it_is_waited_for(
        self, settings: Any, host_1: Host
    ) -> None:
        use_slots(settings, migration_settle_seconds=120)
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        delete(vm)
        assert verify().events == {"missing": 1}
        slot.refresh_from_db()
        assert slot.blocked_memory_bytes == SLOT_GIB * GIB
        assert in_slot(slot) == [(vm.openstack_id, EXPECTED, None)]
        assert verify(1) == VerificationReport()
        assert verify(3, is_full=False).events == {"gone": 1}
        assert_rooms_add_up()

    def test_vm_that_comes_back_is_seen_again(self, settings: Any, host_1: Host) -> None:
        use_slots(settings, migration_settle_seconds=120)
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        move(vm, None)
        verify()
        move(vm, host_1)
        assert verify(60).events == {"confirmed": 1}
        row = ReservationAllocation.objects.get()
        assert (row.state, row.missing_since) == (CONFIRMED, None)

    def test_vm_that_nova_works_on_is_not_missed(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        Instance.objects.filter(pk=vm.pk).update(task_state="migrating")
        move(vm, None)
        assert verify() == VerificationReport()

    def test_vm_in_flight_is_waited_for_past_the_grace_period(self, host_1: Host) -> None:
        slot = accepted_slot(host_1)
        put_into(slot, "flying", minutes=30)
        make_reservation(
            host_1,
            kind="in_flight",
            vm_uuid="flying",
            end_time=timezone.now() + timedelta(hours=1),
            placement_id="00000000-0000-4000-8000-000000000001",
        )
        assert verify() == VerificationReport()

    def test_resized_vm_counts_with_its_new_size(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        Instance.objects.filter(pk=vm.pk).update(memory_bytes=SLOT_GIB * GIB, vcpus=40)
        rebuild_host_capacity()
        assert verify().events == {"confirmed": 1}
        slot.refresh_from_db()
        assert (slot.blocked_memory_bytes, slot.blocked_vcpus) == (0, 0)
        assert not CommitmentEvent.objects.exists()
        assert_rooms_add_up()


class TestCandidates:
    """Spec commitments, 9.4."""

    def test_vm_on_three_slots_stays_in_the_one_where_it_is_seen(self, host_1: Host) -> None:
        others = [make_host(f"other-{n}", memory_gib=960, vcpus=80) for n in (1, 2)]
        slots = [accepted_slot(host) for host in (*others, host_1)]
        vm = vm_on(host_1)
        for slot in slots:
            put_into(slot, vm.openstack_id, minutes=1)
        verify()
        assert [len(in_slot(slot)) for slot in slots] == [0, 0, 1]
        assert_rooms_add_up()

    def test_slots_of_a_vm_that_was_seen_before_are_left_alone(
        self, host_1: Host, host_new: Host
    ) -> None:
        seen, candidate = accepted_slot(host_1), accepted_slot(host_new)
        vm = vm_on(host_1)
        put_into(seen, vm.openstack_id, minutes=30, is_confirmed=True)
        put_into(candidate, vm.openstack_id, minutes=1)
        assert verify() == VerificationReport()
        assert len(in_slot(candidate)) == 1

    def test_two_slots_of_one_host_hold_a_vm_once(self, host_1: Host) -> None:
        slots = [accepted_slot(host_1, gib=240, vcpus=20) for _ in range(2)]
        vm = vm_on(host_1)
        for slot in slots:
            put_into(slot, vm.openstack_id, minutes=1)
        verify()
        assert [len(in_slot(slot)) for slot in slots] == [1, 0]

    def test_slot_does_not_follow_where_another_waits(self, host_1: Host, host_new: Host) -> None:
        old, new = accepted_slot(host_1), accepted_slot(host_new)
        vm = vm_on(host_1)
        put_into(old, vm.openstack_id, minutes=30, is_confirmed=True)
        put_into(new, vm.openstack_id, minutes=1)
        move(vm, host_new)
        verify()
        old.refresh_from_db()
        assert (old.target_host, in_slot(old)) == (host_1, [])
        assert in_slot(new) == [(vm.openstack_id, CONFIRMED, "host-new")]
        assert_rooms_add_up()


class TestArrivals:
    """VMs that nobody booked, on the host of a slot of their project and group."""

    def later(self) -> dict[str, Any]:
        return {"nova_created_at": timezone.now() + timedelta(seconds=1), "flavor_name": "half"}

    def test_vm_that_came_after_the_slot_enters_it(self, host_1: Host) -> None:
        slot = accepted_slot(host_1)
        vm = vm_on(host_1, **self.later())
        assert verify().events == {"adopted": 1}
        assert in_slot(slot) == [(vm.openstack_id, CONFIRMED, "host-1")]
        assert_rooms_add_up()
        assert verify() == VerificationReport()

    def test_vm_goes_where_it_fits_tightest(self, host_1: Host) -> None:
        large, small = accepted_slot(host_1), accepted_slot(host_1, gib=VM_GIB, vcpus=20)
        vm_on(host_1, **self.later())
        verify()
        assert (len(in_slot(large)), len(in_slot(small))) == (0, 1)

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"nova_created_at": timezone.now() - timedelta(days=9)}, id="older"),
            pytest.param({"project_id": "beta"}, id="other project"),
            pytest.param({"flavor_name": "unknown"}, id="other group"),
            pytest.param({"status": "DELETED"}, id="deleted"),
        ],
    )
    def test_vm_does_not_enter(self, host_1: Host, fields: dict[str, Any]) -> None:
        accepted_slot(host_1)
        vm_on(host_1, **{**self.later(), **fields})
        assert verify() == VerificationReport()

    @follows_changes
    @pytest.mark.sql("hosts_instance_keep_arrival")
    def test_vm_that_moved_to_the_host_after_the_slot_enters_whenever_it_was_created(
        self, host_1: Host, host_new: Host
    ) -> None:
        slot = accepted_slot(host_1)
        vm = vm_on(host_new, flavor_name="half")
        assert verify() == VerificationReport()
        move(vm, host_1)
        assert verify(is_full=False).events == {"adopted": 1}
        assert in_slot(slot) == [(vm.openstack_id, CONFIRMED, "host-1")]
        assert_rooms_add_up()

    @pytest.mark.sql("hosts_instance_keep_arrival")
    def test_vm_that_was_there_before_does_not_enter_though_it_is_written_again(
        self, host_1: Host
    ) -> None:
        vm = vm_on(host_1, flavor_name="half")
        accepted_slot(host_1)
        vm.status = "SHUTOFF"
        vm.save()
        move(vm, host_1)
        assert verify() == VerificationReport()
        vm.refresh_from_db()
        assert vm.arrived_at == vm.nova_created_at

    def test_full_slot_takes_no_other(self, host_1: Host) -> None:
        slot = accepted_slot(host_1, gib=VM_GIB, vcpus=20)
        first = vm_on(host_1, **self.later())
        verify()
        vm_on(host_1, **self.later())
        assert verify() == VerificationReport()
        assert [uuid for uuid, _, _ in in_slot(slot)] == [first.openstack_id]

    @follows_changes
    def test_freed_slot_takes_one_that_waited(self, host_1: Host) -> None:
        slot = accepted_slot(host_1, gib=VM_GIB, vcpus=20)
        first, second = vm_on(host_1, **self.later()), None
        verify()
        second = vm_on(host_1, **self.later())
        verify(is_full=False)
        delete(first)
        verify(is_full=False)
        verify(is_full=False)
        assert [uuid for uuid, _, _ in in_slot(slot)] == [second.openstack_id]

    def test_nobody_enters_when_switched_off(self, host_1: Host, settings: Any) -> None:
        use_slots(settings, adopt_arrivals=False)
        accepted_slot(host_1)
        vm_on(host_1, **self.later())
        assert verify() == VerificationReport()


class TestHosts:
    @follows_changes
    def test_slot_whose_host_was_taken_away_is_cleared_and_placed_again(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        Reservation.objects.filter(pk=slot.pk).update(target_host=None)
        assert verify(is_full=False).events == {"slots_revoked": 1}
        slot.refresh_from_db()
        assert (slot.confirmed_host, slot.ready_reason) == (None, "PlacementRevoked")
        assert in_slot(slot) == []
        assert HostCapacity.objects.get(host=host_1).committed_memory_bytes == 0
        due_at = commitment_of(slot).next_reconcile_at
        assert due_at is not None
        assert due_at <= timezone.now()

    def test_slot_that_was_sent_elsewhere_is_there(self, host_1: Host, host_new: Host) -> None:
        slot = accepted_slot(host_1)
        Reservation.objects.filter(pk=slot.pk).update(target_host=host_new)
        rebuild_host_capacity()
        assert verify().events == {"slots_settled": 1}
        slot.refresh_from_db()
        assert (slot.confirmed_host, slot.ready_reason) == (host_new, "ReservationActive")
        assert HostCapacity.objects.get(host=host_1).committed_memory_bytes == 0
        assert_rooms_add_up()

    @pytest.mark.parametrize(
        "fields", [{"state": "down"}, {"maintenance": "termination"}], ids=["down", "leaving"]
    )
    def test_empty_slot_leaves_a_lost_host(
        self, host_1: Host, host_new: Host, fields: dict[str, str]
    ) -> None:
        slot = accepted_slot(host_1)
        Host.objects.filter(pk=host_1.pk).update(**fields)
        assert verify(9) == VerificationReport()
        assert verify(11).events == {"slots_moved": 1}
        slot.refresh_from_db()
        assert (slot.target_host, slot.is_ready) == (host_new, True)
        assert_rooms_add_up()
        event = CommitmentEvent.objects.get()
        assert event.action == "slot_left_lost_host"
        assert event.reason == "slot 0: moved to host-new: host host-1 is lost"

    def test_the_grace_period_runs_from_when_the_host_went_down(
        self, host_1: Host, host_new: Host
    ) -> None:
        accepted_slot(host_1)
        long_ago = timezone.now() - timedelta(days=30)
        Host.objects.filter(pk=host_1.pk).update(updated_at=long_ago)
        Host.objects.filter(pk=host_1.pk).update(state="down")
        assert verify(9) == VerificationReport()
        Host.objects.filter(pk=host_1.pk).update(
            disabled_reason="somebody looked", updated_at=timezone.now() + timedelta(minutes=11)
        )
        assert verify(11).events == {"slots_moved": 1}

    def test_slot_stays_when_there_is_no_other_place(self, host_1: Host) -> None:
        slot = accepted_slot(host_1)
        Host.objects.update(state="down")
        assert verify(60) == VerificationReport()
        slot.refresh_from_db()
        assert slot.target_host == host_1

    def test_slot_with_vms_stays_with_them(self, host_1: Host, host_new: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        Host.objects.filter(pk=host_1.pk).update(state="down")
        assert verify(60) == VerificationReport()

    def test_many_lost_hosts_at_once_are_not_believed(self, host_1: Host, host_new: Host) -> None:
        slot = accepted_slot(host_1)
        for number in range(8):
            make_host(f"more-{number}", memory_gib=960, vcpus=80)
        Host.objects.exclude(pk=host_new.pk).exclude(name__in=["more-1", "more-2"]).update(
            state="down"
        )
        refusal = (
            "7 of 10 hosts are down or leaving at once: no slot leaves its host for that until "
            "they are back"
        )
        assert verify(60) == VerificationReport(refused={"az-a": refusal})
        slot.refresh_from_db()
        assert slot.target_host == host_1
        assert SlotCheck.objects.get(zone="az-a").host_refusal == refusal
        Host.objects.update(state="up")
        assert verify(61, is_full=False) == VerificationReport()
        assert SlotCheck.objects.get(zone="az-a").host_refusal == ""

    def test_many_lost_hosts_are_believed_when_an_operator_says_so(
        self, host_1: Host, host_new: Host
    ) -> None:
        slot = accepted_slot(host_1)
        for number in range(8):
            make_host(f"more-{number}", memory_gib=960, vcpus=80)
        Host.objects.exclude(pk=host_new.pk).update(state="down")
        assert verify(60, believes_hosts=True).events == {"slots_moved": 1}
        slot.refresh_from_db()
        assert slot.target_host == host_new

    def test_a_list_of_hosts_cut_short_takes_no_slot_off_its_host(self, host_1: Host) -> None:
        slots = [
            accepted_slot(make_host(f"cut-{number}", memory_gib=960, vcpus=80))
            for number in range(6)
        ]
        make_host("stays", memory_gib=9600, vcpus=800)
        Host.objects.filter(name__startswith="cut-").update(zone="")
        rebuild_host_capacity()
        (refusal,) = verify().refused.values()
        assert refusal.startswith("6 of 8 hosts are not in the zone any more")
        for slot in slots:
            before = slot.target_host_id
            slot.refresh_from_db()
            assert slot.target_host_id == before
        assert verify(believes_hosts=True).events == {"slots_moved": 6}

    def test_slot_on_a_host_of_another_zone_moves(self, host_1: Host, host_new: Host) -> None:
        slot = accepted_slot(host_1)
        Host.objects.filter(pk=host_1.pk).update(zone="az-b")
        rebuild_host_capacity()
        assert verify().events == {"slots_moved": 1}
        slot.refresh_from_db()
        assert slot.target_host == host_new

    def test_slot_on_a_host_of_another_zone_is_worth_nothing(self, host_1: Host) -> None:
        slot = accepted_slot(host_1)
        Host.objects.filter(pk=host_1.pk).update(zone="az-b")
        rebuild_host_capacity()
        verify()
        assert verify(zones=["az-a"]).events in ({}, {"slots_revoked": 1})
        slot.refresh_from_db()
        assert (slot.target_host, slot.ready_reason) == (None, "PlacementRevoked")
        assert_rooms_add_up()
