from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from django.db import connections, transaction

from capacity.host_table import current_host_table
from capacity.locks import zone_lock
from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment, Condition
from journal.errors import Busy
from scheduling.columns import CAPACITY_COLUMNS
from scheduling.resources import GIB
from tests.commitments.change_requests import CORES, RAM, change, decide
from tests.concurrency.at_once import Sessions
from tests.factories import make_group, make_group_capacity, make_hosts, make_vm
from tests.process_tables import load_host_table

pytestmark = pytest.mark.django_db(transaction=True)

CONNECTIONS = 8
REQUESTS = 500
HOSTS = 12
SLOTS_PER_HOST = 8
VMS = 10
MOVED = "eeeeeeee-0000-4000-8000-000000000001"

_Answer = TypeVar("_Answer")


def on_own_connection(work: Callable[[], _Answer]) -> _Answer:
    try:
        return work()
    finally:
        connections.close_all()


def assert_ledger_is_true() -> None:
    """No host over capacity; rooms equal the reservations; slots match what was decided."""
    for room in HostCapacity.objects.select_related("host"):
        held = Reservation.objects.filter(target_host=room.host)
        assert room.committed_memory_bytes == sum(row.blocked_memory_bytes for row in held)
        assert room.committed_vcpus == sum(row.blocked_vcpus for row in held)
        memory_bytes = room.allocated_memory_bytes + room.committed_memory_bytes
        assert memory_bytes <= room.effective_memory_bytes, room.host.name
        assert room.allocated_vcpus + room.committed_vcpus <= room.effective_vcpus
    for row in Commitment.objects.filter(resource_type="memory"):
        slots = list(row.slots.all())
        if row.ready_reason == Condition.ACCEPTED:
            assert sum(slot.memory_bytes for slot in slots) == row.requested_amount
            assert all(slot.target_host_id is not None for slot in slots)
        elif row.ready_reason == Condition.RESERVING:
            # A batch that takes away as much as it adds cannot be refused (liquid, 11.5): when what
            # it takes away was not there, the new commitment waits with what could be placed.
            assert not row.allow_rejection
            assert sum(slot.memory_bytes for slot in slots) <= row.requested_amount
            assert any(slot.target_host_id is None for slot in slots)
        else:
            assert not slots


def test_500_conflicting_requests_on_8_connections_never_book_twice() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1), ("large", 4096, 4)])
    hosts = make_hosts(HOSTS, memory_gib=SLOTS_PER_HOST, vcpus=SLOTS_PER_HOST)
    for host in hosts[:VMS]:
        make_vm(host=host, memory_gib=1, vcpus=1)
    uuids = [f"aaaaaaaa-0000-4000-8000-{number:012d}" for number in range(40)]
    answers: Counter[str] = Counter()

    def fire(number: int) -> str:
        rng = random.Random(number)  # noqa: S311 - a reproducible load, nothing secret
        project = rng.choice(["alpha", "beta"])
        changes = []
        for uuid in rng.sample(uuids, k=rng.randint(1, 3)):
            if rng.random() < 0.25:
                changes.append(change(uuid, 1, None, old="confirmed"))
            else:
                changes.append(change(uuid, rng.randint(1, 9)))
        try:
            outcome = decide({project: {RAM: changes}})
        except Busy:
            return "busy"
        return "rejected" if outcome.rejection_reason else "accepted"

    with Sessions(CONNECTIONS) as pool:
        answers.update(pool.map(fire, range(REQUESTS)))
    assert sum(answers.values()) == REQUESTS
    assert answers["accepted"] > 0
    assert answers["rejected"] > 0
    assert_ledger_is_true()
    incremental, rebuilt = current_host_table(), load_host_table()
    for column in CAPACITY_COLUMNS:
        for name in rebuilt.names:
            left = getattr(incremental, column)[incremental.row_of[name]]
            assert left == getattr(rebuilt, column)[rebuilt.row_of[name]]


def test_last_slot_goes_to_exactly_one_of_two_simultaneous_requests() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(1, memory_gib=1, vcpus=1)

    def fire(number: int) -> bool:
        outcome = decide({"alpha": {RAM: [change(f"bbbbbbbb-0000-{number:04d}", 1)]}})
        return not outcome.rejection_reason

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda n: on_own_connection(lambda: fire(n)), range(2)))
    assert sorted(answers) == [False, True]
    assert Reservation.objects.count() == 1
    assert_ledger_is_true()


