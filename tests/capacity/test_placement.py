from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.ledger.vms import Booking
from capacity.models import HostCapacity, Reservation, ReservationAllocation, ReservationKind
from capacity.nova.in_flight import InFlightAsk, InFlightHold
from capacity.nova.placement import Choice, PlacementOutcome, ask_of, place_vm
from hosts.models import Host
from journal.actors import Actor
from scheduling.intents import Intent
from scheduling.request import PlacementRequest
from scheduling.resources import GIB, ResourceVector
from tests.factories import (
    make_allocation,
    make_commitment,
    make_group,
    make_host,
    make_hosts,
    make_reservation,
    make_slot,
    make_vm,
)
from tests.ledger import expect_in_slot

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ACTOR = Actor(name="nova")
VM = "00000000-0000-4000-9000-000000000001"


def ask(memory_gib: int = 4, *, vm: str = VM, intent: str = "create", **fields: Any) -> InFlightAsk:
    return InFlightAsk(
        vm_uuid=vm,
        resources=ResourceVector(memory_bytes=memory_gib * GIB, vcpus=fields.pop("vcpus", 1)),
        intent=intent,
        **fields,
    )


def place(asked: InFlightAsk, *hosts: str, **options: Any) -> PlacementOutcome:
    return place_vm(
        asked, **{"candidates": hosts, "actor": ACTOR, "request_id": "r", "now": NOW, **options}
    )


def rows_of(vm: str = VM) -> int:
    return Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT, vm_uuid=vm).count()


def database_snapshot() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        return str((cursor.fetchone() or [""])[0])


def test_hosts_that_filled_up_drop_out_and_the_rest_keeps_its_order() -> None:
    for name, memory_gib in {"h1": 8, "h2": 3, "h3": 8, "h4": 8}.items():
        make_host(name, memory_gib=memory_gib)
    outcome = place(ask(), "h4", "h2", "h1", "unknown", "h3")
    assert outcome.held == ("h4", "h1", "h3")
    assert outcome.refused == ("h2", "unknown")
    assert outcome.rounds == 1
    assert rebuild_host_capacity() == 0


@pytest.mark.parametrize(("memory_gib", "vcpus"), [(5, 1), (4, 3)])
def test_each_resource_must_fit_and_the_last_byte_may_be_taken(memory_gib: int, vcpus: int) -> None:
    make_host("h1", memory_gib=4, vcpus=2)
    assert place(ask(memory_gib, vcpus=vcpus), "h1").held == ()
    assert not Reservation.objects.exists()
    assert place(ask(4, vcpus=2), "h1").held == ("h1",)
    assert place(ask(1, vm="second"), "h1").held == ()


def test_no_more_hosts_are_held_than_wanted() -> None:
    make_hosts(30, memory_gib=4)
    HostCapacity.objects.filter(host__name__in=[f"h{n}" for n in range(2, 20)]).update(
        allocated_memory_bytes=GIB
    )
    outcome = place(ask(), *(f"h{n}" for n in range(1, 31)), max_held=3)
    assert outcome.held == ("h1",), "the first window of candidates already gives one"
    outcome = place(ask(vm="second"), *(f"h{n}" for n in range(2, 31)), max_held=3)
    assert outcome.held == ("h20", "h21", "h22"), "windows without room are passed over"
    assert outcome.refused == tuple(f"h{n}" for n in range(2, 20))
    assert outcome.rounds == 1


def test_a_candidate_that_is_named_twice_is_held_once() -> None:
    make_hosts(2)
    assert place(ask(), "h1", "h1", "h2").held == ("h1", "h2")
    assert rows_of() == 2


