"""Whatever Limes, Nova, hosts and time do, promises and the ledger hold (issue: state machine)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import AllocationState, HostCapacity, Reservation, ReservationAllocation
from commitments.models import Commitment, InstanceAssignment
from commitments.services.repair import repair_due_commitments
from commitments.services.usage import reconcile_project_usage
from commitments.services.verification import verify_slots
from hosts.models import Host, Instance
from journal.actors import task_actor
from journal.errors import InvalidInput
from scheduling.resources import GIB
from tests.commitments.change_requests import RAM, change, decide
from tests.examples import is_thorough
from tests.factories import make_group, make_host, make_vm
from tests.ledger import assert_rooms_add_up, fingerprint
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db

PROJECTS = ("alpha", "beta")
OTHER_RAM = "hw_version_other_ram"
GROUPS = {RAM: "hana_1", OTHER_RAM: "other"}
FLAVORS = {"small": ("hana_1", 2), "large": ("hana_1", 4), "odd": ("other", 2)}
ZONE_OF_HOST = {"a1": "az-a", "a2": "az-a", "a3": "az-a", "b1": "az-b"}
ZONES = ("az-a", "az-b")
HOST_GIB = 12
COMMITMENTS = {f"commitment-{n}": zone for n, zone in enumerate(["az-a", "az-a", "az-a", "az-b"])}
VMS = tuple(f"vm-{n}" for n in range(6))
LIVE = ("pending", "guaranteed", "confirmed")
ACTIVE = LIVE[1:]
FINAL = ("superseded", "expired")
MOST_ROUNDS = 6
USAGE_TABLES = (
    "commitments_instanceassignment",
    "commitments_assignmentperiod",
    "commitments_projectusage",
)
ACTOR = task_actor("test")

uuids = st.sampled_from(sorted(COMMITMENTS))
projects = st.sampled_from(PROJECTS)
resources = st.sampled_from(sorted(GROUPS))
amounts = st.integers(min_value=1, max_value=14)
vms = st.sampled_from(VMS)
host_names = st.sampled_from(sorted(ZONE_OF_HOST))


@dataclass(slots=True)
class Wanted:
    """What Limes, or the syncer, was last told is stored for a commitment."""

    project: str
    resource: str
    gib: int
    state: str
    end: datetime


def held_by(row: Commitment) -> list[tuple[Any, ...]]:
    """Return the slots of a commitment: which, how large, and where."""
    slots = Reservation.objects.filter(commitment=row).order_by("pk")
    return list(slots.values_list("pk", "memory_bytes", "vcpus", "target_host_id"))


def coverage() -> dict[str, list[str]]:
    """Return which VMs every commitment covers, in order, as it is stored."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    stored = InstanceAssignment.objects.order_by("commitment_id", "position")
    for uuid, vm_uuid in stored.values_list("commitment__commitment_uuid", "vm_uuid"):
        found[uuid].append(vm_uuid)
    return dict(found)


def first_fit(now: datetime) -> dict[str, list[str]]:
    """Return which VMs every commitment should cover: a slow reading of spec commitments, 14."""
    terms = []
    for row in Commitment.objects.exclude(accepted_spec=None):
        spec = row.accepted_spec or {}
        start, end = (
            datetime.fromisoformat(spec[key]) if spec.get(key) else None
            for key in ("startTime", "endTime")
        )
        is_over = row.state not in ACTIVE or (row.end_time is not None and row.end_time < now)
        has_begun = start is None or start <= now
        if spec["state"] not in ACTIVE or is_over or not has_begun or (end and end < now):
            continue
        place = (row.project_id, spec["availabilityZone"], spec["flavorGroupName"])
        order = (start is not None, start, -spec["amount"], row.commitment_uuid)
        terms.append((order, place, row.commitment_uuid))
    left = {
        row.commitment_uuid: row.accepted_spec["amount"]
        for row in Commitment.objects.exclude(accepted_spec=None)
        if row.accepted_spec
    }
    covered: defaultdict[str, list[str]] = defaultdict(list)
    vms = Instance.objects.filter(host__isnull=False).select_related("host")
    for vm in sorted(
        vms, key=lambda one: (one.nova_created_at, -one.memory_bytes, one.openstack_id)
    ):
        assert vm.host is not None
        its_place = (vm.project_id, vm.host.zone, FLAVORS[vm.flavor_name][0])
        for _, place, uuid in sorted(terms):
            if place == its_place and left[uuid] >= vm.memory_bytes:
                left[uuid] -= vm.memory_bytes
                covered[uuid].append(vm.openstack_id)
                break
    return dict(covered)


