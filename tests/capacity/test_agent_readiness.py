"""Slots on hosts whose agents make them are ready once they are made (spec hosts, D.1)."""

from __future__ import annotations

import threading

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F

from capacity.agents import nudges
from capacity.agents.nudges import FOLLOW_SLOTS
from capacity.ledger.readiness import agree_with_agents
from capacity.models import ReadyReason, Reservation
from commitments.models import Commitment
from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.workload_models import Workload
from tests.capacity.test_agent_slots import follow, slot_on
from tests.commitments.change_requests import change, decide_ram
from tests.factories import make_group, make_group_capacity, make_host
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import enforcing

A = "aaaaaaaa-0000-4000-8000-000000000001"
READY = (True, ReadyReason.ACTIVE.value)
WAITS = (None, ReadyReason.AWAITS_AGENT.value)
FAILED = (False, ReadyReason.AGENT_FAILED.value)


def look() -> int:
    """Do what the task does."""
    follow()
    return agree_with_agents()


def stands(slot: Reservation) -> tuple[bool | None, str]:
    slot.refresh_from_db()
    return slot.is_ready, slot.ready_reason


def accept(uuid: str = A, units: int = 2) -> list[Reservation]:
    assert decide_ram("alpha", change(uuid, units)).rejection_reason == ""
    slots = Reservation.objects.filter(commitment__commitment_uuid=uuid)
    return list(slots.order_by("slot_index"))


def sell() -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_group_capacity("hana_1", "az-a", total_vcpus=16)


@pytest.mark.django_db(transaction=True)
def test_slots_of_an_accepted_commitment_are_ready_when_their_agent_made_them() -> None:
    identity = enforcing("h1")
    sell()

    first, second = accept()

    assert Commitment.objects.get().ready_reason == "Accepted"  # by what we know of the room
    assert [stands(slot) for slot in (first, second)] == [WAITS, WAITS]
    assert first.ready_message == "the agent of h1 has not made it yet"
    look()
    assert stands(first) == WAITS
    assert tell(identity, Workload.objects.get(owner_id=str(first.pk))).status_code == 201
    assert look() == 1
    assert [stands(slot) for slot in (first, second)] == [READY, WAITS]
    changed_at = first.ready_changed_at
    assert look() == 0
    assert (stands(first), first.ready_changed_at) == (READY, changed_at)
    dead = tell(identity, Workload.objects.get(owner_id=str(first.pk)), state="error", error="gone")
    assert dead.status_code == 201
    assert look() == 1
    assert stands(first) == FAILED
    assert first.ready_message == "the agent of h1 did not make it: gone"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", [AgentMode.OBSERVE, AgentMode.NONE])
def test_slots_are_ready_at_once_where_no_agent_makes_them(mode: AgentMode) -> None:
    enforcing("h1")
    HostAgent.objects.update(mode=mode)
    sell()
    assert [stands(slot) for slot in accept()] == [READY, READY]
    assert look() == 0


@pytest.mark.django_db(transaction=True)
def test_the_way_out_of_enforcing_has_all_slots_ready_again() -> None:
    identity = enforcing("h1")
    sell()
    waits, broken = accept()
    follow()
    tell(identity, Workload.objects.get(owner_id=str(broken.pk)), state="error", error="no pages")
    look()
    assert [stands(waits), stands(broken)] == [WAITS, FAILED]

    call_command("host_agent", "mode", "h1", "observe")

    assert look() == 2
    assert [stands(waits), stands(broken)] == [READY, READY]
    call_command("host_agent", "mode", "h1", "enforce")
    assert look() == 2
    assert [stands(waits), stands(broken)] == [WAITS, WAITS]
    call_command("host_agent", "decommission", "h1", "--reason", "old", "--force")
    assert look() == 2
    assert [stands(waits), stands(broken)] == [READY, READY]


@pytest.mark.django_db(transaction=True)
def test_a_slot_of_another_size_waits_until_that_is_made() -> None:
    identity = enforcing("h1")
    slot = slot_on("h1")
    look()
    tell(identity, Workload.objects.get())
    assert look() == 1
    assert stands(slot) == READY
    Reservation.objects.filter(pk=slot.pk).update(vcpus=F("vcpus") + 1)
    assert look() == 1
    assert stands(slot) == WAITS
    tell(identity, Workload.objects.get(), attempt=2)
    assert look() == 1
    assert stands(slot) == READY


@pytest.mark.django_db(transaction=True)
def test_what_is_not_ready_for_another_reason_stays_so() -> None:
    enforcing("h1")
    slot = slot_on("h1", is_ready=False, ready_reason=ReadyReason.INVALID_RESOURCES)
    look()
    assert stands(slot) == (False, ReadyReason.INVALID_RESOURCES)


@pytest.mark.django_db(transaction=True)
def test_looks_beside_results_and_a_change_of_mode_end_as_the_last_says() -> None:
    identity = enforcing("h1")
    make_host("h2")
    slots = [slot_on("h1") for _ in range(6)]
    other = slot_on("h2")
    look()
    errors: list[Exception] = []
    barrier = threading.Barrier(4)

    def at_once(work: object) -> None:
        try:
            barrier.wait(60)
            assert callable(work)
            for _ in range(3):
                work()
        except Exception as error:  # noqa: BLE001 - told to the test
            errors.append(error)
        finally:
            connection.close()

    def answer() -> None:
        for row in Workload.objects.filter(to_delete=False, state="pending"):
            tell(identity, row)

    def turn() -> None:
        call_command("host_agent", "mode", "h1", "observe")
        call_command("host_agent", "mode", "h1", "enforce")

    works = (look, look, answer, turn)
    threads = [threading.Thread(target=at_once, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    look()
    answer()
    look()
    assert {stands(slot) for slot in slots} == {READY}
    assert stands(other)[0] is True
    assert look() == 0


@pytest.mark.django_db(transaction=True)
def test_a_worker_is_told_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = enforcing("h1")
    slot_on("h1")
    follow()
    hints: list[str] = []
    monkeypatch.setattr(nudges, "hint_worker", hints.append)
    monkeypatch.setattr(nudges, "KNOWN_SECONDS", 0.0)
    monkeypatch.setattr(nudges._Known, "until", 0.0)
    tell(identity, Workload.objects.get())
    assert hints == [FOLLOW_SLOTS]
