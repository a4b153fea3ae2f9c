from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from capacity.models import HostCapacity, Reservation, ReservationAllocation
from capacity.nova.pipelines import ensure_shipped_pipelines
from failover.drill_models import ShadowPlan, ShadowState
from failover.models import FailoverReservation
from failover.selectors.drills import drill_state
from failover.services.rebalancing import NoShadowPlan, rebalance_all, rebalance_zone
from failover.services.shadow_plans import compute_shadow_plan
from hosts.models import Instance
from journal.actors import Actor
from journal.models import AuditEntry
from scheduling.resources import GIB
from tests.factories import make_domain, make_project, recount_room
from tests.failover.drill_rows import ZoneRows, make_zone

pytestmark = pytest.mark.django_db(transaction=True)
ACTOR = Actor(name="test")
ALONE = "r1@7{a@1} r2@8{b@2} r3@9{c@3} r4@10{d@4}"


@pytest.fixture(autouse=True)
def _pipelines() -> None:
    ensure_shipped_pipelines(request_id="test")
    make_domain()
    make_project()


def compute() -> ShadowPlan:
    return compute_shadow_plan("az-a", request_id="test", now=timezone.now())


def rebalance(**options: Any) -> Any:
    return rebalance_zone("az-a", actor=ACTOR, request_id="test", now=timezone.now(), **options)


def cover() -> dict[str, int]:
    counts: dict[str, int] = {}
    for uuid in ReservationAllocation.objects.values_list("vm_uuid", flat=True):
        counts[uuid] = counts.get(uuid, 0) + 1
    return counts


def assert_sound(rows: ZoneRows) -> None:
    """The rules hold and rooms equal the slots."""
    state = drill_state(["az-a"], now=timezone.now())
    assert all(state.keeps_rules(vm.openstack_id) for vm in rows.vms.values())
    for room in HostCapacity.objects.select_related("host"):
        before = room.failover_memory_bytes
        assert recount_room(room.host).failover_memory_bytes == before
        assert room.allocated_memory_bytes + before <= room.effective_memory_bytes


def reserved_gib() -> int:
    sizes = Reservation.objects.filter(kind="failover").values_list("memory_bytes", flat=True)
    return sum(sizes) // GIB


