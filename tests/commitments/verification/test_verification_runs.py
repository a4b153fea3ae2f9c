"""Runs that look at slots: nudges, lists they do not believe, one at a time (commitments, 9)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connections, transaction
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.locks import LockSpace, take_lock
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from commitments.models import Commitment, CommitmentEvent, InstanceAssignment, SlotCheck
from commitments.selectors import slot_suspects
from commitments.services import verification
from commitments.services.usage import reconcile_all_usage
from commitments.services.verification import VerificationReport
from commitments.services.vm_list import discount_gone_vms
from commitments.tasks import verify_slots as verify_slots_task
from hosts.models import Host, Instance
from journal.actors import task_actor
from journal.models import AuditEntry, Outbox
from scheduling.resources import GIB
from tests.commitments.slot_worlds import (
    PROJECT,
    VM_GIB,
    accepted_slot,
    commitment_of,
    delete,
    move,
    put_into,
    verify,
    vm_on,
)
from tests.factories import make_commitment, make_host, make_slot
from tests.ledger import assert_rooms_add_up, fingerprint
from tests.scraping import scrape

from .world import follows_changes

pytestmark = pytest.mark.django_db


class TestNudges:
    @follows_changes
    def test_commitment_whose_slot_is_gone_becomes_due(self, host_1: Host) -> None:
        slot = accepted_slot(host_1)
        row = commitment_of(slot)
        verify()
        slot.delete()
        rebuild_host_capacity()
        assert verify(is_full=False).nudged == 1
        row.refresh_from_db()
        assert row.next_reconcile_at is not None

    def test_whole_commitment_stays_as_it_is(self, host_1: Host) -> None:
        accepted_slot(host_1)
        assert verify().nudged == 0

    def test_commitment_that_waits_for_long_is_left_to_its_timer(self, host_1: Host) -> None:
        slot = accepted_slot(host_1)
        later = timezone.now() + timedelta(hours=1)
        Commitment.objects.update(
            ready_status=False,
            ready_reason="Reserving",
            ready_changed_at=timezone.now() - timedelta(hours=2),
            next_reconcile_at=later,
        )
        Reservation.objects.filter(pk=slot.pk).update(target_host=None)
        verify()
        assert Commitment.objects.get().next_reconcile_at == later


class TestGuard:
    """A VM list that lost too much takes nothing out of slots."""

    @pytest.fixture
    def vms(self, host_1: Host) -> list[Instance]:
        host = make_host("big", memory_gib=9600, vcpus=800)
        vms = [vm_on(host, openstack_id=f"vm-{number}") for number in range(10)]
        for vm in vms:
            slot = accepted_slot(host, gib=VM_GIB, vcpus=20)
            put_into(slot, vm.openstack_id, minutes=60, is_confirmed=True)
        verify()
        return vms

    def test_half_a_list_releases_nothing_and_says_why(self, vms: list[Instance]) -> None:
        delete(*vms[:5])
        report = verify(60)
        assert report.events == {"missing": 5}
        assert "shrank from 10 to 5 VMs" in report.refused["az-a"]
        assert verify(120).events == {}
        assert ReservationAllocation.objects.count() == 10
        check = SlotCheck.objects.get()
        assert (check.is_refused, check.listed_vms) == (True, 10)
        assert "until the list is back or an operator accepts it" in check.message
        held = HostCapacity.objects.get(host__name="big").committed_memory_bytes
        assert held == 5 * VM_GIB * GIB
        assert_rooms_add_up()

    def test_what_a_live_cloud_takes_from_the_list_during_a_run_is_not_missed(
        self, vms: list[Instance], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run counts the list when it begins, and remembers it when it ends."""
        counted = slot_suspects.count_listed_vms

        def count_listed_vms(zone: str) -> int:
            found = counted(zone)
            host_id = vms[0].host_id
            assert host_id is not None
            discount_gone_vms({(host_id, "ACTIVE"): 6})
            delete(*vms[:6])
            return found

        monkeypatch.setattr(verification, "count_listed_vms", count_listed_vms)
        assert verify(60).refused == {}
        monkeypatch.undo()
        assert SlotCheck.objects.get().listed_vms == 4
        assert verify(120).refused == {}

    def test_list_that_is_back_ends_the_refusal(self, vms: list[Instance]) -> None:
        delete(*vms[:5])
        verify(60)
        for vm in vms[:5]:
            vm_on(Host.objects.get(name="big"), openstack_id=vm.openstack_id)
        assert verify(120).events == {"confirmed": 5}
        assert not SlotCheck.objects.get().is_refused

    def test_operator_accepts_the_shorter_list(self, vms: list[Instance]) -> None:
        delete(*vms[:5])
        verify(60)
        assert verify(120, believes_list=True).events == {"gone": 5}
        check = SlotCheck.objects.get()
        assert (check.is_refused, check.listed_vms) == (False, 5)

    def test_few_vms_may_always_go(self, vms: list[Instance]) -> None:
        delete(*vms[:4])
        assert verify(60).events == {"gone": 4}

    @pytest.fixture
    def small_zone(self, vms: list[Instance]) -> list[Instance]:
        """Three VMs in slots of another zone, fewer than may always go."""
        host = make_host("small", zone="az-b", memory_gib=960, vcpus=80)
        few = [vm_on(host, openstack_id=f"few-{number}") for number in range(3)]
        for vm in few:
            row = make_commitment(amount_gib=VM_GIB, project_id=PROJECT, zone="az-b")
            slot = make_slot(row, host, memory_gib=VM_GIB, vcpus=20, index=0)
            put_into(slot, vm.openstack_id, minutes=60, is_confirmed=True)
        verify()
        return few

    def test_small_zone_that_is_listed_empty_is_not_believed(
        self, small_zone: list[Instance]
    ) -> None:
        delete(*small_zone)
        report = verify(60)
        assert report.events == {"missing": 3}
        assert set(report.refused) == {"az-b"}
        assert "shrank from 3 to 0 VMs" in report.refused["az-b"]
        assert verify(120).events == {}
        assert ReservationAllocation.objects.count() == 13
        check = SlotCheck.objects.get(zone="az-b")
        assert (check.is_refused, check.listed_vms) == (True, 3)
        shown = scrape()
        assert 'vm_list_refused{availability_zone="az-b"} 1.0' in shown
        assert 'vm_list_refused{availability_zone="az-a"} 0.0' in shown
        assert_rooms_add_up()

    def test_small_zone_is_believed_when_an_operator_says_so(
        self, small_zone: list[Instance]
    ) -> None:
        delete(*small_zone)
        verify(60)
        assert verify(120, zones=["az-b"], believes_list=True).events == {"gone": 3}
        assert not SlotCheck.objects.get(zone="az-b").is_refused
        assert verify(180).refused == {}

    def test_vms_of_a_small_zone_that_go_one_by_one_are_believed(
        self, small_zone: list[Instance]
    ) -> None:
        for number, vm in enumerate(small_zone, start=1):
            delete(vm)
            report = verify(60 * number)
            assert (report.events, report.refused) == ({"gone": 1}, {})

    def test_usage_of_a_small_zone_stays_while_its_list_is_empty(
        self, small_zone: list[Instance]
    ) -> None:
        Commitment.objects.update(start_time=None)
        for row in Commitment.objects.all():
            row.accepted_spec = {**(row.accepted_spec or {}), "startTime": None}
            row.save()
        Instance.objects.update(flavor_name="half")
        actor = task_actor("test")
        reconcile_all_usage(actor=actor, request_id="r")
        before = InstanceAssignment.objects.filter(commitment__zone="az-b").count()
        assert before == 3
        delete(*small_zone)
        assert reconcile_all_usage(actor=actor, request_id="r") == 0
        assert InstanceAssignment.objects.filter(commitment__zone="az-b").count() == before


