from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError
from prometheus_client import REGISTRY

from capacity.ledger.claims import blocked_twice_on
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.ledger.vms import Booking, forget_in_slots
from capacity.models import AllocationState, HostCapacity, Reservation, ReservationKind
from capacity.nova.in_flight import (
    InFlightAsk,
    after_vm_changes,
    end_expired,
    end_failed_vms,
    end_landed,
)
from capacity.nova.placement import PlacementOutcome, place_vm
from capacity.tasks import end_in_flight
from commitments.services.verification import verify_slots
from hosts.models import Host, Instance
from hosts.region.registry import Phase, registry
from hosts.region.run import ImportOptions, ImportRun
from journal.actors import Actor, task_actor
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
from tests.ledger import end_placement, expect_in_slot

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ACTOR = Actor(name="nova")
VM = "00000000-0000-4000-9000-000000000001"


def gib(memory_gib: int, vcpus: int = 1) -> ResourceVector:
    return ResourceVector(memory_bytes=memory_gib * GIB, vcpus=vcpus)


def place(*hosts: str, vm: str = VM, intent: str = "create", **fields: Any) -> PlacementOutcome:
    resources = fields.pop("resources", gib(4))
    now = fields.pop("now", NOW)
    ask = InFlightAsk(vm_uuid=vm, resources=resources, intent=intent, **fields)
    return place_vm(ask, candidates=hosts, actor=ACTOR, request_id="req-1", now=now)


def in_flight(vm: str = VM) -> list[str]:
    rows = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT, vm_uuid=vm)
    return sorted(rows.values_list("target_host__name", flat=True))


def held_gib(host: Host, kind: str = "in_flight") -> int:
    return int(getattr(HostCapacity.objects.get(host=host), f"{kind}_memory_bytes")) // GIB


def list_vm(host: Host | None, *, vm: str = VM, memory_gib: int = 4, **fields: Any) -> Instance:
    Instance.objects.filter(openstack_id=vm).delete()
    row = make_vm("v", host, openstack_id=vm, memory_gib=memory_gib, vcpus=1, **fields)
    rebuild_host_capacity()
    return row


def look_at_slots() -> None:
    """See which VMs are on the hosts of their slots."""
    verify_slots(actor=task_actor("test"), request_id="r", now=NOW, is_full=True)


def expired_count(intent: str) -> float:
    name = "cortex_inflight_reservations_expired_total"
    return REGISTRY.get_sample_value(name, {"intent": intent}) or 0