def test_slots_that_could_be_one_are_proposed_to_be_one() -> None:
    make_zone(ALONE, required=1)

    row = compute()

    assert row.state == ShadowState.PROPOSED
    assert (row.reserved_memory_bytes // GIB, row.shadow_memory_bytes // GIB) == (16, 4)
    assert row.lower_bound_bytes // GIB == 4
    assert [len(slot["vms"]) for slot in row.slots] == [4]


def test_plan_that_saves_too_little_is_kept_for_the_record_only() -> None:
    make_zone("r1@7{a@1,b@2}", required=1)

    row = compute()

    assert (row.state, row.slots) == (ShadowState.NOT_WORTH, [])
    with pytest.raises(NoShadowPlan, match="az-a"):
        rebalance()


def test_plan_that_covers_less_is_never_proposed(settings: Any) -> None:
    rows = make_zone(ALONE, required=1)
    # Nobody may be placed anywhere any more: from scratch no VM could be covered.
    for host in rows.hosts.values():
        host.status = "disabled"
        host.save()

    assert compute().state == ShadowState.NOT_WORTH


def test_newer_plan_replaces_the_older() -> None:
    make_zone(ALONE, required=1)

    first, second = compute(), compute()

    first.refresh_from_db()
    assert (first.state, second.state) == (ShadowState.OBSOLETE, ShadowState.PROPOSED)


def test_dry_run_writes_nothing() -> None:
    make_zone(ALONE, required=1)
    compute()
    before = list(Reservation.objects.order_by("pk").values_list("pk", "changed_xid"))

    outcome = rebalance(is_dry_run=True)

    assert (outcome.steps, outcome.done) == (len(outcome.plan), 0)
    assert outcome.reserved_after < outcome.reserved_before
    assert list(Reservation.objects.order_by("pk").values_list("pk", "changed_xid")) == before
    assert ShadowPlan.objects.get().state == ShadowState.PROPOSED


def test_carried_out_plan_saves_what_it_said_and_costs_no_coverage() -> None:
    rows = make_zone(ALONE, required=1)
    compute()
    before = cover()

    outcome = rebalance()

    assert (outcome.refused, reserved_gib()) == (0, 4)
    assert reserved_gib() == outcome.reserved_after // GIB
    assert cover() == before
    assert_sound(rows)
    assert ShadowPlan.objects.get().state == ShadowState.DONE
    assert AuditEntry.objects.filter(action="failover_rebalanced").exists()


def test_steps_are_limited_and_go_on_later(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={
            "failover": settings.HEADROOM.failover.model_copy(update={"rebalance_steps_per_run": 2})
        }
    )
    rows = make_zone("r1@7{a@1} r2@8{b@2} r3@9{c@3} r4@10{d@4} r5@11{e@5}", required=1)
    compute()

    first = rebalance()
    assert (first.done, ShadowPlan.objects.get().state) == (2, ShadowState.RUNNING)
    assert_sound(rows)
    for _ in range(3):
        if ShadowPlan.objects.get().state == ShadowState.RUNNING:
            rebalance()

    assert ShadowPlan.objects.get().state == ShadowState.DONE
    assert reserved_gib() == 4
    assert set(cover().values()) == {1}


def test_steps_that_the_caller_limits_go_on_later() -> None:
    make_zone("r1@7{a@1} r2@8{b@2} r3@9{c@3} r4@10{d@4} r5@11{e@5}", required=1)
    compute()

    assert rebalance(most_steps=2).done == 2
    assert ShadowPlan.objects.get().state == ShadowState.RUNNING
    rebalance()

    assert ShadowPlan.objects.get().state == ShadowState.DONE
    assert reserved_gib() == 4


def when_the_work_begins(change: Callable[[], None]) -> AbstractContextManager[None]:
    """Let others commit something between the plan and its first step."""
    changed = False

    def watch(execute: Any, sql: str, *rest: Any) -> Any:
        nonlocal changed
        answer = execute(sql, *rest)
        if not changed and sql.startswith('UPDATE "failover_shadowplan"'):
            changed = True
            change()
        return answer

    return connection.execute_wrapper(watch)


def test_step_that_is_refused_leaves_its_new_slot_to_be_made_by_the_next() -> None:
    rows = make_zone(ALONE, hosts=("11",), required=1)
    row = compute()
    row.slots[0]["host"] = rows.hosts["11"].name
    row.save()
    first = rebalance(is_dry_run=True).plan[0]
    assert (first.joins, len(first.leaves) > 0) == ("", True)

    def evacuate() -> None:
        FailoverReservation.objects.filter(name=first.leaves).update(state="consuming")

    with when_the_work_begins(evacuate):
        outcome = rebalance()

    assert (outcome.done, outcome.refused) == (3, 1)
    assert cover() == dict.fromkeys(map(rows.uuid, "abcd"), 1)
    assert_sound(rows)


def grow(rows: ZoneRows, name: str) -> None:
    Instance.objects.filter(pk=rows.vms[name].pk).update(memory_bytes=8 * GIB)


def outgrown() -> list[str]:
    """Return the VMs that are larger than a slot they are in."""
    users = ReservationAllocation.objects.filter(reservation__kind="failover")
    return [
        one.vm_uuid
        for one in users.select_related("reservation")
        if one.memory_bytes > one.reservation.memory_bytes
    ]


def test_vm_that_grew_meanwhile_takes_no_step_to_a_slot_that_is_too_small() -> None:
    rows = make_zone(ALONE, required=1)
    compute()
    moving = rebalance(is_dry_run=True).plan[0].vm
    name = next(name for name in rows.vms if rows.uuid(name) == moving)

    with when_the_work_begins(lambda: grow(rows, name)):
        outcome = rebalance()

    assert (outcome.refused, outgrown()) == (1, [])
    assert cover() == dict.fromkeys(map(rows.uuid, "abcd"), 1)


def test_slots_are_not_exchanged_for_some_that_a_vm_has_outgrown() -> None:
    rows = make_zone(CROWDED, required=2)
    compute()
    grow(rows, "a")

    outcome = rebalance()

    assert (outcome.is_exchange, outcome.done, outgrown()) == (True, 0, [])


def test_vm_that_moved_meanwhile_never_breaks_a_rule() -> None:
    rows = make_zone(ALONE, required=1)
    target = compute().slots[0]["host"]
    moved_to = next(host for host in rows.hosts.values() if host.name == target)
    Instance.objects.filter(pk=rows.vms["a"].pk).update(host=moved_to)
    recount_room(rows.hosts["1"])
    recount_room(moved_to)

    rebalance()

    assert rows.uuid("a") not in cover()  # the move cost it its slot, and the plan has no other
    assert_sound(rows)


# Both VMs of each pair share r1; single steps cannot regroup them on so few hosts.
CROWDED = "r1@5{a@1} r2@6{b@2} r3@5{c@3} r4@6{d@4} r5@6{a@1} r6@5{b@2} r7@6{c@3} r8@5{d@4}"


def test_crowded_zone_is_exchanged_at_once_or_stepwise_without_loss() -> None:
    rows = make_zone(CROWDED, hosts=("7", "8", "9", "10"), required=2)
    compute()
    before = cover()

    outcome = rebalance()

    assert reserved_gib() == outcome.reserved_after // GIB < 32
    assert cover() == before
    assert_sound(rows)


@pytest.fixture
def _many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every zone for one with too many memberships for one transaction."""
    monkeypatch.setattr("failover.services.rebalancing.MOST_SWAPPED", 0)
    monkeypatch.setattr("failover.services.rebalancing.VMS_PER_EXCHANGE", 2)


@pytest.mark.usefixtures("_many")
def test_large_crowded_zone_is_exchanged_vm_by_vm_without_loss() -> None:
    rows = make_zone(CROWDED, hosts=("7", "8", "9", "10"), required=2)
    compute()
    before = cover()

    would = rebalance(is_dry_run=True)
    assert would.exchange is not None
    assert reserved_gib() == 32
    outcome = rebalance()

    assert (outcome.done, outcome.refused) == (would.steps, 0)
    assert reserved_gib() == outcome.reserved_after // GIB < 32
    assert cover() == before
    assert_sound(rows)
    assert ShadowPlan.objects.get().state == ShadowState.DONE


@pytest.mark.usefixtures("_many")
def test_exchange_is_limited_and_goes_on_where_it_stopped() -> None:
    rows = make_zone(CROWDED, hosts=("7", "8", "9", "10"), required=2)
    before = cover()
    planned_bytes = compute().shadow_memory_bytes
    for _ in range(8):
        if ShadowPlan.objects.get().state in {ShadowState.PROPOSED, ShadowState.RUNNING}:
            rebalance(most_steps=1)
            assert cover() == before
            assert_sound(rows)

    assert reserved_gib() == planned_bytes // GIB


@pytest.mark.usefixtures("_many")
def test_nobody_joins_a_slot_that_somebody_else_is_taking_away(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.1})
    make_zone(CROWDED, hosts=("7", "8", "9", "10"), required=2)
    compute()
    before = set(Reservation.objects.values_list("pk", flat=True))
    rebalance(most_steps=1)
    standing = sorted(set(Reservation.objects.values_list("pk", flat=True)) - before)
    users = ReservationAllocation.objects.filter(reservation__in=standing)
    joined = set(users.values_list("vm_uuid", flat=True))

    with closing(connection.copy()) as other:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(
                "UPDATE capacity_reservation SET is_ready = false WHERE id = ANY(%s)", [standing]
            )
        rebalance()
        other.commit()

    assert set(users.values_list("vm_uuid", flat=True)) == joined


@pytest.mark.usefixtures("_many")
def test_nobody_joins_a_slot_that_the_loop_shrank_between_two_exchanges() -> None:
    make_zone(CROWDED, hosts=("7", "8", "9", "10"), required=2)
    compute()
    before = set(Reservation.objects.values_list("pk", flat=True))

    with closing(connection.copy()) as other:
        seen: list[int] = []

        def shrink(execute: Any, sql: str, *rest: Any) -> Any:
            if "pg_advisory_xact_lock" in sql and isinstance(rest[0], list):
                fresh = Reservation.objects.exclude(pk__in=before)
                keys = list(fresh.values_list("pk", flat=True))
                seen.extend(keys)
                with other.cursor() as cursor:
                    cursor.execute(
                        "UPDATE capacity_reservation SET memory_bytes = %s WHERE id = ANY(%s)",
                        [GIB, keys],
                    )
            return execute(sql, *rest)

        with connection.execute_wrapper(shrink):
            outcome = rebalance()

    assert outcome.refused > 0
    joined = ReservationAllocation.objects.filter(reservation__in=seen)
    assert 0 < joined.count() <= 4  # those of the exchange that made the slots
    assert set(cover().values()) == {2}


@pytest.mark.usefixtures("_many")
def test_vms_that_changed_are_left_out_and_the_others_exchanged() -> None:
    rows = make_zone(CROWDED, hosts=("7", "8", "9", "10"), required=2)
    compute()
    FailoverReservation.objects.filter(name="r1").update(state="consuming")

    outcome = rebalance()

    assert outcome.exchange is None or outcome.refused > 0
    assert set(cover().values()) == {2}
    assert FailoverReservation.objects.get(name="r1").reservation.allocations.count() == 1
    assert_sound(rows)


def test_slot_that_an_evacuation_uses_is_not_touched() -> None:
    make_zone(ALONE, required=1)
    compute()
    FailoverReservation.objects.filter(name="r2").update(state="consuming")

    rebalance()

    known = FailoverReservation.objects.get(name="r2")
    assert known.reservation.allocations.count() == 1


def test_every_zone_is_planned_and_a_bad_one_stops_nobody(settings: Any) -> None:
    make_zone(ALONE, required=1)
    make_zone("", vms={"z": "77"}, zone="az-b", required=1)

    counts = rebalance_all(actor=ACTOR, request_id="test", now=timezone.now())

    assert counts == {"proposed": 1, "not_worth": 1, "carried_out": 1, "failed": 0}
    assert reserved_gib() == 4


def test_rebalancing_can_be_switched_off(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"failover": settings.HEADROOM.failover.model_copy(update={"rebalance": False})}
    )
    make_zone(ALONE, required=1)

    counts = rebalance_all(actor=ACTOR, request_id="test", now=timezone.now())

    assert (counts["proposed"], counts["carried_out"], reserved_gib()) == (1, 0, 16)


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("rebalance_failover", *arguments, stdout=out)
    return out.getvalue()


def test_command_shows_before_it_applies() -> None:
    make_zone(ALONE, required=1)

    shown = command("az-a")
    assert "saves 75" in shown
    assert "dry run" in shown
    assert reserved_gib() == 16
    facts = json.loads(command("az-a", "--apply", "--json"))
    assert (facts["refused"], facts["reserved_after_bytes"] // GIB) == (0, 4)
    assert reserved_gib() == 4
    with pytest.raises(CommandError, match="no such zone"):
        command("az-z")