class TestRuns:
    @follows_changes
    def test_a_run_over_what_is_settled_writes_nothing(self, host_1: Host, host_new: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        vm_on(host_new, nova_created_at=timezone.now(), flavor_name="half")
        accepted_slot(host_new)
        move(vm, host_new)
        verify()
        assert verify().events == {"adopted": 1}  # out of its slot first, then into the other
        before = fingerprint()
        assert verify() == VerificationReport()
        assert verify(is_full=False) == VerificationReport()
        assert fingerprint() == before

    def test_changes_are_told_to_the_commitment_and_the_world(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30)
        verify()
        event = CommitmentEvent.objects.get()
        assert event.commitment_uuid == commitment_of(slot).commitment_uuid
        assert event.reason == f"slot 0: VM {vm.openstack_id} was seen on host-1"
        entry = AuditEntry.objects.get(action="slot_vms_changed")
        assert entry.object_id == str(slot.uuid)
        assert Outbox.objects.get(object_id=entry.object_id).topic == "reservations"

    @follows_changes
    def test_only_what_changed_is_looked_at(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30, is_confirmed=True)
        verify()
        first = SlotCheck.objects.get()
        assert verify(is_full=False) == VerificationReport()
        delete(vm)
        assert verify(is_full=False).events == {"gone": 1}
        assert SlotCheck.objects.get().snapshot != first.snapshot

    def test_task_verifies(self, host_1: Host) -> None:
        slot, vm = accepted_slot(host_1), vm_on(host_1)
        put_into(slot, vm.openstack_id, minutes=30)
        assert verify_slots_task() == {"confirmed": 1, "nudged": 0, "refused": []}

    def test_many_slots_are_seen_in_chunks(
        self, host_1: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("commitments.services.verification.CHUNK_SLOTS", 2)
        row = make_commitment(amount_gib=20, project_id=PROJECT)
        for number in range(5):
            slot = make_slot(row, host_1, index=number, memory_gib=4)
            vm = vm_on(host_1, memory_gib=4, vcpus=1)
            put_into(slot, vm.openstack_id, minutes=30)
        assert verify().events == {"confirmed": 5}
        assert_rooms_add_up()


@pytest.mark.django_db(transaction=True)
def test_zone_that_another_run_verifies_is_skipped(host_1: Host) -> None:
    slot, vm = accepted_slot(host_1), vm_on(host_1)
    put_into(slot, vm.openstack_id, minutes=30)
    other = connections.create_connection("default")
    try:
        connections["default"], mine = other, connections["default"]
        with transaction.atomic():
            take_lock(LockSpace.TASK, ["commitments.verify_slots:az-a"])
            connections["default"] = mine
            assert verify().skipped == ("az-a",)
            connections["default"] = other
    finally:
        connections["default"] = mine
        other.close()
    assert verify().events == {"confirmed": 1}


def test_usage_keeps_its_assignments_while_a_list_is_not_believed(host_1: Host) -> None:
    host = make_host("big", memory_gib=9600, vcpus=800)
    vms = [vm_on(host, flavor_name="half") for _ in range(10)]
    make_commitment(amount_gib=10 * VM_GIB, project_id=PROJECT)
    actor = task_actor("test")
    verify()
    assert reconcile_all_usage(actor=actor, request_id="r") == 1
    delete(*vms[:5])
    assert reconcile_all_usage(actor=actor, request_id="r") == 0
    assert InstanceAssignment.objects.count() == 10
    verify(believes_list=True)
    assert reconcile_all_usage(actor=actor, request_id="r") == 1
    assert InstanceAssignment.objects.count() == 5
