"""What a refused change request learns: its cause, and when, where and how much would fit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment
from commitments.selectors.timeline import displaced_by, known_timeline
from hosts.models import Host, PlannedHostChange, PlannedHostEdit
from scheduling.resources import GIB
from tests.commitments.change_requests import CORES, NOW, change, decide, decide_ram
from tests.factories import (
    make_flavor,
    make_group,
    make_group_capacity,
    make_host,
    make_vm,
    recount_room,
)

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"


@pytest.fixture
def cloud() -> None:
    """One group of a 1 GiB flavor, one host of 10 slots in az-a."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=16)


def plan_hosts(edit: PlannedHostEdit, host: str, days: float, count: int = 1) -> None:
    PlannedHostChange.objects.create(
        edit=edit,
        at=NOW + timedelta(days=days),
        host=Host.objects.get(name=host),
        host_count=count,
    )


@pytest.mark.usefixtures("cloud")
class TestRetryAt:
    def test_first_end_of_a_commitment_that_frees_enough(self) -> None:
        decide_ram("alpha", change(A, 3, expires_at=NOW + timedelta(days=5)))
        decide_ram("beta", change(B, 6, expires_at=NOW + timedelta(days=9)))
        outcome = decide_ram("gamma", change(C, 4))
        assert outcome.retry_at == NOW + timedelta(days=5)
        assert "fits now: 1 units; fits from 2026-11-26T12:00:00Z" in outcome.rejection_reason
        later = decide_ram("gamma", change(C, 5))
        assert later.retry_at == NOW + timedelta(days=9)

    def test_the_same_request_is_accepted_once_the_room_is_free(self) -> None:
        decide_ram("alpha", change(A, 8, expires_at=NOW + timedelta(days=5)))
        outcome = decide_ram("gamma", change(C, 4))
        assert outcome.retry_at is not None
        Reservation.objects.all().delete()
        Commitment.objects.all().delete()
        recount_room(Host.objects.get(name="h1"))
        assert decide_ram("gamma", change(C, 4)).rejection_reason == ""

    def test_the_last_second_of_all_is_told_as_it_is(self) -> None:
        last = datetime.max.replace(tzinfo=UTC)
        decide_ram("alpha", change(A, 10, expires_at=last - timedelta(microseconds=1)))
        outcome = decide_ram("gamma", change(C, 4, expires_at=last))
        assert outcome.retry_at == last.replace(microsecond=0)

    def test_a_planned_host_makes_room(self) -> None:
        plan_hosts(PlannedHostEdit.ADD, "h1", 3.5, count=2)
        outcome = decide_ram("gamma", change(C, 30))
        assert outcome.retry_at == NOW + timedelta(days=3.5)

    def test_a_planned_drain_takes_room_away_again(self) -> None:
        decide_ram("alpha", change(A, 10, expires_at=NOW + timedelta(days=5)))
        plan_hosts(PlannedHostEdit.DRAIN, "h1", 2)
        outcome = decide_ram("gamma", change(C, 4))
        assert outcome.retry_at == NOW + timedelta(minutes=15)
        assert "fits from" not in outcome.rejection_reason

    def test_what_a_drain_displaces_ends_where_it_went(self) -> None:
        decide_ram("alpha", change(A, 6, expires_at=NOW + timedelta(days=5)))
        decide_ram("beta", change(B, 4))
        make_host("h2", zone="az-a", memory_gib=10, vcpus=40)
        plan_hosts(PlannedHostEdit.DRAIN, "h1", 2)
        plan_hosts(PlannedHostEdit.ADD, "h2", 3)
        assert decide_ram("gamma", change(C, 12)).retry_at == NOW + timedelta(days=5)

    def test_cores_come_back_when_their_commitment_ends(self) -> None:
        first = change(A, 12, expires_at=NOW + timedelta(days=7))
        assert decide({"alpha": {CORES: [first]}}).rejection_reason == ""
        outcome = decide({"beta": {CORES: [change(B, 8)]}})
        assert outcome.retry_at == NOW + timedelta(days=7)
        assert "insufficient CPU cores: 4 available, 8 requested" in outcome.rejection_reason
        assert "fits now: 4 units" in outcome.rejection_reason

    def test_fractions_of_a_second_are_rounded_up(self) -> None:
        end = NOW + timedelta(days=5, milliseconds=1)
        decide_ram("alpha", change(A, 8, expires_at=end))
        outcome = decide_ram("gamma", change(C, 4))
        assert outcome.retry_at == NOW + timedelta(days=5, seconds=1)

    def test_nothing_known_keeps_the_usual_wait(self) -> None:
        outcome = decide_ram("gamma", change(C, 11))
        assert outcome.retry_at == NOW + timedelta(minutes=15)

    def test_growth_of_a_held_commitment_counts_its_own_slots_once(self) -> None:
        decide_ram("alpha", change(A, 4, expires_at=NOW + timedelta(days=300)))
        decide_ram("beta", change(B, 4, expires_at=NOW + timedelta(days=2)))
        outcome = decide_ram(
            "alpha",
            change(A, 9, old="confirmed", expires_at=NOW + timedelta(days=300)),
            confirmed_before=4,
        )
        assert outcome.retry_at == NOW + timedelta(days=2)
        assert "fits now: 6 units" in outcome.rejection_reason

    def test_a_dry_run_learns_the_same(self) -> None:
        decide_ram("alpha", change(A, 8, expires_at=NOW + timedelta(seconds=40)))
        outcome = decide_ram("gamma", change(C, 4), is_dry_run=True)
        assert outcome.retry_at == NOW + timedelta(seconds=40)

    def test_another_zone_is_named_for_new_commitments(self) -> None:
        make_host("h2", zone="az-b", memory_gib=20, vcpus=80)
        assert "fits in az-b" in decide_ram("gamma", change(C, 11)).rejection_reason

    def test_advice_can_be_switched_off(self, settings: Any) -> None:
        liquid = settings.HEADROOM.liquid.model_copy(update={"advise_on_rejection": False})
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})
        decide_ram("alpha", change(A, 8, expires_at=NOW + timedelta(days=5)))
        outcome = decide_ram("gamma", change(C, 4))
        assert outcome.rejection_reason.endswith("2/4 reservation slots could be placed")
        assert outcome.retry_at == NOW + timedelta(minutes=15)