def test_cores_are_never_promised_beyond_the_capacity_row() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(1, memory_gib=64, vcpus=64)
    make_group_capacity("hana_1", "az-a", total_vcpus=64)

    def fire(number: int) -> bool:
        outcome = decide({"alpha": {CORES: [change(f"cccccccc-0000-{number:04d}", 5)]}})
        return not outcome.rejection_reason

    with Sessions(CONNECTIONS) as pool:
        answers = list(pool.map(fire, range(40)))
    assert sum(answers) == 64 // 5
    held = Commitment.objects.values_list("accepted_amount", flat=True)
    assert sum(amount or 0 for amount in held) == 60


def test_one_uuid_in_two_zones_at_once_ends_in_exactly_one_of_them() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(1, zone="az-a", prefix="a", memory_gib=8, vcpus=8)
    make_hosts(1, zone="az-b", prefix="b", memory_gib=8, vcpus=8)

    def fire(zone: str) -> str:
        return decide({"alpha": {RAM: [change("dddddddd-0000", 3)]}}, zone=zone).rejection_reason

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda z: on_own_connection(lambda: fire(z)), ["az-a", "az-b"]))
    assert answers == ["", ""]
    row = Commitment.objects.get()
    assert set(row.slots.values_list("zone", flat=True)) == {row.zone}
    assert sum(slot.memory_bytes for slot in row.slots.all()) == 3 * GIB
    assert_ledger_is_true()


def transfer(source: str, target: str, gib: int) -> str:
    leave, arrive = change(MOVED, gib, None, old="confirmed"), change(MOVED, gib)
    return decide({source: {RAM: [leave]}, target: {RAM: [arrive]}}).rejection_reason


@pytest.mark.parametrize(
    "transfers",
    [
        pytest.param([("alpha", "beta"), ("alpha", "beta")], id="the same twice"),
        pytest.param([("alpha", "beta"), ("alpha", "zeta")], id="to two projects"),
        pytest.param([("mike", "alpha"), ("mike", "zeta")], id="to projects on both sides"),
        pytest.param([("alpha", "beta"), ("beta", "alpha")] * 3, id="there and back"),
    ],
)
def test_transfers_at_once_leave_one_row_and_one_set_of_slots(
    settings: Any, transfers: list[tuple[str, str]]
) -> None:
    """Spec liquid, 20 row 3: whichever comes last wins, in a zone with no room for a second set."""
    patient = settings.HEADROOM.liquid.model_copy(update={"change_timeout_seconds": 300})
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"lock_timeout_seconds": 120, "liquid": patient}
    )
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(1, memory_gib=4, vcpus=4)
    decide({transfers[0][0]: {RAM: [change(MOVED, 4)]}})
    before = set(Reservation.objects.values_list("pk", flat=True))
    with ThreadPoolExecutor(len(transfers)) as pool:
        answers = list(
            pool.map(
                lambda ends: on_own_connection(lambda: transfer(ends[0], ends[1], 4)),
                transfers,
            )
        )
    assert answers == [""] * len(transfers)
    row = Commitment.objects.get()
    assert row.project_id in {target for _, target in transfers}
    assert set(Reservation.objects.values_list("pk", flat=True)) == before
    assert set(Reservation.objects.values_list("commitment", "project_id")) == {
        (row.pk, row.project_id)
    }
    assert_ledger_is_true()


@pytest.mark.parametrize(
    ("locked", "zone", "is_decided"),
    [("az-a", "az-a", False), ("az-a", "az-b", True), ("az-b", "az-a", True)],
    ids=["its own zone", "another zone", "another zone, sorted after"],
)
def test_change_waits_for_changes_of_its_own_zone_alone(
    settings: Any, locked: str, zone: str, *, is_decided: bool
) -> None:
    """Spec liquid, 20 row 2: one lock per zone, held in the database for every replica."""
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.2})
    make_group("hana_1", flavors=[("small", 1024, 1)])
    for name in ("az-a", "az-b"):
        make_hosts(1, zone=name, prefix=name, memory_gib=4, vcpus=4)
    release, started = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            zone_lock([locked])
            started.set()
            release.wait(60)

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(on_own_connection, hold)
        try:
            assert started.wait(60)
            outcome = decide({"alpha": {RAM: [change(MOVED, 2)]}}, zone=zone)
        finally:
            release.set()
        holder.result()
    assert outcome.is_timeout is not is_decided
    assert Commitment.objects.exists() is is_decided
    assert decide({"alpha": {RAM: [change(MOVED, 2)]}}, zone=zone).rejection_reason == ""
