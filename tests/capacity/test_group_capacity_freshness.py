from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from capacity.figures import group_capacity
from capacity.figures.capacity_freshness import max_age
from capacity.figures.group_capacity import (
    ensure_fresh,
    ensure_totals,
    refresh_group_capacity,
)
from capacity.figures.zone_capacity import Probes, ZoneFigures, zone_figures
from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.locks import LockSpace, take_lock
from capacity.models import (
    CapacityComputation,
    FlavorCapacity,
    FlavorGroupSettings,
    GroupCapacity,
    HostCapacity,
    Reservation,
)
from capacity.tasks import refresh_group_capacity as refresh
from commitments.models import Commitment
from config.sections import CapacitySettings
from hosts.models import Flavor, Host, HostStatus, Instance
from journal.errors import Busy
from scheduling.table import HostTable
from tests.factories import (
    make_commitment,
    make_group,
    make_host,
    make_reservation,
    make_slot,
    make_vm,
    recount_room,
)
from tests.schedule import beat_schedule

pytestmark = pytest.mark.django_db(transaction=True)

ZONES = ("az-a", "az-b")


@pytest.fixture(autouse=True)
def region() -> None:
    """Two zones with one host each; in az-a a VM, a slot and a failover reservation."""
    make_group(flavors=(("small", 4096, 1),))
    host = make_host("h1", zone="az-a")
    make_host("h2", zone="az-b")
    make_host("h3", zone="az-a")
    make_vm("vm-1", host=host)
    make_slot(make_commitment("commitment-1", amount_gib=4), host)
    make_reservation(host)


def written() -> dict[str, tuple[object, ...]]:
    """Say per zone which transactions wrote its rows and when it was computed."""
    return {
        done.zone: (
            done.computed_at,
            *GroupCapacity.objects.filter(zone=done.zone).values_list("pk", "changed_xid"),
            *FlavorCapacity.objects.filter(group_capacity__zone=done.zone).values_list(
                "pk", "changed_xid"
            ),
        )
        for done in CapacityComputation.objects.all()
    }


def disable_host() -> None:
    Host.objects.filter(name="h1").update(status=HostStatus.DISABLED)


def move_host_away() -> None:
    host = Host.objects.get(name="h3")
    host.zone = "az-c"
    host.save()
    recount_room(host)


def add_host() -> None:
    make_host("h4", zone="az-a")


def resize_host() -> None:
    host = Host.objects.get(name="h3")
    host.effective_memory_bytes //= 2
    host.save()
    recount_room(host)


def bring_host_here() -> None:
    host = Host.objects.get(name="h2")
    host.zone = "az-a"
    host.save()
    recount_room(host)


def allocate_on_host() -> None:
    """Raise what a host has allocated, as another source than the VM list would."""
    HostCapacity.objects.filter(host__name="h3").update(allocated_memory_bytes=4 << 30)


def place_in_flight() -> None:
    make_reservation(
        Host.objects.get(name="h3"),
        kind="in_flight",
        vm_uuid="vm-9",
        end_time=timezone.now() + timedelta(minutes=15),
        placement_id=uuid4(),
    )


def fill_slot() -> None:
    slot = Reservation.objects.get(kind="committed")
    make_vm("vm-in-slot", host=slot.target_host, slot=slot)


def remove_host() -> None:
    Host.objects.get(name="h3").delete()


def add_vm() -> None:
    make_vm("vm-2", host=Host.objects.get(name="h1"))


def remove_vm() -> None:
    with transaction.atomic():
        Instance.objects.get(name="vm-1").delete()
        recount_room(Host.objects.get(name="h1"))


def stop_vm() -> None:
    Instance.objects.filter(name="vm-1").update(status="SHELVED_OFFLOADED")


def add_slot() -> None:
    make_slot(Commitment.objects.get(), Host.objects.get(name="h3"))


def remove_slot() -> None:
    with transaction.atomic():
        Reservation.objects.filter(kind="committed").delete()
        recount_room(Host.objects.get(name="h1"))


def add_failover_reservation() -> None:
    make_reservation(Host.objects.get(name="h3"))


def end_commitment() -> None:
    Commitment.objects.update(state="expired")


def remove_commitment() -> None:
    Reservation.objects.filter(kind="committed").delete()
    Commitment.objects.all().delete()


