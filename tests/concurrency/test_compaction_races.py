"""Hosts are freed while Limes changes commitments and Nova places VMs."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from django.db import transaction
from django.utils import timezone

from capacity.host_table import current_host_table
from capacity.ledger.rooms import lock_reservations, rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationKind
from commitments.models import Commitment, CommitmentEvent, CompactionRun, SlotCheck
from commitments.services.compaction import compact_zone
from hosts.models import Host
from journal.actors import Actor
from journal.errors import Busy
from scheduling.columns import CAPACITY_COLUMNS
from tests.commitments.change_requests import RAM, change, decide
from tests.concurrency.at_once import Sessions
from tests.concurrency.test_placement_races import gib, place
from tests.factories import make_commitment, make_group, make_hosts, make_slot, make_vm
from tests.killing import die_at_every_statement, run_in_child
from tests.ledger import assert_ledger_holds, expect_in_slot
from tests.process_tables import load_host_table

pytestmark = pytest.mark.django_db(transaction=True)

ACTOR = Actor(name="test")
ZONE = "az-a"
HOSTS, SLOT_GIB = 14, 2


def fragmented_zone(*, with_vms: int) -> list[Host]:
    """Make hosts of which some have a VM, and all two empty slots of 2 GiB."""
    make_group("hana_1", flavors=[("small", 1024, 1), ("two", 2048, 2), ("large", 4096, 4)])
    hosts = make_hosts(HOSTS, memory_gib=16, vcpus=16)
    for host in hosts[:with_vms]:
        make_vm(host=host, memory_gib=4, vcpus=4)
    for host in hosts:
        row = make_commitment(amount_gib=2 * SLOT_GIB, project_id="alpha")
        for _ in range(2):
            make_slot(row, host, memory_gib=SLOT_GIB, vcpus=2, flavor_name="two")
    SlotCheck.objects.create(zone=ZONE, fully_checked_at=timezone.now())
    return hosts


def compact() -> CompactionRun | None:
    return compact_zone(ZONE, actor=ACTOR, request_id="compact", now=timezone.now()).run


def assert_host_table_is_true() -> None:
    incremental, rebuilt = current_host_table(), load_host_table()
    for column in CAPACITY_COLUMNS:
        for name in rebuilt.names:
            left = getattr(incremental, column)[incremental.row_of[name]]
            assert left == getattr(rebuilt, column)[rebuilt.row_of[name]], (column, name)


def test_nobody_loses_room_while_hosts_are_freed() -> None:
    hosts = fragmented_zone(with_vms=4)
    kept = dict(Commitment.objects.values_list("pk", "requested_amount"))
    booked_at: dict[int, set[int]] = {}
    guard = threading.Lock()

    def book(rng: random.Random, number: int) -> str:
        """Put a VM into some slot, and remember where the slot was then."""
        ids = list(
            Reservation.objects.filter(kind=ReservationKind.COMMITTED, commitment_id__in=kept)
            .order_by("pk")
            .values_list("pk", flat=True)
        )
        slot_id = rng.choice(ids)
        with transaction.atomic():
            slot = lock_reservations([slot_id])[slot_id]
            expect_in_slot(slot_id, f"vm-{number}", gib(1), now=timezone.now())
            with guard:
                booked_at.setdefault(slot_id, set()).add(slot.target_host_id or 0)
        return "booked"

    def fire(number: int) -> str:
        rng = random.Random(number)  # noqa: S311 - a reproducible load, nothing secret
        try:
            if number % 4 == 0:
                run = compact()
                return "skipped" if run is None else "compacted"
            if number % 4 == 1:
                uuid = f"aaaaaaaa-0000-4000-8000-{rng.randint(0, 9):012d}"
                gone = change(uuid, 1, None, old="confirmed")
                wanted = gone if rng.random() < 0.3 else change(uuid, rng.randint(1, 9))
                decide({"beta": {RAM: [wanted]}})
                return "changed"
            if number % 4 == 2:
                names = rng.sample([host.name for host in hosts], k=3)
                held = place(f"payg-{number}", names, size=rng.randint(1, 2), max_held=1)
                return "placed" if held else "no host"
            return book(rng, number) if rng.random() < 0.3 else "rested"
        except Busy:
            return "busy"

    with Sessions(8) as pool:
        answers = Counter(pool.map(fire, range(120)))

    assert answers["compacted"] > 0
    assert answers["changed"] > 0
    assert answers["placed"] > 0
    assert answers["booked"] > 0
    assert CommitmentEvent.objects.filter(action="slot_moved_to_free_host").exists()
    assert_ledger_holds()
    assert rebuild_host_capacity() == 0
    for row in Commitment.objects.filter(pk__in=kept):
        slots = row.slots.values_list("memory_bytes", "target_host__zone")
        assert sum(memory for memory, _ in slots) == kept[row.pk]
        assert {zone for _, zone in slots} == {ZONE}
    for slot_id, host_ids in booked_at.items():
        assert host_ids == {Reservation.objects.get(pk=slot_id).target_host_id}, "it moved with VMs"
    assert_host_table_is_true()


def state_of_everything() -> tuple[object, ...]:
    """Return what a run writes, without keys and times."""
    rooms = HostCapacity.objects.order_by("host__name")
    return (
        tuple(Reservation.objects.order_by("pk").values_list("pk", "target_host__name")),
        tuple(Reservation.objects.order_by("pk").values_list("pk", "confirmed_host__name")),
        tuple(rooms.values_list("host__name", "committed_memory_bytes", "committed_vcpus")),
        CommitmentEvent.objects.filter(action="slot_moved_to_free_host").count(),
    )


def test_killed_run_leaves_whole_hosts_and_the_next_run_finishes() -> None:
    fragmented_zone(with_vms=HOSTS - 2)
    before = sorted(Reservation.objects.values_list("pk", "memory_bytes", "commitment_id"))

    def work() -> None:
        assert compact() is not None

    states = die_at_every_statement(work, state_of_everything)

    distinct = list(dict.fromkeys(states))
    assert len(distinct) == 3  # nothing, one host, both hosts
    assert [state[3] for state in distinct] == [0, 1, 2]  # one commitment for each host
    for state in distinct:
        assert state[0] == state[1]
    assert_ledger_holds()
    assert sorted(Reservation.objects.values_list("pk", "memory_bytes", "commitment_id")) == before
    free = HostCapacity.objects.filter(committed_memory_bytes=0, allocated_memory_bytes=0)
    assert free.count() == 2
    runs = CompactionRun.objects.all()
    assert sum(run.hosts_freed for run in runs) == 2
    assert {run.outcome for run in runs} == {"done", "abandoned"}
    run_in_child(work, die_at=10_000)
    assert state_of_everything() == states[-1]
