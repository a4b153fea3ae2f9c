"""Room of slots that left a host is held until its agent gave it back (spec hosts, D.12)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.core.management import call_command
from django.db import connection
from headroom_host_agent.server.identity import Identity

from capacity.ledger.leaving import give_back_left_rooms
from capacity.ledger.resources import verify_reserved
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, LeavingRoom, Reservation
from commitments.models import Commitment
from hosts.agents.models import HostLease
from hosts.agents.resource_models import HostResource
from hosts.agents.workload_models import Workload
from hosts.models import Flavor, Host
from scheduling.resources import GIB
from tests.capacity.test_agent_readiness import A, accept, look, sell
from tests.capacity.test_agent_slots import asked_of, follow
from tests.capacity.test_slot_resources import NEEDS, gpu_group, reserved
from tests.commitments.change_requests import RAM, change, decide, decide_ram
from tests.commitments.slot_worlds import verify
from tests.factories import make_group, make_group_capacity, make_host
from tests.hosts.agents.test_leases import up
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import enforcing
from tests.ledger import assert_ledger_holds

#: Slots that fill the host: all of its 32 vCPUs.
FULL = 8
B = "bbbbbbbb-0000-4000-8000-000000000002"
RAM_OF_ANOTHER = "hw_version_hana_2_ram"
C = "cccccccc-0000-4000-8000-000000000003"


def held(name: str = "h1") -> tuple[int, int]:
    room = HostCapacity.objects.get(host__name=name)
    return room.committed_memory_bytes // GIB, room.committed_vcpus


def made(units: int = 2, *, group: Callable[[], object] = sell) -> Identity:
    """Return an agent that is up and has made the slots of a commitment."""
    identity = up("h1")
    call_command("host_agent", "mode", "h1", "enforce")
    group()
    accept(units=units)
    look()
    answer(identity)
    return identity


def answer(identity: Identity, *, deleted: bool = False) -> None:
    """Have the agent say that it did all that it was asked."""
    for row in Workload.objects.filter(state="deleting" if deleted else "pending"):
        said = {"state": "deleted"} if deleted else {}
        assert tell(identity, row, **said).status_code in (200, 201)


def end(uuid: str = A, units: int = 2) -> None:
    assert decide_ram("alpha", change(uuid, units, None, old="confirmed")).rejection_reason == ""


@pytest.mark.django_db(transaction=True)
def test_room_of_a_slot_that_ended_is_held_until_the_agent_gave_it_back() -> None:
    identity = made()
    assert held() == (2, 8)

    end()

    assert Reservation.objects.count() == 0
    assert held() == (2, 8)
    assert_ledger_holds()
    assert rebuild_host_capacity() == 0
    look()
    assert give_back_left_rooms() == 0  # it was asked, and has not answered
    answer(identity, deleted=True)
    assert held() == (2, 8)
    assert give_back_left_rooms() == 2
    assert (held(), LeavingRoom.objects.count()) == ((0, 0), 0)
    assert give_back_left_rooms() == 0
    assert_ledger_holds()


@pytest.mark.django_db(transaction=True)
def test_room_that_is_held_is_sold_to_nobody() -> None:
    identity = made(units=FULL)
    end(units=FULL)
    refused = decide_ram("alpha", change(B, 2))
    assert "0/2 reservation slots could be placed" in refused.rejection_reason
    look()
    answer(identity, deleted=True)
    give_back_left_rooms()
    assert decide_ram("alpha", change(B, 2)).rejection_reason == ""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way_out", ["down", "fence", "mode", "decommission"])
def test_no_room_is_held_for_an_agent_that_will_not_answer(way_out: str) -> None:
    made()
    end()
    assert held() == (2, 8)
    match way_out:
        case "down":
            HostLease.objects.update(liveness="down")
        case "fence":
            call_command("host_agent", "fence", "h1", "--reason", "test")
        case "mode":
            call_command("host_agent", "mode", "h1", "observe")
        case _:
            call_command("host_agent", "decommission", "h1", "--reason", "old", "--force")
    assert give_back_left_rooms() == 2
    assert held() == (0, 0)
    assert_ledger_holds()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["observe", "none", "down", "nothing made"])
def test_room_is_given_back_at_once_without_an_agent_that_has_it(way: str) -> None:
    if way == "nothing made":
        enforcing("h1")
        sell()
        accept()
    else:
        made()
        if way == "down":
            HostLease.objects.update(liveness="down")
        else:
            call_command("host_agent", "mode", "h1", way)
    end()
    assert (held(), LeavingRoom.objects.count()) == ((0, 0), 0)
    assert_ledger_holds()


@pytest.mark.django_db(transaction=True)
def test_where_the_same_change_needs_the_room_nothing_is_held() -> None:
    made(units=FULL)
    outcome = decide_ram("alpha", change(A, FULL, None, old="confirmed"), change(B, FULL))
    assert outcome.rejection_reason == ""
    assert LeavingRoom.objects.count() == 0
    assert held() == (FULL, 4 * FULL)
    assert_ledger_holds()


@pytest.mark.django_db(transaction=True)
def test_a_slot_that_moves_is_held_on_both_hosts_until_the_first_gave_it_back() -> None:
    identity = made(units=1)
    make_host("h2")
    slot = Reservation.objects.get()
    Reservation.objects.update(target_host=Host.objects.get(name="h2"))
    rebuild_host_capacity()
    assert verify().events == {"slots_settled": 1}

    assert (held("h1"), held("h2")) == ((1, 4), (1, 4))
    assert_ledger_holds()
    look()
    assert [state for owner, state in asked_of() if owner == str(slot.pk)] == ["deleting"]
    answer(identity, deleted=True)
    give_back_left_rooms()
    assert (held("h1"), held("h2")) == ((0, 0), (1, 4))


@pytest.mark.django_db(transaction=True)
def test_a_slot_that_came_back_before_anybody_looked_is_held_once() -> None:
    made(units=1)
    make_host("h2")
    for name in ("h2", "h1"):
        Reservation.objects.update(target_host=Host.objects.get(name=name))
        rebuild_host_capacity()
        verify()
    assert held("h1") == (2, 8)
    assert give_back_left_rooms() == 1
    assert held("h1") == (1, 4)
    follow()
    assert [state for _, state in asked_of()] == ["deployed"]


@pytest.mark.django_db(transaction=True)
def test_ends_answers_and_looks_at_once_lose_no_room() -> None:
    identity = made(units=1)
    uuids = [f"cccccccc-0000-4000-8000-00000000000{n}" for n in range(6)]
    for uuid in uuids:
        accept(uuid, 1)
    look()
    answer(identity)
    errors: list[Exception] = []
    barrier = threading.Barrier(5)

    def at_once(work: Callable[[], object]) -> None:
        try:
            barrier.wait(60)
            work()
        except Exception as error:  # noqa: BLE001 - told to the test
            errors.append(error)
        finally:
            connection.close()

    def end_some(chosen: list[str]) -> None:
        for uuid in chosen:
            end(uuid, 1)

    def give_back() -> None:
        for _ in range(4):
            look()
            answer(identity, deleted=True)
            give_back_left_rooms()

    works: list[Callable[[], object]] = [
        lambda: end_some(uuids[:3]),
        lambda: end_some(uuids[3:]),
        give_back,
        give_back_left_rooms,
        look,
    ]
    threads = [threading.Thread(target=at_once, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert_ledger_holds()
    give_back()
    assert held() == (1, 4)
    assert Commitment.objects.filter(ready_reason="Accepted").count() == 1
    assert LeavingRoom.objects.count() == 0
    assert_ledger_holds()


def another_group(needs: dict[str, str]) -> None:
    make_group("hana_2", flavors=[("other", 1024, 4)], ram_unit_gib=1)
    make_group_capacity("hana_2", "az-a", total_vcpus=32)
    flavor = Flavor.objects.get(name="other")
    flavor.extra_specs = {**flavor.extra_specs, **needs}
    flavor.save()


def with_gpus(gpus: int, units: int = 2) -> Identity:
    """Return the agent of a host that has GPUs, one in each slot that it made."""

    def group() -> None:
        gpu_group()
        make_group_capacity("hana_1", "az-a", total_vcpus=32)
        for resource, amount in (("gpu", gpus), ("network", 10**9)):
            HostResource.objects.update_or_create(
                host=Host.objects.get(),
                resource=resource,
                defaults={"capacity": amount, "effective_capacity": amount, "source": "detected"},
            )

    return made(units, group=group)


@pytest.mark.django_db(transaction=True)
@pytest.mark.sql("capacity_keep_resources")
def test_gpus_and_rates_of_a_slot_that_ended_are_held_until_the_agent_gave_them_back() -> None:
    identity = with_gpus(2)
    assert reserved() == (2, 2 * 10**6)

    end()

    assert reserved() == (2, 2 * 10**6)
    assert {room.gpus for room in LeavingRoom.objects.all()} == {1}
    assert_ledger_holds()
    assert verify_reserved() == {}
    refused = decide_ram("alpha", change(B, 1))
    assert "not enough there of gpu: requested 1, available 0" in refused.rejection_reason
    HostResource.objects.update(reserved=0)
    assert verify_reserved() == {"gpu": 1, "network": 1}
    look()
    answer(identity, deleted=True)
    assert give_back_left_rooms() == 2
    assert (held(), reserved()) == ((0, 0), (0, 0))
    assert decide_ram("alpha", change(B, 1)).rejection_reason == ""
    assert_ledger_holds()


@pytest.mark.django_db(transaction=True)
@pytest.mark.sql("capacity_move_resources", "capacity_keep_resources")
@pytest.mark.parametrize("gpus", [2, 3])
def test_a_change_that_gives_up_gpus_and_takes_some_is_judged_by_the_difference(gpus: int) -> None:
    with_gpus(gpus)
    another_group(NEEDS)
    # Of two groups, as slots that one commitment gives up are handed over to one that begins.
    gives_up, takes = change(A, 2, None, old="confirmed"), change(B, 2)
    outcome = decide({"alpha": {RAM: [gives_up], RAM_OF_ANOTHER: [takes]}})
    assert outcome.rejection_reason == ""
    # Of the two that left, as many are held as nobody needs now.
    kept = gpus - 2
    assert sum(room.gpus for room in LeavingRoom.objects.all()) == kept
    assert reserved()[0] == 2 + kept
    assert_ledger_holds()
    assert "gpu" in decide_ram("alpha", change(C, 1)).rejection_reason


@pytest.mark.django_db(transaction=True)
def test_gpus_are_held_where_only_the_memory_is_needed_by_the_same_change() -> None:
    identity = with_gpus(FULL, units=FULL)
    another_group({})
    gives_up, takes = change(A, FULL, None, old="confirmed"), change(B, FULL)
    outcome = decide({"alpha": {RAM: [gives_up], RAM_OF_ANOTHER: [takes]}})
    assert outcome.rejection_reason == ""
    assert held() == (FULL, 4 * FULL)
    assert reserved()[0] == FULL
    assert_ledger_holds()
    look()
    answer(identity, deleted=True)
    assert give_back_left_rooms() == FULL
    assert (held(), reserved()) == ((FULL, 4 * FULL), (0, 0))
    assert_ledger_holds()


@pytest.mark.django_db(transaction=True)
def test_a_release_that_counted_rooms_without_leaving_ones_does_no_harm_for_long() -> None:
    identity = made(units=2)
    accept(B, 1)
    look()
    answer(identity)
    end()
    HostCapacity.objects.update(committed_memory_bytes=GIB, committed_vcpus=4)
    look()
    answer(identity, deleted=True)
    assert give_back_left_rooms() == 2
    assert held() == (1, 4)
    assert_ledger_holds()
