from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connections
from django.utils import timezone

from capacity.guard.oversubscription import GuardPolicy, check_oversubscription
from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment, Condition
from commitments.services.repair import repair_due_commitments
from hosts.models import Host
from journal.actors import Actor
from journal.errors import Busy
from journal.models import AuditEntry
from scheduling.resources import GIB
from tests.commitments.change_requests import RAM, change, decide
from tests.concurrency.at_once import Sessions
from tests.factories import make_group, make_group_capacity, make_hosts, recount_room
from tests.ledger import assert_rooms_add_up

pytestmark = pytest.mark.django_db(transaction=True)

ACTOR = Actor(name="test")
AT_ONCE = GuardPolicy(grace_period=timedelta(0), min_check_interval=timedelta(0))


def guard() -> None:
    check_oversubscription(actor=ACTOR, request_id="req-guard", policy=AT_ONCE)


def fire(number: int) -> str:
    rng = random.Random(number)  # noqa: S311 - a reproducible load, nothing secret
    try:
        if number % 4 == 0:
            guard()
            return "guard"
        if number % 4 == 1:
            repair_due_commitments(actor=ACTOR, request_id="req-repair")
            return "repair"
        uuids = [f"bbbbbbbb-0000-4000-8000-{one:012d}" for one in range(12)]
        changes = [change(uuid, rng.randint(1, 9)) for uuid in rng.sample(uuids, k=2)]
        outcome = decide({"alpha": {RAM: changes}})
    except Busy:
        return "busy"
    else:
        return "rejected" if outcome.rejection_reason else "accepted"


def test_change_requests_repairs_and_the_guard_never_spoil_each_other() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1), ("large", 4096, 4)])
    make_group_capacity("hana_1")
    hosts = make_hosts(6, memory_gib=16, vcpus=16)
    for number in range(8):
        decide({"alpha": {RAM: [change(f"bbbbbbbb-0000-4000-8000-{number:012d}", 9)]}})
    for host in hosts[:3]:
        Host.objects.filter(pk=host.pk).update(effective_memory_bytes=6 * GIB)
        host.refresh_from_db()
        recount_room(host)
    assert any(room.committed_memory_bytes > 6 * GIB for room in HostCapacity.objects.all())
    guard()  # first sight

    with Sessions(6) as pool:
        answers = Counter(pool.map(fire, range(60)))
    guard()

    assert answers["guard"] == answers["repair"] == 15
    assert_rooms_add_up()  # and no host is over-subscribed any more
    for row in Commitment.objects.filter(ready_reason=Condition.ACCEPTED):
        homeless = row.slots.filter(target_host__isnull=True)
        assert not homeless or row.next_reconcile_at is not None, "evicted slots are due"
    actions = Counter(AuditEntry.objects.values_list("action", flat=True))
    assert actions["slot_moved"] + actions["slot_evicted"] > 0


def test_guards_side_by_side_evict_a_host_once() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1), ("large", 4096, 4)])
    make_group_capacity("hana_1")
    (host,) = make_hosts(1, memory_gib=16, vcpus=16)
    decide({"alpha": {RAM: [change("bbbbbbbb-0000-4000-8000-000000000001", 16)]}})
    host.effective_memory_bytes = 12 * GIB
    host.save()
    room = recount_room(host)
    HostCapacity.objects.filter(pk=room.pk).update(
        oversubscribed_since=timezone.now() - timedelta(hours=1)
    )

    def once(_number: int) -> None:
        try:
            check_oversubscription(actor=ACTOR, request_id="req-guard", policy=GuardPolicy())
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(once, range(4)))

    left = sum(row.memory_bytes for row in Reservation.objects.filter(target_host=host))
    assert left == 12 * GIB
    assert AuditEntry.objects.filter(action="slot_evicted").count() == 1
    assert_rooms_add_up()