class TestRounds:
    def test_a_fresh_choice_is_made_when_no_candidate_has_room(self) -> None:
        make_host("h1", memory_gib=2)
        make_host("h2", memory_gib=8)
        outcome = place(ask(), "h1", choose_again=lambda: ("h2",))
        assert (outcome.held, outcome.refused, outcome.rounds) == (("h2",), ("h1",), 2)

    def test_there_are_three_rounds_and_then_no_host(self) -> None:
        make_host("h1", memory_gib=2)
        choices = []

        def choose() -> tuple[str, ...]:
            choices.append(connection.in_atomic_block)
            return ("h1",)

        outcome = place(ask(), "h1", choose_again=choose)
        assert (outcome.placement_id, outcome.held, outcome.rounds) == (None, (), 3)
        assert len(choices) == 2

    def test_a_choice_of_nothing_ends_the_rounds(self) -> None:
        make_host("h1", memory_gib=2)
        outcome = place(ask(), "h1", choose_again=tuple)
        assert (outcome.held, outcome.rounds) == ((), 1)

    @pytest.mark.django_db(transaction=True)
    def test_a_host_that_changed_since_the_snapshot_is_passed_over(self) -> None:
        make_hosts(2)
        chosen = Choice(host_names=("h1", "h2"), snapshot=database_snapshot())
        Host.objects.filter(name="h1").update(zone="az-b")
        assert place(ask(), candidates=chosen).held == ("h2",)
        assert place(ask(), "h1").held == ("h1",)


class TestReleasedRoom:
    @pytest.fixture
    def slot(self) -> Reservation:
        make_group("hana_1")
        host = make_host("h1", memory_gib=8, vcpus=8)
        return make_slot(make_commitment(), host, memory_gib=8, vcpus=8)

    def own(self, memory_gib: int = 4, **fields: Any) -> InFlightAsk:
        return ask(memory_gib, project_id="project-1", flavor_group_name="hana_1", **fields)

    def test_a_vm_uses_the_room_of_its_projects_slots(self, slot: Reservation) -> None:
        assert place(self.own(), "h1").held == ("h1",)
        assert place(self.own(vm="second"), "h1").held == ("h1",)
        assert place(self.own(1, vm="third"), "h1").held == (), "the slot is used up by two"
        assert rebuild_host_capacity() == 0

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"project_id": "other"}, id="another project"),
            pytest.param({"flavor_group_name": "other"}, id="another group"),
            pytest.param({"flavor_group_name": ""}, id="no group"),
            pytest.param({"lock_reservations": True}, id="locked"),
        ],
    )
    def test_slots_of_others_and_locked_slots_block(
        self, slot: Reservation, fields: dict[str, Any]
    ) -> None:
        wanted = {"project_id": "project-1", "flavor_group_name": "hana_1", **fields}
        assert place(ask(**wanted), "h1").held == ()

    def test_a_slot_that_is_not_ready_blocks_its_own_project(self, slot: Reservation) -> None:
        Reservation.objects.update(is_ready=None)
        assert place(self.own(), "h1").held == ()

    def test_room_of_other_vms_that_are_expected_is_not_released(self, slot: Reservation) -> None:
        expect_in_slot(slot.pk, "second", ResourceVector(memory_bytes=6 * GIB, vcpus=1), now=NOW)
        assert place(self.own(4), "h1").held == ()
        assert place(self.own(2), "h1").held == ("h1",)

    def test_a_vm_is_not_kept_out_by_its_own_expectation(self, slot: Reservation) -> None:
        expect_in_slot(slot.pk, VM, ResourceVector(memory_bytes=8 * GIB, vcpus=1), now=NOW)
        assert place(self.own(8), "h1").held == ("h1",)

    def test_an_ignored_kind_blocks_nothing(self, slot: Reservation) -> None:
        assert place(ask(ignored_kinds=frozenset({"failover"})), "h1").held == ()
        assert place(ask(ignored_kinds=frozenset({"committed"})), "h1").held == ("h1",)

    @pytest.mark.parametrize(
        ("intent", "is_user", "fits"),
        [
            pytest.param("evacuate", True, True, id="own evacuation"),
            pytest.param("evacuate", False, False, id="evacuation of another VM"),
            pytest.param("create", True, False, id="no evacuation"),
        ],
    )
    def test_a_failover_slot_is_released_to_its_evacuating_user(
        self, intent: str, is_user: bool, fits: bool
    ) -> None:
        spare = make_reservation(make_host("h1", memory_gib=8), memory_gib=8)
        broken = make_host("h2")
        user = make_vm("user", broken, openstack_id=VM if is_user else "another")
        make_allocation(spare, user)
        Reservation.objects.update(blocked_memory_bytes=8 * GIB)
        rebuild_host_capacity()
        assert (place(ask(intent=intent), "h1").held == ("h1",)) is fits

    @pytest.mark.parametrize(("intent", "fits"), [("evacuate", True), ("live_migration", False)])
    def test_a_failover_slot_holds_its_room_though_the_one_beside_is_being_filled(
        self, intent: str, fits: bool
    ) -> None:
        """What moves there otherwise needs room of its own."""
        host, broken = make_host("h1", memory_gib=8), make_host("h2")
        for vm in (VM, "second"):
            slot = make_reservation(host, memory_gib=4)
            make_allocation(slot, make_vm(vm, broken, openstack_id=vm))
        HostCapacity.objects.filter(host=host).update(effective_memory_bytes=12 * GIB)
        assert place(ask(vm="second", intent=intent), "h1").held == ("h1",)
        HostCapacity.objects.filter(host=host).update(effective_memory_bytes=8 * GIB)
        assert place(ask(vm="third", intent="evacuate"), "h1").held == ()
        assert (place(ask(intent="evacuate"), "h1").held == ("h1",)) is fits


