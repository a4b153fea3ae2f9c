"""Holding a VM in one statement that is its own transaction (spec scheduling, 16.2)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import Reservation, ReservationKind
from capacity.nova.in_flight import InFlightAsk, InFlightHold, hold_alone
from capacity.nova.placement import PlacementOutcome, place_vm
from journal.actors import Actor
from scheduling.resources import GIB, ResourceVector
from tests.factories import make_commitment, make_group, make_host, make_hosts, make_slot
from tests.ledger import expect_in_slot

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
VM = "00000000-0000-4000-9000-000000000001"


def ask(memory_gib: int) -> InFlightAsk:
    return InFlightAsk(
        vm_uuid=VM,
        resources=ResourceVector(memory_bytes=memory_gib * GIB, vcpus=1),
        intent="create",
        project_id="project-1",
        flavor_group_name="hana_1",
    )


def alone(memory_gib: int, *hosts: str, max_held: int = 0) -> InFlightHold | None:
    return hold_alone(ask(memory_gib), candidates=hosts, request_id="r", now=NOW, max_held=max_held)


def place(memory_gib: int, *hosts: str) -> PlacementOutcome:
    return place_vm(
        ask(memory_gib), candidates=hosts, actor=Actor(name="nova"), request_id="r", now=NOW
    )


def rows() -> list[str]:
    held = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT, vm_uuid=VM)
    return sorted(held.values_list("target_host__name", flat=True))


@pytest.mark.sql("capacity_hold_alone")
def test_free_hosts_are_held_and_committed_by_one_statement() -> None:
    make_hosts(3, memory_gib=8)
    with CaptureQueriesContext(connection) as captured:
        outcome = place(4, "h2", "unknown", "h1", "h3")
    assert len(captured) == 1
    assert outcome.held == ("h2", "h1", "h3")
    connection.close()  # what was not committed is gone with the session
    assert rows() == ["h1", "h2", "h3"]
    assert rebuild_host_capacity() == 0


@pytest.mark.sql("capacity_hold_free")
def test_no_more_are_held_than_wanted_and_the_times_are_those_of_the_rows() -> None:
    make_hosts(3, memory_gib=8)
    hold = alone(4, "h3", "h2", "h1", max_held=2)
    assert hold is not None
    assert hold.host_names == ("h3", "h2")
    times = set(Reservation.objects.values_list("start_time", "end_time", "placement_id"))
    assert times == {(hold.start_time, hold.end_time, hold.placement_id)}
    assert hold.start_time == NOW


def test_hosts_that_are_not_all_free_are_left_to_a_transaction() -> None:
    make_host("h1", memory_gib=2)
    make_host("h2", memory_gib=8)
    assert alone(4, "h1", "h2") is None
    assert rows() == []
    assert place(4, "h1", "h2").held == ("h2",)


def test_rows_of_the_vm_stay_until_a_transaction_replaces_them() -> None:
    make_hosts(2, memory_gib=8)
    assert place(8, "h1").held == ("h1",)
    assert alone(8, "h1", "h2") is None
    assert rows() == ["h1"]
    assert place(8, "h1", "h2").held == ("h1", "h2")
    assert rebuild_host_capacity() == 0


def test_slots_that_expect_the_vm_are_counted_with_its_rows() -> None:
    make_group("hana_1")
    slot = make_slot(make_commitment(), make_host("h1", memory_gib=32), memory_gib=8)
    expect_in_slot(slot.pk, VM, ResourceVector(memory_bytes=12 * GIB, vcpus=1), now=NOW)
    assert alone(12, "h1") is None
    assert rows() == []
    slot.refresh_from_db()
    assert slot.blocked_memory_bytes == 12 * GIB
    assert place(12, "h1").held == ("h1",)
    slot.refresh_from_db()
    assert slot.blocked_memory_bytes == 8 * GIB, "the row blocks 12, the slot its own size"
    assert rebuild_host_capacity() == 0