class TestCreate:
    def test_every_returned_host_gets_a_complete_row_of_one_placement(self) -> None:
        make_hosts(3)
        outcome = place(
            "h2",
            "h1",
            project_id="project-1",
            user_id="user-1",
            flavor_name="small",
            flavor_group_name="hana_1",
        )
        rows = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT).order_by("pk")
        assert [row.target_host.name for row in rows if row.target_host] == ["h2", "h1"]
        for row in rows:
            assert row.placement_id == outcome.placement_id is not None
            assert (row.memory_bytes, row.vcpus) == (4 * GIB, 1)
            assert (row.blocked_memory_bytes, row.blocked_vcpus) == (4 * GIB, 1)
            assert (row.zone, row.scheduling_domain) == ("az-a", "nova")
            assert (row.vm_uuid, row.user_id, row.project_id) == (VM, "user-1", "project-1")
            assert (row.intent, row.source_host, row.is_ready) == ("create", None, None)
            assert (row.start_time, row.end_time) == (NOW, NOW + timedelta(minutes=15))
        assert rebuild_host_capacity() == 0

    @pytest.mark.parametrize("intent", ["resize", "live_migration"])
    def test_a_move_notes_its_source_and_lives_for_an_hour(self, intent: str) -> None:
        source, _ = make_hosts(2)
        list_vm(source)
        place("h2", intent=intent)
        row = Reservation.objects.get()
        assert row.source_host == source
        assert row.end_time == NOW + timedelta(hours=1)

    def test_the_source_hint_serves_a_vm_that_is_not_listed(self) -> None:
        make_hosts(2)
        place("h2", intent="live_migration", source_host="h1")
        assert Reservation.objects.get().source_host == Host.objects.get(name="h1")

    def test_a_retry_replaces_the_previous_rows_of_its_vm(self) -> None:
        first, second, third = make_hosts(3, memory_gib=4)
        before = place("h1", "h2")
        after = place("h2", "h3")
        assert in_flight() == ["h2", "h3"]
        assert [held_gib(host) for host in (first, second, third)] == [0, 4, 4]
        assert before.placement_id != after.placement_id
        assert rebuild_host_capacity() == 0

    def test_rows_stay_as_they_were_when_a_retry_finds_no_host(self) -> None:
        make_hosts(2, memory_gib=4)
        place("h1")
        assert place("h2", resources=gib(5)).held == ()
        assert in_flight() == ["h1"]
        assert rebuild_host_capacity() == 0

    @pytest.mark.parametrize(
        "intent",
        [
            "reserve_for_failover",
            "reuse_failover_reservation",
            "reserve_for_committed_resource",
            "capacity_probe",
        ],
    )
    def test_placements_without_a_vm_hold_nothing(self, intent: str) -> None:
        make_hosts(2)
        outcome = place("h2", "h1", intent=intent)
        assert (outcome.placement_id, outcome.held) == (None, ("h2", "h1"))
        assert not Reservation.objects.exists()

    @pytest.mark.parametrize(
        ("fields", "constraint"),
        [
            pytest.param({"vm_uuid": ""}, "in_flight_complete", id="no VM"),
            pytest.param(
                {"target_host": None, "blocked_memory_bytes": 0, "blocked_vcpus": 0},
                "in_flight_complete",
                id="no host",
            ),
            pytest.param({"end_time": None}, "in_flight_complete", id="no end"),
            pytest.param({"placement_id": None}, "in_flight_complete", id="no placement"),
            pytest.param({"kind": "odd"}, "kind_known", id="unknown type"),
            pytest.param({"memory_bytes": -1}, "not_negative", id="negative size"),
        ],
    )
    def test_a_row_of_another_type_or_without_its_part_cannot_be(
        self, fields: dict[str, Any], constraint: str
    ) -> None:
        """The reference finds such rows later, as UnexpectedType and MissingSpec (12.2)."""
        make_hosts(1)
        place("h1")
        with pytest.raises(IntegrityError, match=f"capacity_reservation_{constraint}"):
            Reservation.objects.update(**fields)

    def test_a_vm_has_one_row_on_a_host(self) -> None:
        make_hosts(2)
        place("h1", "h2")
        with pytest.raises(IntegrityError, match="capacity_reservation_in_flight_unique"):
            Reservation.objects.update(target_host=Host.objects.get(name="h1"))


