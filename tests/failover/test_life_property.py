"""Whatever VMs, hosts and other writers do, the rows keep the rules (spec failover, 17.1, 18.4).

The real services on real rows: runs of the loop, validation, evacuations, and in between VMs that
come, go, move, stop and are resized, and hosts that die, return, refuse VMs and change zones.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from itertools import combinations

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationAllocation
from failover.drill_models import EvacuationMove, MoveState
from failover.models import FailoverDecision, FailoverReservation, FailoverZone
from failover.services.evacuation import plan_evacuations, settle_evacuations, start_move
from failover.services.loop import reconcile_zone
from failover.services.validation import validate_zone
from hosts.models import Host, Instance
from journal.actors import Actor
from tests.domain.failover.oracle import (
    five_rules_hold,
    private_survivors,
    simultaneous_places,
)
from tests.examples import few, is_thorough
from tests.failover.zones import flavor, hosts, plain_slots, require, vm
from tests.ledger import assert_rooms_add_up
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db

GIB = 1 << 30
HOSTS = tuple(f"h{number}" for number in range(6))
HOST_GIB = 40
SIZES_GIB = {"small": 2, "large": 4}
MOST_VMS = 7
ZONE = "az-a"
ACTOR = Actor(name="test")

names = st.sampled_from(HOSTS)
numbers = st.integers(0, MOST_VMS - 1)


class Zone(RuleBasedStateMachine):
    """One zone over time."""

    def __init__(self) -> None:
        super().__init__()
        self.savepoint = transaction.atomic()
        # Like the blocks of a test case: services may open durable ones inside.
        self.savepoint._from_testcase = True  # type: ignore[attr-defined]  # set by Django itself
        self.savepoint.__enter__()
        reset_host_table()
        self.now = timezone.now()
        self.required = 0

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.savepoint.__exit__(None, None, None)
        reset_host_table()

    @initialize(required=st.sampled_from([1, 2, 2]))
    def build(self, required: int) -> None:
        self.required = required
        hosts(" ".join(HOSTS), vcpus=64, gib=HOST_GIB)
        require(any=required)
        for number in range(4):
            self.vm_starts(number, HOSTS[number], "small")

    def room_gib(self, host: str) -> int:
        room = HostCapacity.objects.get(host__name=host)
        taken = room.allocated_memory_bytes + room.failover_memory_bytes
        return int((room.effective_memory_bytes - taken) // GIB)

    def recount(self) -> None:
        rebuild_host_capacity()

    @rule(number=numbers, host=names, kind=st.sampled_from(sorted(SIZES_GIB)))
    def vm_starts(self, number: int, host: str, kind: str) -> None:
        is_there = Instance.objects.filter(openstack_id=f"vm-{number}").exists()
        if not is_there and self.room_gib(host) >= SIZES_GIB[kind]:
            vm(f"vm-{number}@{host}", of=flavor(kind, vcpus=1, gib=SIZES_GIB[kind]))
            self.recount()

    @rule(number=numbers)
    def vm_vanishes(self, number: int) -> None:
        Instance.objects.filter(openstack_id=f"vm-{number}").delete()
        self.recount()

    @rule(number=numbers, host=names)
    def vm_moves(self, number: int, host: str) -> None:
        if self.room_gib(host) >= max(SIZES_GIB.values()):
            target = Host.objects.get(name=host)
            Instance.objects.filter(openstack_id=f"vm-{number}").update(host=target)
            self.recount()

    @rule(number=numbers, kind=st.sampled_from(sorted(SIZES_GIB)))
    def vm_is_resized(self, number: int, kind: str) -> None:
        row = Instance.objects.filter(openstack_id=f"vm-{number}", host__isnull=False).first()
        if row is None or row.host is None:
            return
        if self.room_gib(row.host.name) >= SIZES_GIB[kind]:
            Instance.objects.filter(pk=row.pk).update(
                memory_bytes=SIZES_GIB[kind] * GIB, flavor_name=kind
            )
            self.recount()

    @rule(number=numbers, status=st.sampled_from(["ACTIVE", "SHUTOFF", "ERROR"]))
    def vm_changes_status(self, number: int, status: str) -> None:
        Instance.objects.filter(openstack_id=f"vm-{number}").update(
            status=status, nova_updated_at=self.now
        )

    @rule(host=names)
    def host_dies_and_is_evacuated(self, host: str) -> None:
        Host.objects.filter(name=host).update(state="down")
        plan_evacuations(actor=ACTOR, request_id="die", now=self.now)
        for move in EvacuationMove.objects.filter(state=MoveState.PLANNED, from_host__name=host):
            start_move(move.vm_uuid, now=self.now)
            Instance.objects.filter(openstack_id=move.vm_uuid).update(host_id=move.target_host_id)
        settle_evacuations(actor=ACTOR, request_id="die", now=self.now)
        self.recount()

    @rule(host=names)
    def host_dies(self, host: str) -> None:
        Host.objects.filter(name=host).update(state="down")
        plan_evacuations(actor=ACTOR, request_id="die", now=self.now)

    @rule(host=names)
    def host_returns(self, host: str) -> None:
        Host.objects.filter(name=host).update(state="up", zone=ZONE, allowed_projects=[])
        self.recount()

    @rule(host=names)
    def host_leaves_the_zone(self, host: str) -> None:
        Host.objects.filter(name=host).update(zone="az-z")
        self.recount()

    @rule(host=names)
    def host_refuses_everybody(self, host: str) -> None:
        Host.objects.filter(name=host).update(allowed_projects=["nobody"])

    @rule()
    def time_passes(self) -> None:
        self.now += timedelta(hours=2)
        settle_evacuations(actor=ACTOR, request_id="settle", now=self.now)

    @rule()
    def scheduler_is_asked_again(self) -> None:
        FailoverReservation.objects.update(next_validation_at=self.now - timedelta(seconds=1))
        validate_zone(ZONE, request_id="validate", now=self.now)

    @rule()
    def loop_runs(self) -> None:
        FailoverZone.objects.update(confirmed_at=self.now)
        run = reconcile_zone(ZONE, request_id="loop", now=self.now)
        if run.brake:
            FailoverZone.objects.filter(zone=ZONE).update(confirmed_at=self.now)
            run = reconcile_zone(ZONE, request_id="loop", now=self.now)
        assert not run.brake
        self.assert_clean()
        self.assert_survivable()
        self.assert_everybody_has_what_is_owed_or_a_reason()

    def assert_clean(self) -> None:
        """What a run leaves: nobody is where he was not, nothing is empty."""
        consuming = FailoverReservation.objects.filter(state="consuming")
        kept = set(consuming.values_list("reservation_id", flat=True))
        users = ReservationAllocation.objects.exclude(reservation_id__in=kept)
        where = dict(Instance.objects.values_list("openstack_id", "host_id"))
        for user in users.select_related("reservation__target_host", "vm_host"):
            target = user.reservation.target_host
            assert where[user.vm_uuid] == user.vm_host_id
            assert target is not None
            assert user.vm_host is not None
            assert target.zone == user.vm_host.zone == ZONE
        empty = Reservation.objects.filter(allocations__isnull=True).exclude(pk__in=kept)
        assert not empty.exists()

    def assert_survivable(self) -> None:
        """Every failure of one and of two more hosts leaves room for whoever is covered."""
        dead = set(Host.objects.exclude(state="up", zone=ZONE).values_list("name", flat=True))
        active = set(
            FailoverReservation.objects.filter(state="active").values_list("name", flat=True)
        )
        slots = plain_slots()
        usable = [slot for slot in slots if slot.name in active and slot.host not in dead]
        gib = {
            uuid: memory // GIB
            for uuid, memory in Instance.objects.values_list("openstack_id", "memory_bytes")
        }
        homes = {user.vm_uuid: user.host for slot in usable for user in slot.users}
        count: defaultdict[str, int] = defaultdict(int)
        for slot in usable:
            for user in slot.users:
                count[user.vm_uuid] += 1
        alive = sorted(set(HOSTS) - dead)
        for size in (1, 2):
            for failed in combinations(alive, size):
                covered = [u for u, home in homes.items() if home in failed and count[u] >= size]
                for uuid in covered:
                    assert private_survivors(usable, uuid, frozenset(failed)) >= 1
                places = simultaneous_places(usable, covered, frozenset(failed), gib)
                assert places is not None

    def assert_everybody_has_what_is_owed_or_a_reason(self) -> None:
        have: defaultdict[str, int] = defaultdict(int)
        active = ReservationAllocation.objects.filter(reservation__failover__state="active")
        for uuid in active.values_list("vm_uuid", flat=True):
            have[uuid] += 1
        short = set(FailoverDecision.objects.values_list("vm_uuid", flat=True))
        owed = Instance.objects.filter(status="ACTIVE", host__zone=ZONE)
        for uuid in owed.values_list("openstack_id", flat=True):
            assert have[uuid] >= self.required or uuid in short

    @invariant()
    def rules_hold(self) -> None:
        assert five_rules_hold(plain_slots())

    @invariant()
    def rooms_add_up(self) -> None:
        assert_rooms_add_up()

    @invariant()
    def nobody_is_recorded_where_he_is_not(self) -> None:
        where = dict(
            Instance.objects.filter(host__isnull=False).values_list("openstack_id", "host_id")
        )
        recorded: dict[str, int | None] = dict(
            ReservationAllocation.objects.values_list("vm_uuid", "vm_host_id")
        )
        for uuid, host_id in recorded.items():
            assert where.get(uuid, host_id) == host_id

    @invariant()
    def nothing_is_half_there(self) -> None:
        held = set(Reservation.objects.filter(kind="failover").values_list("pk", flat=True))
        known = FailoverReservation.objects.values_list("reservation_id", flat=True)
        assert held == set(known)


def test_rules_and_survival_hold_whatever_happens() -> None:
    run_state_machine_as_test(
        Zone,
        settings=few(
            8,
            stateful_step_count=40 if is_thorough() else 20,
            suppress_health_check=list(HealthCheck),
        ),
    )
