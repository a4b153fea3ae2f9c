"""Split, merge and renewal need no new room: slots are divided in place (ADR 0017)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.ledger.vms import Booking, expect_in_slots
from capacity.models import FlavorGroup, HostCapacity, Reservation, ReservationAllocation
from commitments.models import Commitment
from commitments.services.compaction import compact_zone
from hosts.models import Host, Instance
from journal.actors import task_actor
from scheduling.resources import GIB, ResourceVector
from tests.commitments.change_requests import NOW, RAM, change, decide, decide_ram
from tests.commitments.due_rows import make_all_due, repair
from tests.commitments.slot_worlds import move, verify
from tests.examples import few
from tests.factories import make_group, make_host, make_vm
from tests.ledger import assert_ledger_holds
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db
A, B, C, D = (f"{letter * 8}-0000-4000-8000-000000000001" for letter in "abcd")
ACTOR = task_actor("test")


def rooms() -> list[tuple[int, ...]]:
    """Return what each host has allocated and blocked."""
    return list(
        HostCapacity.objects.order_by("host__name").values_list(
            "allocated_memory_bytes",
            "allocated_vcpus",
            "committed_memory_bytes",
            "committed_vcpus",
        )
    )


def slots_of(uuid: str) -> list[tuple[int, int, int]]:
    rows = Reservation.objects.filter(commitment__commitment_uuid=uuid).order_by("slot_index")
    return [(row.memory_bytes >> 30, row.vcpus, row.blocked_memory_bytes >> 30) for row in rows]


def parts_of(vm_uuid: str) -> list[tuple[str, int, int]]:
    rows = ReservationAllocation.objects.filter(vm_uuid=vm_uuid).order_by(
        "reservation__commitment__commitment_uuid"
    )
    return [
        (row.reservation.commitment.commitment_uuid, row.memory_bytes >> 30, row.vcpus)  # type: ignore[union-attr]
        for row in rows.select_related("reservation__commitment")
    ]


@pytest.fixture
def host() -> Host:
    """A zone of one host that one slot of 8 units of 8 GiB fills."""
    make_group("hana_1", flavors=[("large", 64 * 1024, 16)], ram_unit_gib=8)
    return make_host("h1", zone="az-a", memory_gib=64, vcpus=16)


def split(*changes: object) -> None:
    outcome = decide_ram("alpha", change(A, 8, "superseded", old="confirmed"), *changes)  # type: ignore[arg-type]
    assert (outcome.status, outcome.rejection_reason) == (200, "")


def test_split_of_a_slot_with_a_vm_leaves_both_halves_whole(host: Host) -> None:
    assert decide_ram("alpha", change(A, 8)).rejection_reason == ""
    slot = Reservation.objects.get()
    vm = make_vm(host=host, slot=slot, memory_gib=64, vcpus=16, project_id="alpha")
    before = rooms()
    split(change(B, 3), change(C, 5))
    conditions = Commitment.objects.order_by("commitment_uuid").values_list(
        "ready_reason", flat=True
    )
    assert list(conditions) == ["superseded", "Accepted", "Accepted"]
    assert slots_of(B) == [(24, 6, 0)]
    assert slots_of(C) == [(40, 10, 0)]
    assert parts_of(vm.openstack_id) == [(B, 24, 6), (C, 40, 10)]
    assert rooms() == before
    assert rebuild_host_capacity() == 0
    assert verify().events == {}
    assert_ledger_holds()


def test_merge_after_a_split_is_one_commitment_with_the_same_vm(host: Host) -> None:
    decide_ram("alpha", change(A, 8))
    vm = make_vm(host=host, slot=Reservation.objects.get(), memory_gib=48, vcpus=12)
    before = rooms()
    split(change(B, 3), change(C, 5))
    outcome = decide_ram(
        "alpha",
        change(D, 8),
        change(B, 3, "superseded", old="confirmed"),
        change(C, 5, "superseded", old="confirmed"),
    )
    assert outcome.rejection_reason == ""
    assert slots_of(D) == [(24, 6, 0), (40, 10, 16)]
    assert parts_of(vm.openstack_id) == [(D, 24, 6), (D, 24, 6)]
    assert rooms() == before


@pytest.mark.parametrize("status", ["pending", "guaranteed", "confirmed"])
def test_renewal_in_one_changeset_keeps_slot_and_vm(host: Host, status: str) -> None:
    decide_ram("alpha", change(A, 8, status))
    vm = make_vm(host=host, slot=Reservation.objects.get(), memory_gib=64, vcpus=16)
    before = rooms()
    end = NOW + timedelta(days=900)
    outcome = decide_ram(
        "alpha", change(A, 8, "expired", old=status), change(B, 8, status, expires_at=end)
    )
    assert outcome.rejection_reason == ""
    assert Commitment.objects.get(commitment_uuid=B).ready_reason == "Accepted"
    assert parts_of(vm.openstack_id) == [(B, 64, 16)]
    assert rooms() == before


def test_split_of_a_pending_commitment_keeps_what_it_holds(host: Host) -> None:
    decide_ram("alpha", change(A, 8, "pending"))
    before = rooms()
    old = change(A, 8, "superseded", old="pending")
    decide_ram("alpha", old, change(B, 3, "pending"), change(C, 5, "pending"))
    assert [slots_of(B), slots_of(C)] == [[(24, 6, 24)], [(40, 10, 40)]]
    assert rooms() == before


def test_empty_slot_is_divided_between_projects(host: Host) -> None:
    decide_ram("alpha", change(A, 8))
    before = rooms()
    outcome = decide(
        {
            "alpha": {RAM: [change(A, 8, "superseded", old="confirmed"), change(B, 3)]},
            "beta": {RAM: [change(C, 5)]},
        }
    )
    assert outcome.rejection_reason == ""
    assert rooms() == before
    owners = Reservation.objects.order_by("memory_bytes").values_list("project_id", flat=True)
    assert list(owners) == ["alpha", "beta"]


def test_what_nobody_takes_is_given_back(host: Host) -> None:
    decide_ram("alpha", change(A, 8))
    split(change(B, 3))
    assert slots_of(B) == [(24, 6, 24)]
    assert HostCapacity.objects.get().committed_memory_bytes == 24 * GIB
    assert_ledger_holds()


def divided_with_vm(host: Host) -> Instance:
    decide_ram("alpha", change(A, 8))
    slot = Reservation.objects.get()
    vm = make_vm(
        host=host, slot=slot, memory_gib=64, vcpus=16, project_id="alpha", flavor_name="large"
    )
    split(change(B, 3), change(C, 5))
    return vm


class TestAfterwards:
    def test_looks_leave_divided_slots_alone(self, host: Host) -> None:
        decide_ram("alpha", change(A, 8))
        split(change(B, 3), change(C, 5))
        FlavorGroup.objects.update(resized_at=NOW)
        before = list(Reservation.objects.order_by("pk").values_list("pk", "target_host"))
        assert verify().nudged == 0
        make_all_due()
        assert repair().accepted == 2
        compact_zone("az-a", actor=ACTOR, request_id="compact", now=NOW)
        assert list(Reservation.objects.order_by("pk").values_list("pk", "target_host")) == before

    def test_vm_that_goes_gives_all_its_slots_their_room_back(self, host: Host) -> None:
        vm = divided_with_vm(host)
        Instance.objects.filter(pk=vm.pk).delete()
        rebuild_host_capacity()
        verify()
        assert verify(minutes=60).events == {"gone": 2}
        assert slots_of(B) + slots_of(C) == [(24, 6, 24), (40, 10, 40)]
        assert_ledger_holds()

    def test_vm_that_is_resized_is_shared_anew(self, host: Host) -> None:
        vm = divided_with_vm(host)
        Instance.objects.filter(pk=vm.pk).update(memory_bytes=32 * GIB, vcpus=8)
        rebuild_host_capacity()
        assert verify().events == {"confirmed": 1}
        assert parts_of(vm.openstack_id) == [(B, 24, 6), (C, 8, 2)]
        assert verify().events == {}
        assert_ledger_holds()

    def test_both_slots_follow_a_vm_that_moves(self, host: Host) -> None:
        vm = divided_with_vm(host)
        there = make_host("h2", zone="az-a", memory_gib=64, vcpus=16)
        move(vm, there)
        assert verify().events == {"followed": 2}
        assert parts_of(vm.openstack_id) == [(B, 24, 6), (C, 40, 10)]
        assert set(Reservation.objects.values_list("target_host__name", flat=True)) == {"h2"}
        assert verify().events == {}
        assert_ledger_holds()

    def test_slot_that_finds_no_room_stays_when_its_vm_moves(self, host: Host) -> None:
        vm = divided_with_vm(host)
        Instance.objects.filter(pk=vm.pk).update(memory_bytes=30 * GIB, vcpus=8)
        rebuild_host_capacity()
        verify()  # 24 GiB of it in the first slot, 6 in the second, which has 34 beside
        there = make_host("h2", zone="az-a", memory_gib=40, vcpus=16)
        move(vm, there)
        verify()
        assert_ledger_holds()
        verify()
        assert parts_of(vm.openstack_id) == [(B, 30, 8)]
        assert slots_of(C) == [(40, 10, 40)]

    def test_vm_that_nobody_booked_is_taken_into_both(self, host: Host) -> None:
        decide_ram("alpha", change(A, 8))
        split(change(B, 3), change(C, 5))
        vm = make_vm(host=host, memory_gib=64, vcpus=16, project_id="alpha", flavor_name="large")
        rebuild_host_capacity()
        assert verify().events == {"adopted": 1}
        assert parts_of(vm.openstack_id) == [(B, 24, 6), (C, 40, 10)]
        assert_ledger_holds()

    def test_vm_is_booked_into_both_and_seen_in_both(self, host: Host) -> None:
        decide_ram("alpha", change(A, 8))
        split(change(B, 3), change(C, 5))
        slots = list(Reservation.objects.order_by("-memory_bytes").values_list("pk", flat=True))
        size = ResourceVector(memory_bytes=64 * GIB, vcpus=16)
        assert expect_in_slots(slots, "vm-1", size, now=NOW) is Booking.BOOKED
        assert expect_in_slots(slots, "vm-1", size, now=NOW) is Booking.ALREADY
        assert expect_in_slots(slots, "vm-2", size, now=NOW) is Booking.FULL
        assert_ledger_holds()
        make_vm(openstack_id="vm-1", host=host, memory_gib=64, vcpus=16, project_id="alpha")
        rebuild_host_capacity()
        assert verify().events == {"confirmed": 1}
        assert parts_of("vm-1") == [(B, 24, 6), (C, 40, 10)]
        assert_ledger_holds()


class TestPartsWithoutVCPU:
    """A slot of one vCPU was cut: one part has it, the other none."""

    @pytest.fixture(autouse=True)
    def _cut(self) -> None:
        make_group("hana_1", flavors=[("small", 4096, 1)], ram_unit_gib=1)
        host = make_host("h1", zone="az-a", memory_gib=4, vcpus=1)
        end = timezone.now() + timedelta(days=365)
        decide_ram("alpha", change(A, 4, expires_at=end))
        gone = change(A, 4, "superseded", old="confirmed", expires_at=end)
        decide_ram("alpha", gone, change(B, 1, expires_at=end), change(C, 3, expires_at=end))
        assert slots_of(B) + slots_of(C) == [(1, 0, 1), (3, 1, 3)]
        make_host("h2", zone="az-a", memory_gib=8, vcpus=4)
        self.lost = host

    def test_both_leave_a_lost_host(self) -> None:
        Host.objects.filter(pk=self.lost.pk).update(state="down")
        assert verify(11).events == {"slots_moved": 2}
        assert set(Reservation.objects.values_list("target_host__name", flat=True)) == {"h2"}
        assert slots_of(B) + slots_of(C) == [(1, 0, 1), (3, 1, 3)]
        assert_ledger_holds()

    def test_both_get_a_host_again(self) -> None:
        Reservation.objects.update(
            target_host=None, confirmed_host=None, blocked_memory_bytes=0, blocked_vcpus=0
        )
        rebuild_host_capacity()
        now = timezone.now()
        make_all_due(now)
        assert repair(now).accepted == 2
        assert slots_of(B) + slots_of(C) == [(1, 1, 1), (3, 1, 3)]
        make_all_due(now)
        assert repair(now).accepted == 2
        assert slots_of(B) + slots_of(C) == [(1, 1, 1), (3, 1, 3)]
        assert_ledger_holds()


@contextmanager
def fresh_cloud() -> Iterator[None]:
    """Make a cloud that goes again, as often as one test needs one."""
    savepoint = transaction.atomic()
    savepoint._from_testcase = True  # type: ignore[attr-defined]  # set by Django itself
    with savepoint:
        make_group("hana_1", flavors=[("large", 4096, 4), ("small", 1024, 1)])
        for name in ("h1", "h2"):
            make_host(name, zone="az-a", memory_gib=8, vcpus=8)
        yield
        transaction.set_rollback(True)
    reset_host_table()


vms = st.tuples(
    st.integers(min_value=0, max_value=3),
    st.integers(min_value=1, max_value=5),
    st.integers(min_value=1, max_value=5),
    st.sampled_from(["confirmed", "expected"]),
)
cuts = st.sets(st.integers(min_value=1, max_value=15), max_size=4)


@given(
    sizes=st.sampled_from([(16,), (8, 8), (4, 12), (5, 3, 8)]),
    inside=st.lists(vms, max_size=4),
    rounds=st.lists(cuts, min_size=1, max_size=3),
)
@few(10)
def test_no_split_or_merge_changes_what_hosts_have(
    sizes: tuple[int, ...], inside: list[tuple[int, int, int, str]], rounds: list[set[int]]
) -> None:
    """The oracle is the ledger counted from nothing, before and after."""
    with fresh_cloud():
        uuids = [f"{n:08d}-0000-4000-8000-000000000000" for n in range(30)]
        held = {uuids.pop(): gib for gib in sizes}
        decide_ram("alpha", *[change(uuid, gib) for uuid, gib in held.items()])
        slots = list(Reservation.objects.select_related("target_host").order_by("pk"))
        for number, memory_gib, vcpus, state in inside:
            slot = slots[number % len(slots)]
            make_vm(
                host=slot.target_host if state == "confirmed" else None,
                slot=slot,
                slot_state=state,
                memory_gib=memory_gib,
                vcpus=vcpus,
                project_id="alpha",
            )
        rebuild_host_capacity()
        before, parts = rooms(), vm_sizes()
        for marks in rounds:
            ends = [0, *sorted(marks), 16]
            new = {uuids.pop(): b - a for a, b in pairwise(ends)}
            gone = [change(uuid, gib, "superseded", old="confirmed") for uuid, gib in held.items()]
            outcome = decide_ram("alpha", *gone, *[change(uuid, gib) for uuid, gib in new.items()])
            assert outcome.rejection_reason == ""
            held = new
            live = Commitment.objects.filter(commitment_uuid__in=held)
            assert set(live.values_list("ready_reason", flat=True)) == {"Accepted"}
            assert Reservation.objects.aggregate(sum=Sum("memory_bytes"))["sum"] == 16 * GIB
            assert (rooms(), vm_sizes()) == (before, parts)
            assert rebuild_host_capacity() == 0


def vm_sizes() -> dict[str, tuple[int, int]]:
    """Return what every VM takes in its slots together."""
    rows = ReservationAllocation.objects.order_by().values("vm_uuid")
    sums = rows.annotate(memory=Sum("memory_bytes"), cores=Sum("vcpus"))
    return {row["vm_uuid"]: (row["memory"], row["cores"]) for row in sums}