class TestEnds:
    @pytest.mark.parametrize(
        ("intent", "source", "rows", "listed", "memory_gib", "left"),
        [
            pytest.param("create", None, "abc", "b", 4, "", id="create on candidate"),
            pytest.param("create", None, "ab", "d", 4, "", id="create elsewhere"),
            pytest.param("live_migration", "s", "ab", "s", 4, "ab", id="live on source"),
            pytest.param("live_migration", "s", "ab", "a", 4, "", id="live arrived"),
            pytest.param("resize", "s", "as", "s", 2, "as", id="resize old size"),
            pytest.param("resize", "s", "as", "s", 4, "", id="resize new size"),
            pytest.param("evacuate", "s", "ab", "s", 4, "ab", id="evacuation begun"),
            pytest.param("rebuild", "s", "s", "s", 4, "", id="rebuild"),
        ],
    )
    def test_all_rows_of_a_landed_vm_end_on_all_hosts(
        self,
        *,
        intent: str,
        source: str | None,
        rows: str,
        listed: str,
        memory_gib: int,
        left: str,
    ) -> None:
        hosts = {name: make_host(name) for name in "abcds"}
        if source is not None:
            list_vm(hosts[source], memory_gib=2)
        place(*rows, intent=intent)
        list_vm(hosts[listed], memory_gib=memory_gib)
        other = "00000000-0000-4000-9000-000000000002"
        place("a", vm=other)
        assert end_landed() == (0 if left else len(rows))
        assert in_flight() == list(left)
        assert in_flight(other) == ["a"], "rows of other VMs stay"
        assert rebuild_host_capacity() == 0

    def test_a_vm_on_a_host_that_we_do_not_know_has_landed(self) -> None:
        make_hosts(1)
        place("h1")
        list_vm(None, host_name="elsewhere")
        assert end_landed([VM]) == 1

    def test_a_vm_that_is_nowhere_keeps_its_rows(self) -> None:
        make_hosts(1)
        place("h1")
        assert after_vm_changes() == 0
        list_vm(None)
        assert after_vm_changes([VM]) == 0

    def test_expired_rows_end_and_are_counted_by_intent(
        self, django_capture_on_commit_callbacks: Any
    ) -> None:
        make_hosts(2)
        place("h1", "h2")
        place("h1", vm="moving", intent="resize")
        before = {intent: expired_count(intent) for intent in ("create", "resize")}
        with django_capture_on_commit_callbacks(execute=True):
            assert end_expired(NOW + timedelta(minutes=15, seconds=-1)) == 0
            assert end_expired(NOW + timedelta(minutes=15)) == 2
        assert expired_count("create") == before["create"] + 2
        assert expired_count("resize") == before["resize"]
        assert in_flight("moving") == ["h1"]
        assert rebuild_host_capacity() == 0

    @pytest.mark.parametrize("status", ["ERROR", "DELETED", "SOFT_DELETED"])
    def test_rows_of_a_vm_that_nova_gave_up_end(self, status: str) -> None:
        make_hosts(2)
        place("h1", "h2")
        list_vm(None, status=status)
        assert end_failed_vms() == 2
        assert rebuild_host_capacity() == 0

    def test_a_vm_in_error_before_its_evacuation_keeps_its_rows(self) -> None:
        source, _ = make_hosts(2)
        list_vm(source, status="ERROR", nova_updated_at=NOW - timedelta(hours=1))
        place("h2", intent="evacuate")
        assert after_vm_changes() == 0
        assert in_flight() == ["h2"]

    def test_a_moving_vm_that_was_deleted_gives_its_room_back(self) -> None:
        source, _ = make_hosts(2)
        list_vm(source)
        place("h2", intent="live_migration")
        Instance.objects.all().delete()
        late = NOW + timedelta(minutes=10)
        assert end_failed_vms(now=late) == 0, "an empty VM list proves nothing"
        make_vm("other", source)
        assert end_failed_vms(now=NOW + timedelta(minutes=1)) == 0
        assert end_failed_vms(now=late) == 1

    def test_an_aborted_migration_ends_by_request(self) -> None:
        make_hosts(2)
        place("h1", "h2", intent="live_migration")
        assert end_placement(VM) == 2
        assert rebuild_host_capacity() == 0

    def test_the_task_ends_what_is_over(self) -> None:
        host, _ = make_hosts(2)
        place("h1", "h2")
        list_vm(host)
        place("h1", vm="late", now=NOW - timedelta(days=400))
        assert end_in_flight() == {"over": 2, "expired": 1}
        assert not Reservation.objects.exists()


