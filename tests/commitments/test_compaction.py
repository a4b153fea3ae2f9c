"""Empty slots leave hosts so that these become free (spec commitments, 25 item 9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone
from prometheus_client import REGISTRY

from capacity.ledger.rooms import lock_reservations, rebuild_host_capacity
from capacity.models import HostCapacity, Reservation, ReservationKind
from capacity.nova import slot_requests
from commitments import tasks
from commitments.models import (
    Commitment,
    CommitmentEvent,
    CompactionOutcome,
    CompactionRun,
    SlotCheck,
    SyncOutcome,
    SyncRun,
)
from commitments.services.compaction import LOCK_NAME, Compaction, compact_zone
from commitments.services.compaction_plans import PlannedCompaction, plan_zone
from commitments.services.import_runs import SOURCE
from hosts.models import Host, HostState
from journal.actors import task_actor
from journal.leases import held_lease
from journal.metrics import metric_name
from journal.models import AuditEntry, Outbox
from scheduling.engine import SLOT_PIPELINE
from scheduling.evaluation import CompiledPipeline
from scheduling.resources import GIB, ResourceVector
from scheduling.weighers import kvm_binpack
from tests.commitments.slot_worlds import accepted_slot, put_into, verify, vm_on
from tests.commitments.verification.world import use_slots
from tests.factories import make_commitment, make_group, make_host, make_reservation, make_slot
from tests.ledger import assert_ledger_holds, database_fingerprint, expect_in_slot
from tests.scraping import scrape

pytestmark = pytest.mark.django_db

ZONE = "az-a"


@pytest.fixture(autouse=True)
def _group() -> None:
    make_group("hana_1", flavors=[("small", 4096, 1), ("huge", 960 * 1024, 80)])


@pytest.fixture
def used() -> Host:
    """A host with a VM, that has room for a slot of 480 GiB."""
    host = make_host("used", memory_gib=960, vcpus=80)
    vm_on(host)
    return host


@pytest.fixture
def half() -> Host:
    """A host with one empty slot of half its size."""
    host = make_host("half", memory_gib=960, vcpus=80)
    accepted_slot(host)
    return host


def looked_at(minutes_ago: float = 0, **fields: Any) -> None:
    at = timezone.now() - timedelta(minutes=minutes_ago)
    SlotCheck.objects.update_or_create(zone=ZONE, defaults={"fully_checked_at": at, **fields})


def compact(**options: Any) -> Compaction:
    options.setdefault("now", timezone.now())
    return compact_zone(ZONE, actor=task_actor("test"), request_id="compact-1", **options)


def plan(**options: Any) -> PlannedCompaction:
    return plan_zone(ZONE, now=timezone.now(), **options)


def where() -> list[tuple[int, str | None]]:
    return list(
        Reservation.objects.filter(kind=ReservationKind.COMMITTED)
        .order_by("pk")
        .values_list("pk", "target_host__name")
    )


def free_hosts() -> set[str]:
    used_ids = Reservation.objects.filter(target_host__isnull=False).values("target_host_id")
    rooms = HostCapacity.objects.filter(allocated_memory_bytes=0).exclude(host_id__in=used_ids)
    return set(rooms.values_list("host__name", flat=True))


class TestRun:
    def test_slot_moves_to_a_host_in_use_and_its_host_is_free(self, half: Host, used: Host) -> None:
        make_host("spare", memory_gib=960, vcpus=80)
        looked_at()
        done = compact()
        assert done.run is not None
        assert (done.run.outcome, done.run.hosts_freed, done.run.slots_moved) == ("done", 1, 1)
        slot = Reservation.objects.get()
        assert (slot.target_host, slot.confirmed_host) == (used, used)
        assert slot.is_ready
        assert free_hosts() == {half.name, "spare"}
        room = HostCapacity.objects.get(host=half)
        assert (room.committed_memory_bytes, room.committed_vcpus) == (0, 0)
        assert_ledger_holds()

    def test_second_run_finds_nothing(self, half: Host, used: Host) -> None:
        accepted_slot(make_host("third", memory_gib=960, vcpus=80), gib=100, vcpus=8)
        looked_at()
        assert compact().plan.releases  # type: ignore[union-attr]  # the run was not skipped
        before = where()
        again = compact()
        assert again.plan is not None
        assert again.plan.releases == ()
        assert where() == before

    def test_move_is_told_to_commitment_audit_outbox_and_slot(self, half: Host, used: Host) -> None:
        looked_at()
        compact()
        slot = Reservation.objects.get()
        assert slot.ready_message.startswith("moved here so that half is free; asked 480 GiB")
        assert slot.decision is not None
        assert slot.decision["host"] == "used"
        event = CommitmentEvent.objects.get(action="slot_moved_to_free_host")
        assert event.reason == "slot 0: moved to used, so that half is free"
        assert (event.actor, event.request_id) == ("task:test", "compact-1")
        entry = AuditEntry.objects.get(action="slot_moved_to_free_host")
        assert entry.object_id == str(slot.uuid)
        assert Outbox.objects.filter(object_id=str(slot.uuid), topic="reservations").exists()

    def test_freed_host_has_room_for_the_largest_flavor(self) -> None:
        hosts = [make_host(f"h{n}", memory_gib=960, vcpus=80) for n in range(2)]
        for host in hosts:
            accepted_slot(host)
        looked_at()
        assert free_hosts() == set()
        compact()
        assert len(free_hosts()) == 1
        assert_ledger_holds()

    def test_limit_is_for_whole_hosts_and_the_next_run_goes_on(self, used: Host) -> None:
        for name in ("a", "b"):
            host = make_host(name, memory_gib=960, vcpus=80)
            for _ in range(2):
                accepted_slot(host, gib=100, vcpus=8)
        looked_at()
        runs = [compact(most_moves=most).run for most in (1, 3, 3)]
        assert [(run.outcome, run.slots_moved) for run in runs if run] == [
            ("limited", 0),
            ("limited", 2),
            ("done", 2),
        ]
        assert free_hosts() == {"a", "b"}

    def test_runs_die_without_leaving_a_row_that_says_running(self, half: Host, used: Host) -> None:
        dead = CompactionRun.objects.create(zone=ZONE, started_at=timezone.now())
        looked_at()
        compact()
        dead.refresh_from_db()
        assert dead.outcome == CompactionOutcome.ABANDONED
        assert not CompactionRun.objects.filter(outcome="").exists()

    def test_zone_without_hosts_has_nothing_to_do(self) -> None:
        looked_at()
        done = compact()
        assert done.run is not None
        assert (done.run.outcome, done.run.hosts_planned) == ("done", 0)


def _vm_in_slot(half: Host) -> None:
    put_into(Reservation.objects.get(), "vm-1", minutes=1)


def _vm_on_host(half: Host) -> None:
    vm_on(half)


def _vm_on_the_way(half: Host) -> None:
    make_reservation(
        half,
        kind=ReservationKind.IN_FLIGHT,
        vm_uuid="vm-1",
        end_time=timezone.now() + timedelta(hours=1),
        placement_id="00000000-0000-4000-8000-000000000001",
    )


def _failover_slot(half: Host) -> None:
    make_reservation(half)


def _host_in_maintenance(half: Host) -> None:
    half.maintenance = "manual"
    half.save(update_fields=["maintenance"])


def _host_down(half: Host) -> None:
    half.state = HostState.DOWN
    half.save(update_fields=["state"])


def _slot_on_its_way(half: Host) -> None:
    other = make_host("other", memory_gib=960, vcpus=80)
    Reservation.objects.update(confirmed_host=other)
    rebuild_host_capacity()


def _slot_that_ends_soon(half: Host) -> None:
    Reservation.objects.update(end_time=timezone.now() + timedelta(minutes=59))


def _unknown_flavor(half: Host) -> None:
    Reservation.objects.update(resource_name="retired")


def _one_slot_too_many(half: Host) -> None:
    accepted_slot(half)


STAYS: dict[str, Callable[[Host], None]] = {
    "a VM is in the slot": _vm_in_slot,
    "a VM is on the host": _vm_on_host,
    "a VM is on the way to the host": _vm_on_the_way,
    "a failover slot is on the host": _failover_slot,
    "the host is in maintenance": _host_in_maintenance,
    "the host is down": _host_down,
    "the slot is changing its host": _slot_on_its_way,
    "the slot ends soon": _slot_that_ends_soon,
    "the flavor of the slot is gone": _unknown_flavor,
    "not all slots of the host fit": _one_slot_too_many,
}


@pytest.mark.parametrize("spoil", STAYS.values(), ids=STAYS)
def test_nothing_moves_when(spoil: Callable[[Host], None], half: Host, used: Host) -> None:
    spoil(half)
    looked_at()
    before = where()
    done = compact()
    assert done.plan is not None
    assert done.plan.releases == ()
    assert where() == before


def test_group_whose_pipeline_spreads_stays_and_one_that_packs_moves(
    half: Host, used: Host, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at()
    for multiplier, moves in ((-1.0, 0), (1.0, 1)):
        judge = CompiledPipeline(
            name="mine",
            filters=SLOT_PIPELINE.filters,
            weighers=(kvm_binpack(multiplier=multiplier, count_reservations=True),),
        )
        monkeypatch.setattr(
            slot_requests, "slot_pipelines", lambda _, judge=judge: {"hana_1": judge}
        )
        assert plan().moves == moves


def test_target_has_to_pass_every_filter(half: Host) -> None:
    locked = make_host("locked", memory_gib=960, vcpus=80, allowed_projects=["other"])
    vm_on(locked, project_id="other")
    looked_at()
    assert plan().releases == ()


@pytest.mark.parametrize(("project", "moves"), [("alpha", 0), ("beta", 1)])
def test_host_kept_for_a_project_takes_slots_of_that_project_only(project: str, moves: int) -> None:
    kept = make_host("kept", memory_gib=2000, vcpus=200, allowed_projects=["beta"])
    vm_on(kept, project_id="beta")
    for number, owner in enumerate((project, "gamma")):  # gamma's slot has the same size
        row = make_commitment(amount_gib=600, project_id=owner)
        make_slot(row, make_host(f"h{number}", memory_gib=960, vcpus=80), memory_gib=600, vcpus=50)
    looked_at()
    compact()
    assert [name for _, name in where()] == ["kept" if moves else "h0", "h1"]


class TestSteps:
    """What others do between plan and step."""

    @pytest.fixture
    def stale(self, half: Host, used: Host, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Let a run carry out a plan that was made before a change."""
        looked_at()
        made = plan()
        assert made.moves == 1
        monkeypatch.setattr(
            "commitments.services.compaction.plan_zone", lambda *_args, **_options: made
        )
        return made

    def test_vm_came_into_the_slot(self, stale: PlannedCompaction) -> None:
        put_into(Reservation.objects.get(), "vm-1", minutes=0)
        self.assert_refused()

    def test_vm_came_into_the_slot_just_before_the_rooms_were_locked(
        self, stale: PlannedCompaction, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lock_after_booking(ids: list[int], *, hosts: set[int]) -> dict[int, Reservation]:
            slot = Reservation.objects.get()
            assert expect_in_slot(slot.pk, "vm-1", slot_size, now=timezone.now()) == "booked"
            return lock_reservations(ids, hosts=hosts)

        slot_size = ResourceVector(memory_bytes=480 * GIB, vcpus=40)
        monkeypatch.setattr("commitments.services.compaction.lock_reservations", lock_after_booking)
        self.assert_refused()

    def test_vm_came_to_the_host(self, stale: PlannedCompaction, half: Host) -> None:
        vm_on(half, memory_gib=4, vcpus=1)
        rebuild_host_capacity()
        self.assert_refused()

    def test_target_filled_up(self, stale: PlannedCompaction, used: Host) -> None:
        accepted_slot(used)
        self.assert_refused()

    def test_target_went_down(self, stale: PlannedCompaction, used: Host) -> None:
        _host_down(used)
        self.assert_refused()

    def test_target_is_free_itself(self, stale: PlannedCompaction, used: Host) -> None:
        used.instances.all().delete()
        rebuild_host_capacity()
        self.assert_refused()

    def test_slot_was_released(self, stale: PlannedCompaction) -> None:
        Reservation.objects.all().delete()
        Commitment.objects.all().delete()
        rebuild_host_capacity()
        self.assert_refused()

    def assert_refused(self) -> None:
        before = where()
        done = compact()
        assert done.run is not None
        assert (done.run.hosts_planned, done.run.hosts_refused) == (1, 1)
        assert (done.run.hosts_freed, done.run.slots_moved) == (0, 0)
        assert where() == before
        assert not CommitmentEvent.objects.filter(action="slot_moved_to_free_host").exists()
        assert_ledger_holds()


def _never_looked(settings: Any) -> None:
    SlotCheck.objects.all().delete()


def _looked_long_ago(settings: Any) -> None:
    looked_at(16)


def _vm_list_refused(settings: Any) -> None:
    looked_at(is_refused=True, message="the VM list shrank")


def _host_list_refused(settings: Any) -> None:
    looked_at(host_refusal="9 of 10 hosts are down")


def _import_refused(settings: Any) -> None:
    now = timezone.now()
    SyncRun.objects.create(
        source=SOURCE, started_at=now, finished_at=now, outcome=SyncOutcome.GUARDED, message="half"
    )


BRAKES = {
    "nobody looked at the slots": (_never_looked, "nobody has looked"),
    "the last look is old": (_looked_long_ago, "16 minutes old"),
    "the VM list is not believed": (_vm_list_refused, "the VM list shrank"),
    "the host list is not believed": (_host_list_refused, "9 of 10 hosts are down"),
    "the last import was refused": (_import_refused, "half"),
}


@pytest.mark.parametrize(("spoil", "reason"), BRAKES.values(), ids=BRAKES)
def test_brake_is_on_when(
    spoil: Callable[[Any], None], reason: str, half: Host, used: Host, settings: Any
) -> None:
    looked_at()
    spoil(settings)
    before = where()
    done = compact()
    assert done.run is not None
    assert done.run.outcome == CompactionOutcome.REFUSED
    assert reason in done.run.message
    assert where() == before
    assert reason in plan().refusal
    assert plan().moves == 1


def test_look_at_slots_takes_the_brake_off(half: Host, used: Host) -> None:
    verify()
    assert plan().refusal == ""


@pytest.mark.django_db(transaction=True)
def test_only_one_run_of_a_zone_is_on(half: Host, used: Host) -> None:
    def elsewhere() -> Compaction:
        try:
            return compact()
        finally:
            connections.close_all()

    looked_at()
    with (
        held_lease(f"{LOCK_NAME}:{ZONE}") as is_ours,
        ThreadPoolExecutor(1) as pool,
    ):
        assert is_ours
        assert pool.submit(elsewhere).result().run is None
    assert not CompactionRun.objects.exists()
    assert compact().run is not None


class TestCommand:
    def test_dry_run_lists_every_move_and_changes_nothing(self, half: Host, used: Host) -> None:
        looked_at()
        before = database_fingerprint()
        out = StringIO()
        call_command("compact_slots", "--dry-run", stdout=out)
        text = out.getvalue()
        assert "az-a: 1 with VMs, 1 with empty slots alone" in text
        assert "half would be free (960 GiB, 80 vCPUs):" in text
        assert "(480 GiB) to used" in text
        assert "1 host would be free after 1 move;" in text
        assert database_fingerprint() == before

    def test_dry_run_is_what_is_done(self, half: Host, used: Host) -> None:
        looked_at()
        out = StringIO()
        call_command("compact_slots", "--dry-run", "--json", stdout=out)
        (planned,) = json.loads(out.getvalue())
        call_command("compact_slots", "--zone", ZONE, "--json", stdout=(out := StringIO()))
        (done,) = json.loads(out.getvalue())
        assert (done["outcome"], done["hosts_freed"], done["slots_moved"]) == ("done", 1, 1)
        (release,) = planned["releases"]
        assert release["host"] in free_hosts()
        assert [name for _, name in where()] == [move["to"] for move in release["moves"]]

    def test_refusal_is_an_error(self, half: Host, used: Host) -> None:
        with pytest.raises(CommandError, match="nobody has looked"):
            call_command("compact_slots", stdout=StringIO())
        out = StringIO()
        call_command("compact_slots", "--dry-run", stdout=out)
        assert "nothing may move now: nobody has looked" in out.getvalue()

    @pytest.mark.parametrize(
        "arguments", [("--zone", "nowhere"), ("--most-moves", "0")], ids=["zone", "limit"]
    )
    def test_bad_arguments_are_refused(self, half: Host, arguments: tuple[str, str]) -> None:
        with pytest.raises(CommandError):
            call_command("compact_slots", *arguments, stdout=StringIO())


class TestTask:
    def test_beat_starts_one_run_for_each_zone_with_slots(
        self, half: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = make_commitment(zone="az-b", amount_gib=4)
        make_slot(row, make_host("b1", zone="az-b"))
        sent: list[list[str]] = []
        monkeypatch.setattr(
            "journal.nudges.current_app.send_task",
            lambda name, args, **_: sent.append([name, *args]),
        )
        assert tasks.compact_slots() == {"zones": 2}
        assert sent == [["commitments.compact_zone", zone] for zone in ("az-a", "az-b")]

    def test_nothing_starts_when_it_is_off(
        self, half: Host, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_slots(settings, compaction=False)
        monkeypatch.setattr(
            "journal.nudges.current_app.send_task", lambda *_a, **_k: pytest.fail("sent")
        )
        assert tasks.compact_slots() == {}

    def test_zone_task_frees_hosts(self, half: Host, used: Host) -> None:
        looked_at()
        assert tasks.compact_one_zone(ZONE) == {
            "outcome": "done",
            "hosts_freed": 1,
            "slots_moved": 1,
        }


def test_metrics_tell_of_freed_hosts_moved_slots_and_the_last_run(half: Host, used: Host) -> None:
    def counted(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(metric_name(name), labels) or 0.0

    names = (
        "committed_resource_compaction_hosts_freed_total",
        "committed_resource_compaction_slots_moved_total",
    )
    compact()
    refused = metrics_text()
    looked_at()
    before = [counted(name) for name in names]
    ended = counted("committed_resource_compaction_runs_total", outcome="done")
    done = compact()
    assert [counted(name) for name in names] == [count + 1 for count in before]
    assert counted("committed_resource_compaction_runs_total", outcome="done") == ended + 1
    series = f'{metric_name("committed_resource_compaction_refused")}{{availability_zone="az-a"}}'
    assert f"{series} 1.0" in refused
    text = metrics_text()
    assert f"{series} 0.0" in text
    assert done.run is not None
    assert done.run.finished_at is not None
    last = metric_name("committed_resource_compaction_last_run_timestamp_seconds")
    line = next(line for line in text.splitlines() if line.startswith(f"{last}{{"))
    assert float(line.split()[-1]) == pytest.approx(done.run.finished_at.timestamp())


def metrics_text() -> str:
    return scrape()


def test_memory_of_moved_slots_is_what_it_was(used: Host) -> None:
    host = make_host("small-ones", memory_gib=960, vcpus=80)
    row = make_commitment(amount_gib=12, project_id="alpha")
    for _ in range(3):
        make_slot(row, host)
    looked_at()
    compact()
    assert free_hosts() == {"small-ones"}
    slots = row.slots.order_by("slot_index")
    assert [(slot.slot_index, slot.memory_bytes // GIB) for slot in slots] == [
        (0, 4),
        (1, 4),
        (2, 4),
    ]
    assert_ledger_holds()