@pytest.mark.usefixtures("cloud")
class TestKnownTimeline:
    def test_statements_do_not_grow_with_commitments(self) -> None:
        counts = []
        for number in range(1, 9):
            decide_ram(
                f"p{number}",
                change(f"{number:08}-0000", 1, expires_at=NOW + timedelta(days=number)),
            )
            if number in {2, 8}:
                with CaptureQueriesContext(
                    connection,
                ) as queries:
                    known_timeline("az-a", outside=[], now=NOW)
                counts.append(len(queries))
        assert counts == [4, 4]

    def test_ends_and_plans_of_other_zones_and_of_the_past_do_not_count(self) -> None:
        make_host("h2", zone="az-b", memory_gib=10, vcpus=40)
        decide_ram("alpha", change(A, 2, expires_at=NOW + timedelta(days=5)))
        plan_hosts(PlannedHostEdit.ADD, "h2", 3)
        plan_hosts(PlannedHostEdit.ADD, "h1", -3)
        known = known_timeline("az-a", outside=[], now=NOW)
        assert known.moments == (NOW + timedelta(days=5),)
        assert known.releases.memory_bytes.tolist() == [2 * GIB]
        assert not known_timeline("az-a", outside=[A], now=NOW).moments
        assert not known_timeline("az-a", outside=[], now=NOW + timedelta(days=5)).moments

    def test_a_filled_slot_gives_back_only_what_it_blocks(self) -> None:
        decide_ram("alpha", change(A, 2, expires_at=NOW + timedelta(days=5)))
        slot = Reservation.objects.order_by("slot_index").first()
        assert slot is not None
        Reservation.objects.filter(pk=slot.pk).update(blocked_memory_bytes=0, blocked_vcpus=0)
        known = known_timeline("az-a", outside=[], now=NOW)
        assert known.releases.memory_bytes.tolist() == [GIB]

    def test_what_a_drain_displaces_is_slots_then_vms_largest_first(self) -> None:
        make_flavor("big", memory_mib=4096, vcpus=4)
        decide_ram("alpha", change(A, 1))
        host = Host.objects.get(name="h1")
        vms = [make_vm(host=host, flavor_name=name) for name in ("small", "big")]
        slot, *rest = displaced_by([host.pk])
        assert [(one.ask.slot_name, one.ends_at) for one in rest] == [
            (vm.openstack_id, None) for vm in sorted(vms, key=lambda vm: -vm.memory_bytes)
        ]
        assert slot.ask.slot_name == f"commitment-{A}-0"
        assert slot.ends_at == Commitment.objects.get().end_time
        assert HostCapacity.objects.get(host=host).committed_memory_bytes == GIB