class TestBooking:
    @pytest.fixture
    def slot(self) -> Reservation:
        make_group("hana_1")
        return make_slot(make_commitment(), make_host("h1"), memory_gib=8, vcpus=8)

    def test_the_slot_is_booked_in_the_same_transaction(self, slot: Reservation) -> None:
        booked = []

        def book(hold: InFlightHold) -> None:
            assert Host.objects.get(pk=hold.host_ids[0]).name == hold.host_names[0] == "h1"
            booked.append(expect_in_slot(slot.pk, hold.vm_uuid, hold.resources, now=NOW))

        place(ask(12), "h1", book=book)
        assert booked == [Booking.BOOKED]
        assert ReservationAllocation.objects.get().vm_uuid == VM
        assert rebuild_host_capacity() == 0

    def test_a_booking_that_fails_undoes_the_placement(self, slot: Reservation) -> None:
        def book(hold: InFlightHold) -> None:
            expect_in_slot(slot.pk, hold.vm_uuid, hold.resources, now=NOW)
            raise LookupError

        with pytest.raises(LookupError):
            place(ask(), "h1", book=book)
        assert rows_of() == 0
        assert not ReservationAllocation.objects.exists()
        assert rebuild_host_capacity() == 0


NEW_VMS = (Intent.CREATE, None)
MOVES = (Intent.REBUILD, Intent.RESIZE, Intent.LIVE_MIGRATION, Intent.EVACUATE)


@pytest.mark.parametrize(
    ("intent", "count"), [*((one, 3) for one in NEW_VMS), *((one, 1) for one in MOVES)]
)
def test_each_host_holds_all_new_vms_of_a_request_but_a_vm_that_moves_once(
    intent: Intent | None, count: int
) -> None:
    request = PlacementRequest(
        request_key=VM,
        memory_bytes=GIB,
        vcpus=2,
        num_instances=3,
        project_id="project-1",
        intent=intent,
        extra_specs={"quota:hw_version": "hana_1"},
        source_host="h9",
        flavor_name="small",
    )
    asked = ask_of(request, user_id="user-1")
    assert asked == InFlightAsk(
        vm_uuid=VM,
        resources=ResourceVector(memory_bytes=count * GIB, vcpus=count * 2),
        intent="unknown" if intent is None else intent.value,
        project_id="project-1",
        flavor_group_name="hana_1",
        flavor_name="small",
        user_id="user-1",
        source_host="h9",
    )


def test_a_request_of_unknown_intent_holds_room_too() -> None:
    request = PlacementRequest(request_key=VM, memory_bytes=GIB, vcpus=2, intent=None)
    assert ask_of(request).intent == "unknown"