class TestSlots:
    """VMs in committed slots, with and without in-flight rows on the same host."""

    @pytest.fixture
    def slot(self) -> Reservation:
        make_group("hana_1")
        host = make_host("h1", memory_gib=16, vcpus=16)
        return make_slot(make_commitment(), host, memory_gib=8, vcpus=2)

    def blocked(self, slot: Reservation) -> int:
        slot.refresh_from_db()
        assert rebuild_host_capacity() == 0
        return slot.blocked_memory_bytes // GIB

    def test_an_expected_vm_within_the_slot_changes_nothing(self, slot: Reservation) -> None:
        assert expect_in_slot(slot.pk, VM, gib(4), now=NOW) is Booking.BOOKED
        assert self.blocked(slot) == 8
        assert slot.allocations.get().state == AllocationState.EXPECTED
        assert expect_in_slot(slot.pk, VM, gib(4), now=NOW) is Booking.ALREADY

    def test_an_overfilling_vm_blocks_its_size(self, slot: Reservation) -> None:
        assert expect_in_slot(slot.pk, VM, gib(12), now=NOW) is Booking.BOOKED
        assert self.blocked(slot) == 12

    def test_an_overfilling_vm_in_flight_is_blocked_by_its_row_alone(
        self, slot: Reservation
    ) -> None:
        make_allocation(slot, make_vm("seen", slot.target_host, memory_gib=4))
        expect_in_slot(slot.pk, VM, gib(6), now=NOW)
        assert self.blocked(slot) == 6, "slot 8, confirmed 4, expected 6"
        place("h1", resources=gib(6))
        assert self.blocked(slot) == 4, "the row blocks 6, the slot what is left of it"
        assert end_expired(NOW + timedelta(hours=1)) == 1
        assert self.blocked(slot) == 6

    def test_a_row_on_another_host_does_not_relieve_the_slot(self, slot: Reservation) -> None:
        make_host("h2")
        expect_in_slot(slot.pk, VM, gib(12), now=NOW)
        place("h2", resources=gib(12))
        assert self.blocked(slot) == 12

    def test_overfill_needs_room_on_the_host(self, slot: Reservation) -> None:
        make_vm("neighbour", slot.target_host, memory_gib=6)
        assert expect_in_slot(slot.pk, VM, gib(12), now=NOW) is Booking.NO_ROOM
        assert not slot.allocations.exists()
        assert self.blocked(slot) == 8

    def test_a_slot_is_not_booked_beyond_its_memory(self, slot: Reservation) -> None:
        assert expect_in_slot(slot.pk, VM, gib(8), now=NOW) is Booking.BOOKED
        assert expect_in_slot(slot.pk, "second", gib(1), now=NOW) is Booking.FULL
        assert self.blocked(slot) == 8

    def test_only_committed_slots_on_a_host_take_bookings(self, slot: Reservation) -> None:
        nowhere = make_slot(slot.commitment, None)  # type: ignore[arg-type]  # a slot has one
        failover = make_reservation(slot.target_host)
        for reservation_id in (nowhere.pk, failover.pk, 0):
            assert expect_in_slot(reservation_id, VM, gib(1), now=NOW) is Booking.NO_SLOT

    def test_a_confirmed_vm_is_counted_by_its_host_alone(self, slot: Reservation) -> None:
        expect_in_slot(slot.pk, VM, gib(6), now=NOW)
        list_vm(slot.target_host, memory_gib=6)
        look_at_slots()
        assert self.blocked(slot) == 2
        assert forget_in_slots([VM]) == 1
        assert self.blocked(slot) == 8

    def test_arrival_and_release_of_the_old_slot_are_one_step(self, slot: Reservation) -> None:
        far = make_host("h2", memory_gib=16, vcpus=16)
        new = make_slot(slot.commitment, far, memory_gib=8, vcpus=2)  # type: ignore[arg-type]  # a slot has one
        expect_in_slot(slot.pk, VM, gib(4), now=NOW)
        list_vm(slot.target_host)
        look_at_slots()
        expect_in_slot(new.pk, VM, gib(4), now=NOW)
        list_vm(far)
        look_at_slots()
        assert (self.blocked(slot), self.blocked(new)) == (8, 4)
        assert not slot.allocations.exists()

    def test_a_slot_in_migration_blocks_both_hosts_in_full(self, slot: Reservation) -> None:
        far = make_host("h2", memory_gib=16, vcpus=16)
        expect_in_slot(slot.pk, VM, gib(4), now=NOW)
        list_vm(slot.target_host)
        look_at_slots()
        Reservation.objects.filter(pk=slot.pk).update(target_host=far)
        assert rebuild_host_capacity() == 3, "the slot and both rooms"
        assert self.blocked(slot) == 8
        assert held_gib(far, "committed") == 8

    def test_slot_and_vm_in_flight_share_the_room(self, slot: Reservation) -> None:
        place("h1", project_id=slot.project_id, flavor_group_name=slot.flavor_group_name)
        host = Host.objects.get()
        assert blocked_twice_on([host.pk]) == {host.pk: gib(4, 1)}
        end_placement(VM)
        assert blocked_twice_on([host.pk]) == {}


@pytest.mark.parametrize(
    ("section", "left"), [("compute.servers", []), ("compute.flavors", ["h1"])]
)
def test_an_import_of_servers_ends_the_rows_of_landed_vms(section: str, left: list[str]) -> None:
    (host,) = make_hosts(1)
    place("h1")
    make_vm("v", host, openstack_id=VM)
    run = ImportRun(actor=ACTOR, request_id="r", now=NOW, options=ImportOptions())
    run.sections_seen.add(section)
    names = [step.name for step in registry.steps(Phase.FINISH)]
    assert names.index("rooms of hosts") < names.index("in-flight reservations")
    for step in registry.steps(Phase.FINISH):
        if step.name in {"rooms of hosts", "in-flight reservations"}:
            step.run(run)
    assert in_flight() == left
    assert rebuild_host_capacity() == 0


def test_rebuild_of_one_host_repairs_what_its_reservations_block() -> None:
    host, other = make_hosts(2, memory_gib=16)
    make_group("hana_1")
    slot = make_slot(make_commitment(), host, memory_gib=8, vcpus=1)
    Reservation.objects.update(blocked_memory_bytes=3 * GIB)
    assert rebuild_host_capacity([other.pk]) == 0
    assert rebuild_host_capacity([host.pk]) == 1
    slot.refresh_from_db()
    assert slot.blocked_memory_bytes == 8 * GIB
    assert rebuild_host_capacity() == 0