class Life(RuleBasedStateMachine):
    """Commitments, VMs and hosts over time, with what must be stored of each."""

    def __init__(self) -> None:
        super().__init__()
        self.savepoint = transaction.atomic()
        # Like the blocks of a test case: services may open durable ones inside.
        self.savepoint._from_testcase = True  # type: ignore[attr-defined]  # set by Django itself
        self.savepoint.__enter__()
        reset_host_table()
        self.now = timezone.now()
        self.model: dict[str, Wanted] = {}
        self.said: dict[str, Any] = {}  # the last request about a commitment that was accepted

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.savepoint.__exit__(None, None, None)
        reset_host_table()

    @initialize()
    def build(self) -> None:
        make_group("hana_1", flavors=[("small", 2048, 2), ("large", 4096, 4)])
        make_group("other", flavors=[("odd", 2048, 2)])
        for name, zone in ZONE_OF_HOST.items():
            make_host(name, zone=zone, memory_gib=HOST_GIB, vcpus=HOST_GIB)

    # Limes

    @rule(
        uuid=uuids,
        owner=st.tuples(projects, resources),
        gib=amounts,
        state=st.sampled_from(["planned", *LIVE, *FINAL]),
        hours=st.sampled_from([1, 48]),
    )
    def limes_changes(
        self, uuid: str, owner: tuple[str, str], gib: int, state: str, hours: int
    ) -> None:
        project, resource = owner
        known = self.model.get(uuid)
        if known is not None:
            project, resource = known.project, known.resource
        elif state in FINAL:
            return
        wanted = Wanted(project, resource, gib, state, self.now + timedelta(hours=hours))
        one = change(uuid, gib, state, old=known.state if known else None, expires_at=wanted.end)
        self.ask(uuid, {project: {resource: [one]}}, wanted)

    @rule(uuid=uuids, project=projects)
    def limes_moves(self, uuid: str, project: str) -> None:
        known = self.model.get(uuid)
        if known is None or known.project == project:
            return
        gone = change(uuid, known.gib, None, old=known.state)
        there = change(uuid, known.gib, known.state, expires_at=known.end)
        wanted = Wanted(project, known.resource, known.gib, known.state, known.end)
        by_project = {known.project: {known.resource: [gone]}, project: {known.resource: [there]}}
        if known.state in FINAL:
            before = fingerprint(*USAGE_TABLES)
            with pytest.raises(InvalidInput, match="appears with final status"):
                decide(by_project, zone=COMMITMENTS[uuid], now=self.now)
            assert fingerprint(*USAGE_TABLES) == before
            return
        self.ask(uuid, by_project, wanted)

    @rule(uuid=uuids)
    def limes_deletes(self, uuid: str) -> None:
        known = self.model.get(uuid)
        if known is not None:
            gone = change(uuid, known.gib, None, old=known.state)
            self.ask(uuid, {known.project: {known.resource: [gone]}}, None)

    def ask(self, uuid: str, by_project: Any, wanted: Wanted | None) -> None:
        """Send a change; a no must leave everything exactly as it was."""
        before = fingerprint(*USAGE_TABLES)
        outcome = decide(by_project, zone=COMMITMENTS[uuid], now=self.now)
        if outcome.rejection_reason:
            assert fingerprint(*USAGE_TABLES) == before
        elif wanted is None:
            self.model.pop(uuid)
        else:
            self.model[uuid] = wanted
            self.said[uuid] = by_project

    @rule(uuid=uuids)
    def limes_repeats_what_it_said_and_nothing_is_written(self, uuid: str) -> None:
        known = self.model.get(uuid)
        if known is None or known.end <= self.now or uuid not in self.said:
            return
        self.settle(COMMITMENTS[uuid])
        row = Commitment.objects.get(commitment_uuid=uuid)
        if row.ready_reason not in {"Accepted", "Planned"}:
            return
        before = fingerprint(*USAGE_TABLES)
        outcome = decide(self.said[uuid], zone=COMMITMENTS[uuid], now=self.now)
        assert outcome.rejection_reason == ""
        assert fingerprint(*USAGE_TABLES) == before

    @rule(uuid=uuids, gib=amounts, may_reject=st.booleans())
    def syncer_changes(self, uuid: str, gib: int, may_reject: bool) -> None:
        known = self.model.get(uuid)
        if known is None or known.state not in LIVE:
            return
        self.settle(COMMITMENTS[uuid])
        row = Commitment.objects.get(commitment_uuid=uuid)
        held, accepted = held_by(row), (row.accepted_spec, row.accepted_amount)
        is_whole = row.ready_reason == "Accepted"
        Commitment.objects.filter(pk=row.pk).update(
            requested_amount=gib * GIB,
            allow_rejection=may_reject,
            generation=row.generation + 1,
            next_reconcile_at=self.now,
        )
        known.gib = gib
        self.said.pop(uuid, None)
        self.settle(COMMITMENTS[uuid])
        row.refresh_from_db()
        if is_whole and row.ready_reason == "Rejected":
            assert held_by(row) == held
            assert (row.accepted_spec, row.accepted_amount) == accepted

    # Nova

    @rule(uuid=vms, project=projects, flavor=st.sampled_from(sorted(FLAVORS)), host=host_names)
    def vm_boots(self, uuid: str, project: str, flavor: str, host: str) -> None:
        if Instance.objects.filter(openstack_id=uuid).exists():
            return
        if not self.has_room_for_vm(project, flavor, host):
            return
        group, gib = FLAVORS[flavor]
        awaited = ReservationAllocation.objects.filter(vm_uuid=uuid)
        if awaited.exclude(
            reservation__project_id=project, reservation__flavor_group_name=group
        ).exists():
            return  # it was placed as another VM than this
        make_vm(
            uuid,
            Host.objects.get(name=host),
            openstack_id=uuid,
            project_id=project,
            flavor_name=flavor,
            memory_gib=gib,
            vcpus=gib,
            # After the slots that are there, which bear the database's time.
            nova_created_at=max(self.now, timezone.now()),
        )
        self.settle(ZONE_OF_HOST[host])

    @rule(uuid=vms, host=host_names)
    def vm_moves(self, uuid: str, host: str) -> None:
        vm = Instance.objects.filter(openstack_id=uuid).select_related("host").first()
        if vm is None or vm.host is None or vm.host.name == host:
            return
        if vm.host.zone != ZONE_OF_HOST[host]:
            return
        if self.has_room_for_vm(vm.project_id, vm.flavor_name, host):
            Instance.objects.filter(pk=vm.pk).update(host=Host.objects.get(name=host))
            self.settle(ZONE_OF_HOST[host])

    @rule(uuid=vms)
    def vm_is_deleted(self, uuid: str) -> None:
        if Instance.objects.filter(openstack_id=uuid).delete()[0]:
            self.settle()

    @rule(uuid=vms)
    def vm_is_expected(self, uuid: str) -> None:
        """Book a VM that never comes into a slot, as an aborted placement leaves it."""
        slot = Reservation.objects.filter(target_host__isnull=False).order_by("pk").first()
        if slot is None or Instance.objects.filter(openstack_id=uuid).exists():
            return
        if ReservationAllocation.objects.filter(vm_uuid=uuid).exists():
            return
        memory_bytes = min(GIB, slot.memory_bytes)
        taken = slot.allocations.aggregate(memory=Sum("memory_bytes"), vcpus=Sum("vcpus"))
        if (taken["memory"] or 0) + memory_bytes > slot.memory_bytes:
            return  # no placement books more than a slot has
        if (taken["vcpus"] or 0) + 1 > slot.vcpus:
            return
        ReservationAllocation.objects.create(
            reservation=slot,
            vm_uuid=uuid,
            state=AllocationState.EXPECTED,
            memory_bytes=memory_bytes,
            vcpus=1,
            since=self.now,
        )
        self.settle()

    def has_room_for_vm(self, project: str, flavor: str, host: str) -> bool:
        """Whether a host has room, with the best slot of the VM's project and group on it."""
        group, gib = FLAVORS[flavor]
        room = HostCapacity.objects.get(host__name=host)
        free = room.effective_memory_bytes - room.allocated_memory_bytes
        free -= room.committed_memory_bytes
        own = Reservation.objects.filter(
            target_host__name=host, project_id=project, flavor_group_name=group
        )
        given = 0
        for slot in own:
            used = sum(slot.allocations.values_list("memory_bytes", flat=True))
            if slot.memory_bytes > used:
                given = max(
                    given, min(slot.blocked_memory_bytes, slot.memory_bytes - used, gib * GIB)
                )
        return bool(free + given >= gib * GIB)

    # Hosts and time

    @rule(host=host_names, is_up=st.booleans())
    def host_goes_down_or_up(self, host: str, is_up: bool) -> None:
        Host.objects.filter(name=host).update(state="up" if is_up else "down")
        self.settle(ZONE_OF_HOST[host])

    @rule(minutes=st.sampled_from([1, 20, 70, 3000]))
    def time_passes(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)
        self.settle()

    @rule(number=st.integers(min_value=0, max_value=20))
    def slot_is_removed_by_hand(self, number: int) -> None:
        slots = list(Reservation.objects.order_by("pk"))
        if slots:
            slots[number % len(slots)].delete()
            self.settle()

    # What the tasks do

    def settle(self, *zones: str) -> None:
        """Run the tasks until nothing is due, as their schedule would; that has an end.

        Args:
            zones: Where something happened; anywhere when left out.
        """
        rebuild_host_capacity()
        assert any(self.are_tasks_done(zones or ZONES) for _ in range(MOST_ROUNDS))
        self.count_usage()
        assert coverage() == first_fit(self.now)

    def are_tasks_done(self, zones: tuple[str, ...]) -> bool:
        """Run the tasks; return whether they found nothing to do."""
        seen = verify_slots(actor=ACTOR, request_id="r", now=self.now, zones=zones, is_full=True)
        repaired = repair_due_commitments(actor=ACTOR, request_id="r", now=self.now)
        return not seen.events and not seen.nudged and not repaired.handled

    def count_usage(self) -> None:
        for project in PROJECTS:
            reconcile_project_usage(project, actor=ACTOR, request_id="r", now=self.now)

    @rule()
    def tasks_run_again_and_write_nothing(self) -> None:
        self.settle()
        before = fingerprint(*USAGE_TABLES)
        assert self.are_tasks_done(ZONES)
        self.count_usage()
        assert fingerprint(*USAGE_TABLES) == before

    # What must always hold

    @invariant()
    def no_host_is_over_capacity(self) -> None:
        assert_rooms_add_up()

    @invariant()
    def rows_are_what_was_asked_for(self) -> None:
        rows = {row.commitment_uuid: row for row in Commitment.objects.all()}
        assert set(rows) == set(self.model)
        for uuid, wanted in self.model.items():
            row = rows[uuid]
            assert row.project_id == wanted.project
            assert row.requested_amount == wanted.gib * GIB
            assert row.state == wanted.state
            assert row.flavor_group_name == GROUPS[wanted.resource]

    @invariant()
    def accepted_commitments_are_whole(self) -> None:
        for row in Commitment.objects.prefetch_related("slots__target_host"):
            slots = list(row.slots.all())
            held = sum(slot.memory_bytes for slot in slots)
            is_over = row.end_time is not None and row.end_time <= self.now
            if is_over:
                continue  # released by the next look at it
            if row.ready_reason == "Accepted":
                assert held == row.requested_amount == row.accepted_amount, row
                assert all(slot.target_host is not None for slot in slots), row
                assert row.state in LIVE
            elif row.ready_reason == "Rejected":
                assert held == (row.accepted_amount or 0), row
            elif row.ready_reason != "Reserving":
                assert held == 0, row
            for slot in slots:
                if row.ready_reason != "Rejected":
                    assert slot.project_id == row.project_id
                assert (slot.zone, slot.flavor_group_name) == (row.zone, row.flavor_group_name)
                if slot.target_host is not None:
                    assert slot.target_host.zone == row.zone

    @invariant()
    def slots_hold_vms_of_their_own_once(self) -> None:
        rows = ReservationAllocation.objects.filter(state=AllocationState.CONFIRMED)
        seen: set[str] = set()
        for listed in rows.select_related("reservation"):
            slot = listed.reservation
            assert listed.vm_uuid not in seen
            seen.add(listed.vm_uuid)
            vm = Instance.objects.get(openstack_id=listed.vm_uuid)
            assert vm.host_id == slot.target_host_id == listed.confirmed_host_id
            assert vm.project_id == slot.project_id
            assert FLAVORS[vm.flavor_name][0] == slot.flavor_group_name

    @invariant()
    def assignment_covers_each_vm_once_within_its_commitment(self) -> None:
        used: defaultdict[int, int] = defaultdict(int)
        covered: set[str] = set()
        vms = {vm.openstack_id: vm for vm in Instance.objects.select_related("host")}
        for one in InstanceAssignment.objects.select_related("commitment"):
            vm = vms.get(one.vm_uuid)
            if vm is None:
                continue  # assigned until the next usage run
            row = one.commitment
            assert one.vm_uuid not in covered
            covered.add(one.vm_uuid)
            assert vm.host is not None
            if row.usage_observed_generation == row.generation:
                assert vm.project_id == row.project_id
            assert FLAVORS[vm.flavor_name][0] == row.flavor_group_name
            assert vm.host.zone == row.zone
            used[row.pk] += vm.memory_bytes
        for row in Commitment.objects.filter(pk__in=used):
            if row.usage_observed_generation == row.generation:
                assert used[row.pk] <= (row.accepted_amount or 0), row


def test_promises_and_ledger_hold_whatever_happens() -> None:
    run_state_machine_as_test(
        Life,
        settings=hypothesis_settings(
            max_examples=200 if is_thorough() else 8,
            stateful_step_count=40 if is_thorough() else 20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