def change_flavor() -> None:
    Flavor.objects.update(vcpus=2)


def add_group() -> None:
    make_group("other", flavors=(("o", 8192, 2),))


def change_settings() -> None:
    FlavorGroupSettings.objects.update(ram_unit_gib=4)


def grow_old() -> None:
    CapacityComputation.objects.filter(zone="az-a").update(
        computed_at=timezone.now() - max_age() - timedelta(seconds=1)
    )


@pytest.mark.parametrize(
    "change",
    [
        add_host,
        resize_host,
        bring_host_here,
        allocate_on_host,
        place_in_flight,
        fill_slot,
        disable_host,
        move_host_away,
        remove_host,
        add_vm,
        remove_vm,
        stop_vm,
        add_slot,
        remove_slot,
        add_failover_reservation,
        end_commitment,
        remove_commitment,
        change_flavor,
        add_group,
        change_settings,
        grow_old,
    ],
)
def test_every_kind_of_change_makes_its_zone_compute_once_more(change: Callable[[], None]) -> None:
    ensure_fresh(ZONES)
    before = written()
    change()
    ensure_fresh(ZONES)
    after = written()
    assert after["az-a"][0] != before["az-a"][0]
    ensure_fresh(ZONES)
    assert written() == after


@pytest.mark.parametrize(
    "change",
    [
        add_host,
        resize_host,
        allocate_on_host,
        place_in_flight,
        fill_slot,
        disable_host,
        add_vm,
        add_slot,
        add_failover_reservation,
        end_commitment,
        grow_old,
    ],
)
def test_a_change_leaves_other_zones_alone(change: Callable[[], None]) -> None:
    ensure_fresh(ZONES)
    before = written()["az-b"]
    change()
    ensure_fresh(ZONES)
    assert written()["az-b"] == before


def test_nothing_is_written_when_nothing_changed() -> None:
    ensure_fresh(ZONES)
    before = written()
    ensure_fresh(ZONES)
    assert [entry.outcome for entry in refresh_group_capacity()] == ["fresh", "fresh"]
    assert written() == before


def test_a_second_computation_with_the_same_result_writes_no_row() -> None:
    ensure_fresh(ZONES)
    before = written()
    assert [entry.changed_groups for entry in refresh_group_capacity(is_forced=True)] == [(), ()]
    after = written()
    for zone in ZONES:
        assert after[zone][0] != before[zone][0]
        assert after[zone][1:] == before[zone][1:]


def test_only_groups_that_differ_are_written() -> None:
    make_group("other", flavors=(("o", 8192, 2),))
    Flavor.objects.filter(name="o").update(
        extra_specs={"capabilities:hypervisor_type": "qemu", "trait:CUSTOM_X": "required"}
    )
    ensure_fresh(ZONES)
    before = GroupCapacity.objects.get(group_name="other", zone="az-a").changed_xid
    add_vm()
    ensure_fresh(ZONES)
    row = GroupCapacity.objects.get(group_name="hana_1", zone="az-a")
    assert row.running_instances == 2
    assert GroupCapacity.objects.get(group_name="other", zone="az-a").changed_xid == before


def test_a_long_running_transaction_does_not_make_zones_stale_for_ever() -> None:
    release, started = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Host.objects.filter(name="h2").update(disabled_reason="held")
            started.set()
            release.wait(30)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert started.wait(30)
        add_vm()
        ensure_fresh(["az-a"])
        before = written()["az-a"]
        ensure_fresh(["az-a"])
        assert written()["az-a"] == before
    finally:
        release.set()
        holder.join()


def test_a_change_that_commits_late_is_not_missed() -> None:
    release, started = threading.Event(), threading.Event()

    def disable_late() -> None:
        with transaction.atomic():
            Host.objects.filter(name="h3").update(status=HostStatus.DISABLED)
            started.set()
            release.wait(30)
        connection.close()

    writer = threading.Thread(target=disable_late)
    writer.start()
    try:
        assert started.wait(30)
        add_vm()
        ensure_fresh(["az-a"])
        assert GroupCapacity.objects.get(zone="az-a").exclusively_free_slots == 28
    finally:
        release.set()
        writer.join()
    ensure_fresh(["az-a"])
    assert GroupCapacity.objects.get(zone="az-a").exclusively_free_slots == 12


