"""Evacuations and rebalancing that die at any statement leave the whole step or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation
from capacity.nova.pipelines import ensure_shipped_pipelines
from failover.drill_models import EvacuationMove, EvacuationPlan, EvacuationState
from failover.models import FailoverReservation
from failover.services.evacuation import plan_evacuations, settle_evacuations
from failover.services.rebalancing import rebalance_zone
from failover.services.shadow_plans import compute_shadow_plan
from hosts.models import Host, Instance
from journal.actors import Actor
from tests.factories import make_domain, make_project
from tests.failover.drill_rows import ZoneRows, make_zone

pytestmark = pytest.mark.django_db(transaction=True)
ACTOR = Actor(name="test")
MOST_STATEMENTS = 400


class KilledError(BaseException):
    """The worker dies here."""


def run_killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run work that dies before its ``number``-th statement; return whether it got that far."""
    seen = 0

    def kill(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number:
            raise KilledError
        return execute(sql, params, many, context)

    try:
        with connection.execute_wrapper(kill):
            work()
    except KilledError:
        return True
    return False


def at_every_statement(work: Callable[[], object], check: Callable[[], None]) -> int:
    """Let work die at its first statement, its second, and so on, until it comes through."""
    for number in range(1, MOST_STATEMENTS):
        if not run_killed_at(number, work):
            check()
            return number
        check()
    raise AssertionError("the work never ends")


def assert_ledger_is_true() -> None:
    """Rooms equal the slots, and exactly the slots of pending moves are consuming."""
    for room in HostCapacity.objects.all():
        held = Reservation.objects.filter(target_host=room.host_id)
        assert room.failover_memory_bytes == sum(row.blocked_memory_bytes for row in held)
    pending = EvacuationMove.objects.filter(state__in=("planned", "started"))
    consuming = FailoverReservation.objects.filter(state="consuming")
    assert set(consuming.values_list("name", flat=True)) == set(
        pending.values_list("reservation_name", flat=True)
    )


def plan() -> None:
    plan_evacuations(actor=ACTOR, request_id="test", now=timezone.now())


def settle() -> None:
    settle_evacuations(actor=ACTOR, request_id="test", now=timezone.now())


def dead_host() -> ZoneRows:
    rows = make_zone("rA@3{a@1,b@2} rB@4{a@1}", required=1)
    Host.objects.filter(name="h1").update(state="down")
    return rows


def test_planning_that_dies_leaves_no_half_plan() -> None:
    dead_host()

    at_every_statement(plan, assert_ledger_is_true)

    assert EvacuationPlan.objects.count() == 1
    assert EvacuationMove.objects.get().state == "planned"


def test_settling_that_dies_leaves_no_half_retired_slot() -> None:
    rows = dead_host()
    plan()
    target = EvacuationMove.objects.get().target_host
    assert target is not None
    Instance.objects.filter(pk=rows.vms["a"].pk).update(host=target)
    rebuild_host_capacity()

    at_every_statement(settle, assert_ledger_is_true)

    assert EvacuationPlan.objects.get().state == EvacuationState.DONE
    assert not Reservation.objects.filter(target_host=target, kind="failover").exists()


def test_rebalancing_that_dies_goes_on_where_it_was() -> None:
    ensure_shipped_pipelines(request_id="test")
    make_domain()
    make_project()
    make_zone("r1@7{a@1} r2@8{b@2} r3@9{c@3}", required=1)

    def rebalance() -> None:
        compute_shadow_plan("az-a", request_id="test", now=timezone.now())
        if Reservation.objects.filter(kind="failover").count() > 1:
            rebalance_zone("az-a", actor=ACTOR, request_id="test", now=timezone.now())

    def check() -> None:
        assert_ledger_is_true()
        slots = Reservation.objects.filter(kind="failover")
        assert sum(slot.allocations.count() for slot in slots) == 3

    at_every_statement(rebalance, check)

    assert Reservation.objects.filter(kind="failover").count() == 1
