"""Commitments are split and merged while VMs come and go and others work on the same hosts."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from django.db.models import Sum
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.ledger.vms import Booking, expect_in_slots, forget_in_slots
from capacity.models import Reservation, ReservationAllocation, ReservationKind
from commitments.models import Commitment, SlotCheck
from commitments.services.compaction import compact_zone
from failover.services.loop import reconcile_zone
from journal.actors import Actor
from journal.errors import Busy
from tests.commitments.change_requests import RAM, change, decide
from tests.concurrency.at_once import Sessions
from tests.concurrency.test_placement_races import gib, place
from tests.factories import make_group
from tests.failover.zones import flavor, hosts, require, vm
from tests.ledger import assert_ledger_holds

pytestmark = pytest.mark.django_db(transaction=True)

ACTOR = Actor(name="test")
ZONE = "az-a"
NAMES = [f"h{number}" for number in range(6)]
PROJECTS = {"alpha": 24, "beta": 19}
ROUNDS = 150


class Limes:
    """Cuts the commitments of a project anew, one request after the other."""

    def __init__(self, project: str, total_gib: int) -> None:
        self.project, self.total_gib = project, total_gib
        self.held: dict[str, int] = {}
        self.number = 0
        self.guard = threading.Lock()

    def cut(self, rng: random.Random) -> str:
        """Split and merge what the project has into other commitments of the same total."""
        with self.guard:
            marks = sorted(rng.sample(range(1, self.total_gib), k=rng.randint(0, 3)))
            ends = [0, *marks, self.total_gib]
            wanted: dict[str, int] = {}
            for begin, end in pairwise(ends):
                self.number += 1
                wanted[f"{self.project}-{self.number:04d}-0000-4000"] = end - begin
            gone = [change(u, n, "superseded", old="confirmed") for u, n in self.held.items()]
            new = [change(uuid, amount) for uuid, amount in wanted.items()]
            outcome = decide({self.project: {RAM: [*gone, *new]}}, zone=ZONE)
            assert outcome.rejection_reason == "", outcome
            self.held = wanted
            return "cut"


def build_zone() -> dict[str, Limes]:
    make_group("hana_1", flavors=[("small", 1024, 1), ("large", 4096, 4)])
    kind = flavor("m1.small", vcpus=1, gib=1)
    hosts(" ".join(NAMES), zone=ZONE, vcpus=16, gib=16)
    for number in range(4):
        vm(f"plain-{number}@{NAMES[number]}", of=kind)
    require(**{"m1.*": 1})
    SlotCheck.objects.create(zone=ZONE, fully_checked_at=timezone.now())
    limes = {name: Limes(name, total) for name, total in PROJECTS.items()}
    for one in limes.values():
        one.cut(random.Random(1))  # noqa: S311 - a reproducible load, nothing secret
    return limes


def book(rng: random.Random, project: str, number: int) -> str:
    """Put a VM into all slots that its project has on some host, the best ones first."""
    slots = Reservation.objects.filter(
        kind=ReservationKind.COMMITTED, project_id=project, target_host__isnull=False
    )
    chosen = rng.choice(list(slots.order_by("pk").values_list("target_host_id", flat=True)))
    ids = list(slots.filter(target_host_id=chosen).order_by("pk").values_list("pk", flat=True))
    size = gib(rng.randint(1, 7))
    done = expect_in_slots(
        ids, f"{project}-vm-{number}", size, now=timezone.now(), project_id=project
    )
    return "booked" if done is Booking.BOOKED else "not booked"


def test_splits_beside_vms_compaction_and_failover_never_lose_or_double_room() -> None:
    limes = build_zone()
    rebuild_host_capacity()
    assert_ledger_holds()

    def fire(number: int) -> str:
        rng = random.Random(number)  # noqa: S311 - a reproducible load, nothing secret
        project = rng.choice(sorted(PROJECTS))
        work: list[Callable[[], str]] = [
            lambda: limes[project].cut(rng),
            lambda: book(rng, project, number),
            lambda: book(rng, project, number),
            lambda: _done("left", forget_in_slots([f"{project}-vm-{rng.randint(0, number)}"])),
            lambda: _done("placed", place(f"payg-{number}", rng.sample(NAMES, k=3), max_held=1)),
            lambda: _done(
                "compacted", compact_zone(ZONE, actor=ACTOR, request_id="c", now=timezone.now())
            ),
            lambda: _done("covered", reconcile_zone(ZONE, request_id="f")),
        ]
        try:
            return work[number % len(work)]()
        except Busy:
            return "busy"

    with Sessions(6) as pool:
        answers = Counter(pool.map(fire, range(ROUNDS)))

    assert {"cut", "booked", "placed", "covered"} <= set(answers), answers
    assert_ledger_holds()
    assert rebuild_host_capacity() == 0
    for project, total_gib in PROJECTS.items():
        slots = Reservation.objects.filter(kind=ReservationKind.COMMITTED, project_id=project)
        assert slots.aggregate(sum=Sum("memory_bytes"))["sum"] == total_gib << 30
        assert not slots.filter(target_host__isnull=True).exists()
        live = Commitment.objects.filter(project_id=project, state="confirmed")
        assert set(live.values_list("ready_reason", flat=True)) == {"Accepted"}
    assert Reservation.objects.filter(is_divided=True).exists()
    assert_vms_are_on_one_host()


def assert_vms_are_on_one_host() -> None:
    inside = ReservationAllocation.objects.filter(reservation__kind=ReservationKind.COMMITTED)
    for uuid in set(inside.values_list("vm_uuid", flat=True)):
        rows = inside.filter(vm_uuid=uuid)
        assert len(set(rows.values_list("reservation__target_host_id", flat=True))) == 1
        assert len(set(rows.values_list("reservation__project_id", flat=True))) == 1


def _done(word: str, _: object) -> str:
    return word