def test_readers_that_meet_compute_a_stale_zone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_fresh(ZONES)
    add_vm()
    computed: list[str] = []
    gate = threading.Barrier(4)

    def counted(
        table: HostTable, zone: str, groups: Iterable[FlavorGroupDef], probes: Probes
    ) -> ZoneFigures:
        computed.append(zone)
        return zone_figures(table, zone, groups, probes)

    monkeypatch.setattr("capacity.figures.group_capacity.zone_figures", counted)
    seen: list[int] = []

    def read() -> None:
        gate.wait(30)
        ensure_fresh(ZONES)
        seen.append(GroupCapacity.objects.get(zone="az-a").running_instances)
        connection.close()

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert computed == ["az-a"]
    assert seen == [2, 2, 2, 2]


def test_a_zone_that_another_computes_too_long_is_busy(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.02})
    release, started = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            take_lock(LockSpace.GROUP_CAPACITY, ["az-a"])
            started.set()
            release.wait(30)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert started.wait(30)
        with pytest.raises(Busy):
            ensure_fresh(["az-a"])
        assert [(entry.zone, entry.outcome) for entry in refresh_group_capacity()] == [
            ("az-a", "busy"),
            ("az-b", "computed"),
        ]
    finally:
        release.set()
        holder.join()


class TestBackground:
    """When the task computes (spec liquid, 13.2, 13.8)."""

    def computed_ago(self, seconds: float) -> None:
        CapacityComputation.objects.update(computed_at=timezone.now() - timedelta(seconds=seconds))

    def test_change_soon_after_a_run_is_postponed_and_not_lost(self) -> None:
        assert refresh() == {"computed": 2}
        add_vm()
        before = written()
        assert refresh() == {"postponed": 1, "fresh": 1}
        assert written() == before
        self.computed_ago(31)
        assert refresh() == {"computed": 1, "fresh": 1}
        assert GroupCapacity.objects.get(zone="az-a").running_instances == 2

    def test_many_changes_are_one_run(self) -> None:
        refresh()
        add_vm()
        add_slot()
        disable_host()
        self.computed_ago(31)
        assert refresh() == {"computed": 1, "fresh": 1}
        assert refresh() == {"fresh": 2}

    def test_zone_is_computed_again_after_the_floor_interval(self) -> None:
        refresh()
        self.computed_ago(299)
        assert refresh() == {"fresh": 2}
        self.computed_ago(301)
        assert refresh() == {"computed": 2}

    def test_reports_do_not_wait_for_the_interval(self) -> None:
        refresh()
        add_vm()
        ensure_fresh(ZONES)
        assert GroupCapacity.objects.get(zone="az-a").running_instances == 2

    def test_failed_run_does_not_start_the_interval(self, monkeypatch: pytest.MonkeyPatch) -> None:
        refresh()
        add_vm()
        self.computed_ago(31)

        def fail(*_: object) -> None:
            raise DatabaseError

        with monkeypatch.context() as patched:
            patched.setattr(group_capacity, "running_vms", fail)
            with pytest.raises(DatabaseError):
                refresh()
        assert refresh() == {"computed": 1, "fresh": 1}

    def test_beat_looks_more_often_than_the_interval(self) -> None:
        entries = beat_schedule().values()
        (entry,) = [one for one in entries if one["task"] == "capacity.refresh_group_capacity"]
        assert entry["schedule"].run_every.total_seconds() == 10
        assert entry["options"]["expires"] == 10

    def test_intervals_the_wrong_way_round_are_refused(self) -> None:
        with pytest.raises(ValueError, match="must be below reconcile_interval_seconds"):
            CapacitySettings(reconcile_interval_seconds=30, min_reconcile_interval_seconds=30)


def test_cores_are_judged_by_the_hosts_as_they_are_now() -> None:
    """Spec commitments, 8.5: the capacity row must be fresh."""
    ensure_totals("az-a")
    before = GroupCapacity.objects.get(group_name="hana_1", zone="az-a").total_vcpus
    assert before is not None
    disable_host()
    ensure_totals("az-a")
    assert GroupCapacity.objects.get(group_name="hana_1", zone="az-a").total_vcpus == before // 2
    computed = CapacityComputation.objects.get(zone="az-a").computed_at
    add_vm()
    ensure_totals("az-a")
    assert CapacityComputation.objects.get(zone="az-a").computed_at == computed
