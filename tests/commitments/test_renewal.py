from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from threading import Thread
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from capacity.groups.reading import load_group_definitions
from capacity.groups.refreshing import FlavorGroupRefresh, refresh_flavor_groups
from capacity.ledger.vms import Booking
from capacity.models import FlavorGroup, HostCapacity, Reservation
from commitments.domain.admission import AdmissionPlan
from commitments.domain.renewal import outdated_slots
from commitments.domain.statuses import ResourceType
from commitments.models import Commitment, CommitmentEvent
from commitments.selectors.outdated_slots import commitments_with_outdated_slots
from commitments.services import repair as repair_service
from commitments.services.admission import plan_renewing, read_slots
from commitments.services.nudges import nudge_outdated, nudge_outdated_of_groups
from commitments.services.repair import RepairReport, repair_due_commitments
from commitments.services.verification import verify_slots
from hosts.models import Flavor, Host
from journal.actors import Actor, task_actor
from scheduling.resources import GIB, ResourceVector
from tests.factories import make_commitment, make_flavor, make_group, make_host, make_slot, make_vm
from tests.ledger import expect_in_slot

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
MOMENT = timedelta(seconds=1)
FAR = datetime(2100, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def cloud() -> None:
    make_group("hana_1", flavors=[("small", 2048, 2), ("large", 8192, 8)])
    make_host("h1", zone="az-a", memory_gib=16, vcpus=32)
    make_host("h2", zone="az-a", memory_gib=16, vcpus=32)
    refresh()


def refresh() -> FlavorGroupRefresh:
    return refresh_flavor_groups(actor=Actor(name="test"), request_id="refresh")


def hold(uuid: str, gib: int) -> None:
    """Make a commitment that holds all its slots."""
    Commitment.objects.create(
        commitment_uuid=uuid,
        flavor_group_name="hana_1",
        resource_type=ResourceType.MEMORY,
        requested_amount=gib * GIB,
        zone="az-a",
        project_id="alpha",
        state="confirmed",
        end_time=FAR,
        next_reconcile_at=timezone.now(),
    )
    assert repair() == RepairReport(accepted=1)


def resize(name: str, gib: int, vcpus: int) -> FlavorGroupRefresh:
    Flavor.objects.filter(name=name).update(memory_bytes=gib * GIB, vcpus=vcpus)
    return refresh()


def repair(now: datetime | None = None) -> RepairReport:
    return repair_due_commitments(
        actor=task_actor("test"), request_id="repair", now=now or timezone.now() + MOMENT
    )


def sizes(uuid: str = A) -> list[tuple[str, int, int]]:
    rows = Reservation.objects.filter(commitment__commitment_uuid=uuid).order_by("slot_index")
    return [(row.resource_name, row.memory_bytes // GIB, row.vcpus) for row in rows]


def due() -> set[str]:
    rows = Commitment.objects.filter(next_reconcile_at__lte=timezone.now() + MOMENT)
    return set(rows.values_list("commitment_uuid", flat=True))


def ledger_is_exact() -> bool:
    held = sum(Reservation.objects.values_list("blocked_memory_bytes", flat=True))
    booked = sum(HostCapacity.objects.values_list("committed_memory_bytes", flat=True))
    return held == booked == sum(Reservation.objects.values_list("memory_bytes", flat=True))


def rows_of_everything() -> list[Any]:
    return [
        list(Reservation.objects.order_by("pk").values()),
        list(Commitment.objects.order_by("pk").values()),
        list(HostCapacity.objects.order_by("pk").values()),
        CommitmentEvent.objects.count(),
    ]


class TestTrigger:
    def test_commitments_of_a_resized_group_become_due_once(self) -> None:
        make_group("other", flavors=[("tiny", 1024, 1)])
        hold(A, 4)
        assert resize("small", 4, 4).resized == ("hana_1",)
        assert due() == {A}
        repair()
        assert refresh().resized == ()
        assert due() == set()

    def test_commitments_without_slots_of_the_old_size_do_not(self) -> None:
        hold(A, 4)
        hold(B, 8)
        resize("small", 4, 4)
        assert due() == {A}

    def test_other_facts_of_flavors_make_nothing_due(self) -> None:
        hold(A, 4)
        flavor = Flavor.objects.get(name="small")
        flavor.extra_specs = {**flavor.extra_specs, "label": "new"}
        flavor.save()
        result = refresh()
        assert (result.has_changed, result.resized, due()) == (True, (), set())

    def test_a_new_flavor_makes_nothing_due(self) -> None:
        hold(A, 4)
        make_flavor("huge", 16384, 16, group="hana_1")
        assert refresh().resized == ("hana_1",)
        assert due() == set()

    def test_sizes_that_were_not_known_before_make_nothing_due(self) -> None:
        hold(A, 4)
        FlavorGroup.objects.update(flavor_sizes="")
        assert resize("small", 4, 4).resized == ()
        assert due() == set()


class TestRenewal:
    def test_empty_slots_are_replaced_and_the_total_is_held(self) -> None:
        hold(A, 12)
        assert sizes() == [("large", 8, 8), ("small", 2, 2), ("small", 2, 2)]
        resize("small", 4, 4)
        assert repair() == RepairReport(accepted=1)
        assert sizes() == [("large", 8, 8), ("small", 4, 4)]
        assert Commitment.objects.get().ready_reason == "Accepted"
        assert not Reservation.objects.filter(target_host__isnull=True).exists()
        assert ledger_is_exact()
        event = CommitmentEvent.objects.first()
        assert event is not None
        assert event.reason == (
            "flavors changed size: 2 empty slot(s) of old sizes were replaced by 1"
        )

    def test_a_second_pass_writes_nothing(self) -> None:
        hold(A, 12)
        resize("small", 4, 4)
        repair()
        before = rows_of_everything()
        refresh()
        assert nudge_outdated("az-a", timezone.now()) == 0
        assert repair().handled == 0
        assert rows_of_everything() == before

    def test_slots_of_a_flavor_that_left_the_group_are_replaced(self) -> None:
        hold(A, 8)
        Flavor.objects.filter(name="large").update(extra_specs={})
        assert refresh().resized == ("hana_1",)
        repair()
        assert sizes() == [("small", 2, 2)] * 4

    def test_each_commitment_is_renewed_for_itself(self) -> None:
        hold(A, 4)
        hold(B, 4)
        resize("small", 4, 4)
        assert repair() == RepairReport(accepted=2)
        assert (sizes(A), sizes(B)) == ([("small", 4, 4)], [("small", 4, 4)])

    @pytest.mark.parametrize("state", ["confirmed", "expected"])
    def test_slots_with_vms_stay_until_they_are_empty(self, state: str) -> None:
        hold(A, 4)
        used = Reservation.objects.order_by("pk")[0]
        make_vm(host=used.target_host, slot=used, slot_state=state, memory_gib=1)
        before = Reservation.objects.filter(pk=used.pk).values().get()
        resize("small", 4, 4)
        repair()
        assert sizes() == [("small", 2, 2), ("small", 2, 4)]
        assert Reservation.objects.filter(pk=used.pk).values().get() == before
        used.allocations.all().delete()
        assert nudge_outdated("az-a", timezone.now()) == 1
        repair()
        assert sizes() == [("small", 4, 4)]

    @pytest.mark.parametrize(
        ("ahead", "nudged"),
        [
            pytest.param(timedelta(0), 0, id="the longest delay"),
            pytest.param(timedelta(days=1), 1, id="a clock a day ahead"),
        ],
    )
    def test_a_retry_further_ahead_than_the_longest_delay_is_due(
        self, ahead: timedelta, nudged: int
    ) -> None:
        hold(A, 4)
        resize("small", 4, 4)
        now = timezone.now()
        longest = timedelta(seconds=settings.HEADROOM.retry.cap_seconds)
        Commitment.objects.update(next_reconcile_at=now + longest + ahead)
        assert nudge_outdated("az-a", now) == nudged
        repair()
        assert sizes() == ([("small", 4, 4)] if nudged else [("small", 2, 2)] * 2)

    def test_a_slot_on_its_way_to_another_host_stays(self) -> None:
        hold(A, 2)
        Reservation.objects.update(confirmed_host=None)
        resize("small", 4, 4)
        assert (due(), sizes()) == (set(), [("small", 2, 2)])

    def test_the_retired_definition_of_a_group_renews_nothing(self) -> None:
        hold(A, 2)
        FlavorGroup.objects.update(is_retired=True, resized_at=timezone.now())
        Flavor.objects.filter(name="small").update(vcpus=1)
        assert nudge_outdated_of_groups(["hana_1"], timezone.now()) == 0

    def test_the_periodic_look_finds_slots_that_nobody_was_told_of(self) -> None:
        hold(A, 4)
        resize("small", 4, 4)
        Commitment.objects.update(next_reconcile_at=None)
        report = verify_slots(actor=task_actor("test"), request_id="look", is_full=True)
        assert (report.nudged, due()) == (1, {A})


@pytest.mark.django_db(transaction=True)
def test_a_vm_that_comes_into_an_old_slot_meanwhile_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold(A, 4)
    resize("small", 4, 4)
    slot = Reservation.objects.order_by("pk")[0]
    booked = []

    def book() -> None:
        vm = ResourceVector(memory_bytes=GIB, vcpus=1)
        try:
            booked.append(expect_in_slot(slot.pk, "vm-1", vm, now=timezone.now()))
        finally:
            connection.close()

    def plan_and_be_late(*args: Any, **options: Any) -> AdmissionPlan:
        plan = plan_renewing(*args, **options)
        if not booked:
            thread = Thread(target=book)
            thread.start()
            thread.join()
        return plan

    monkeypatch.setattr(repair_service, "plan_renewing", plan_and_be_late)
    assert repair() == RepairReport(accepted=1)
    assert booked == [Booking.BOOKED]
    assert sizes() == [("small", 2, 2), ("small", 2, 4)]
    assert slot.allocations.get().vm_uuid == "vm-1"


class TestNoRoom:
    """Two hosts of 16 GiB and 32 vCPUs cannot take slots of more vCPUs than they have."""

    @pytest.fixture(autouse=True)
    def outgrown(self) -> None:
        hold(A, 4)
        resize("small", 4, 64)

    def test_old_slots_stay_exactly_as_they_are(self) -> None:
        before = list(Reservation.objects.order_by("pk").values())
        rooms = list(HostCapacity.objects.order_by("pk").values())
        events = CommitmentEvent.objects.count()
        assert repair() == RepairReport(accepted=1)
        assert list(Reservation.objects.order_by("pk").values()) == before
        assert list(HostCapacity.objects.order_by("pk").values()) == rooms
        assert Commitment.objects.get().ready_reason == "Accepted"
        assert CommitmentEvent.objects.count() == events

    def test_it_is_tried_again_with_a_growing_delay(self) -> None:
        resized_at = FlavorGroup.objects.get().resized_at
        assert resized_at is not None
        now, delays = resized_at, []
        Commitment.objects.update(next_reconcile_at=resized_at)
        for _ in range(7):
            repair(now)
            next_at = Commitment.objects.get().next_reconcile_at
            assert next_at is not None
            delays.append(int((next_at - now).total_seconds()))
            now = next_at
        assert delays == [60, 120, 240, 480, 960, 1800, 1800]

    def test_the_periodic_look_leaves_it_to_its_timer(self) -> None:
        repair()
        assert nudge_outdated("az-a", timezone.now()) == 0

    def test_room_that_appears_is_taken(self) -> None:
        repair()
        make_host("h3", zone="az-a", memory_gib=16, vcpus=64)
        row = Commitment.objects.get()
        assert row.next_reconcile_at is not None
        assert repair(row.next_reconcile_at) == RepairReport(accepted=1)
        assert sizes() == [("small", 4, 64)]
        row.refresh_from_db()
        assert row.next_reconcile_at == row.end_time
        assert ledger_is_exact()


def test_amounts_stay_whole_bytes_when_the_smallest_flavor_and_so_the_unit_changes() -> None:
    hold(A, 6)
    resize("small", 4, 4)
    repair()
    row = Commitment.objects.get()
    assert (row.requested_amount, row.accepted_amount) == (6 * GIB, 6 * GIB)
    assert sizes() == [("small", 4, 4), ("small", 2, 4)]
    assert not commitments_with_outdated_slots([row.pk])


@pytest.mark.parametrize("seed", range(40))
def test_the_database_finds_what_the_planner_would_renew(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a test
    FlavorGroup.objects.update(resized_at=timezone.now())
    row = make_commitment(A, amount_gib=1)
    host = Host.objects.get(name="h1")
    for _ in range(random.randint(1, 3)):
        make_slot(
            row,
            random.choice([host, host, None]),
            flavor_name=random.choice(["small", "small", "large", "gone"]),
            memory_gib=random.choice([1, 2, 2, 8]),
            vcpus=random.choice([2, 2, 8]),
        )
    if random.random() < 0.3:
        make_vm(host=host, slot=row.slots.order_by("pk")[0], slot_state="expected", memory_gib=1)
    views = read_slots([row]).by_commitment[row.pk]
    is_outdated = bool(outdated_slots(views, load_group_definitions()["hana_1"]))
    assert commitments_with_outdated_slots([row.pk]) == ({row.pk} if is_outdated else set())
