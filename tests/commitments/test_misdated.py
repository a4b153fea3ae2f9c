"""What a clock that was ahead has written is due, and made good by the ordinary looks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.db.models import F

from capacity.figures.capacity_freshness import zones_computed_within
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import (
    AllocationState,
    CapacityComputation,
    Reservation,
    ReservationAllocation,
)
from commitments.models import Commitment, Condition
from commitments.services.nudges import nudge_broken, nudge_misdated
from commitments.services.repair import repair_due_commitments
from failover.models import FailoverZone
from failover.services.loop import due_zones
from journal.actors import Actor
from journal.clock import TOLERANCE, database_now
from scheduling.resources import GIB
from tests.commitments.slot_worlds import verify
from tests.factories import make_commitment, make_group, make_host
from tests.ledger import assert_ledger_holds

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)
OPERATOR = Actor(name="operator")


def repair(ahead: timedelta = timedelta()) -> None:
    repair_due_commitments(actor=OPERATOR, request_id="req-1", now=database_now() + ahead)


@pytest.fixture
def accepted() -> Commitment:
    """A commitment of three slots that ends in twelve hours."""
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_host("h1", memory_gib=64, vcpus=64)
    now = database_now()
    row = make_commitment(
        amount_gib=3,
        state="confirmed",
        end_time=now + timedelta(hours=12),
        next_reconcile_at=now,
    )
    repair()
    return row


def condition(row: Commitment) -> tuple[str, int]:
    row.refresh_from_db()
    return row.ready_reason, Reservation.objects.filter(commitment=row).count()


def test_a_commitment_that_expired_before_its_end_is_accepted_again(accepted: Commitment) -> None:
    assert condition(accepted) == (Condition.ACCEPTED, 3)
    repair(DAY)
    assert condition(accepted) == (Condition.EXPIRED, 0)
    repair()
    assert condition(accepted) == (Condition.ACCEPTED, 3)
    assert accepted.next_reconcile_at == accepted.end_time
    assert_ledger_holds()


def test_a_commitment_that_ended_in_time_stays_ended(accepted: Commitment) -> None:
    Commitment.objects.update(end_time=database_now() - TOLERANCE, next_reconcile_at=database_now())
    for _ in range(2):
        repair()
        assert condition(accepted) == (Condition.EXPIRED, 0)
    assert nudge_misdated(database_now()) == 0


def test_a_commitment_of_nothing_is_not_looked_at_again_and_again(accepted: Commitment) -> None:
    Commitment.objects.update(
        requested_amount=0, generation=F("generation") + 1, next_reconcile_at=database_now()
    )
    repair()
    assert condition(accepted) == (Condition.EXPIRED, 0)
    written = Commitment.objects.values().get()
    assert nudge_misdated(database_now()) == 0
    repair()
    assert Commitment.objects.values().get() == written


def test_a_retry_further_ahead_than_the_longest_delay_is_due(accepted: Commitment) -> None:
    cap = timedelta(seconds=settings.HEADROOM.retry.cap_seconds)
    now = database_now()
    for ahead, is_due in ((cap, False), (DAY, True)):
        Commitment.objects.update(ready_reason=Condition.RESERVING, next_reconcile_at=now + ahead)
        assert nudge_misdated(now) == int(is_due)
        accepted.refresh_from_db()
        assert accepted.next_reconcile_at == (now if is_due else now + ahead)


def test_a_run_of_the_failover_loop_further_ahead_than_its_interval_is_due() -> None:
    make_host("h1", zone="az-a")
    now = database_now()
    state = FailoverZone.objects.create(zone="az-a")
    for ahead, due in ((timedelta(seconds=1), []), (DAY, ["az-a"]), (-DAY, ["az-a"])):
        state.next_run_at = now + ahead
        state.save()
        assert due_zones(now) == due


def test_capacity_that_was_computed_tomorrow_is_not_recent() -> None:
    done = CapacityComputation.objects.create(
        zone="az-a",
        snapshot="1:1:",
        snapshot_xmin=1,
        computed_at=database_now(),
        host_count=0,
    )
    assert zones_computed_within(["az-a"], DAY) == {"az-a"}
    done.computed_at += DAY
    done.save()
    assert zones_computed_within(["az-a"], DAY) == set()


def test_a_retry_of_what_was_rolled_back_further_ahead_than_the_longest_delay_is_due(
    accepted: Commitment,
) -> None:
    cap = timedelta(seconds=settings.HEADROOM.retry.cap_seconds)
    now = database_now()
    Reservation.objects.filter(commitment=accepted).update(target_host=None)
    Commitment.objects.update(ready_reason=Condition.REJECTED)
    for ahead, is_due in ((cap, False), (DAY, True)):
        Commitment.objects.update(next_reconcile_at=now + ahead)
        assert nudge_broken("az-a", now) == int(is_due)


def test_a_commitment_that_takes_effect_tomorrow_though_nobody_asked_for_it_does_now(
    accepted: Commitment,
) -> None:
    tomorrow = database_now() + DAY
    Commitment.objects.update(start_time=tomorrow)
    repair()
    accepted.refresh_from_db()
    assert accepted.start_time is not None
    assert accepted.start_time < tomorrow - DAY + timedelta(minutes=5)
    assert accepted.accepted_spec is not None
    assert accepted.accepted_spec["startTime"] == accepted.start_time.isoformat()
    assert condition(accepted) == (Condition.ACCEPTED, 3)
    Commitment.objects.update(start_time=tomorrow, confirm_by=tomorrow)
    assert nudge_misdated(database_now()) == 0


@pytest.mark.parametrize("is_full", [True, False], ids=["every slot", "what changed"])
@pytest.mark.parametrize(
    ("column", "event"), [("since", "never_arrived"), ("missing_since", "gone")]
)
def test_a_vm_awaited_since_tomorrow_is_awaited_no_longer(
    accepted: Commitment, column: str, event: str, *, is_full: bool
) -> None:
    """No list has it, and a fast clock noted when it was placed, or was missed first."""
    slot = Reservation.objects.filter(commitment=accepted).order_by("pk")[0]
    ReservationAllocation.objects.create(
        reservation=slot,
        vm_uuid="vm-1",
        state=AllocationState.EXPECTED,
        memory_bytes=GIB,
        vcpus=1,
        since=database_now(),
    )
    rebuild_host_capacity()
    assert verify().events == {}
    ReservationAllocation.objects.update(**{column: database_now() + DAY})
    assert verify(is_full=is_full).events == {event: 1}
    assert not ReservationAllocation.objects.exists()
    assert_ledger_holds()
