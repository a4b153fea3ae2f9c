"""What makes background work look at once, and what may wait (spec commitments, 8.9, 14.6)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.models import HostCapacity, Reservation
from commitments import tasks
from commitments.models import Commitment
from commitments.services import change as change_module
from commitments.services.nudges import nudge_owners
from commitments.services.verification import verify_slots
from journal.actors import task_actor
from tests.commitments.change_requests import NOW, change, decide_ram
from tests.commitments.due_rows import A, B, due, repair
from tests.factories import make_commitment, make_group, make_host, make_slot

USAGE, REPAIR = "commitments.reconcile_changed_usage", "commitments.dispatch_due"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What workers are asked to do, instead of a broker."""
    names: list[str] = []
    monkeypatch.setattr(change_module, "hint_worker", names.append)
    monkeypatch.setattr(tasks, "hint_worker", names.append)
    return names


@pytest.fixture
def cloud() -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    make_host("h1", zone="az-a", memory_gib=4, vcpus=16)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("cloud")
class TestAfterCommit:
    @pytest.mark.parametrize(
        ("gib", "status", "options", "expected"),
        [
            pytest.param(4, "confirmed", {}, [USAGE], id="accepted: usage"),
            pytest.param(4, "planned", {}, [USAGE], id="planned: usage"),
            pytest.param(9, "pending", {}, [USAGE, REPAIR], id="waits: usage and repair"),
            pytest.param(9, "confirmed", {}, [], id="rejected: nobody"),
            pytest.param(4, "confirmed", {"is_dry_run": True}, [], id="dry run: nobody"),
        ],
    )
    def test_request(
        self,
        sent: list[str],
        gib: int,
        status: str,
        options: dict[str, Any],
        expected: list[str],
    ) -> None:
        decide_ram("alpha", change(A, gib, status), **options)
        assert sent == expected

    @pytest.mark.parametrize(
        ("gib", "fields", "expected"),
        [
            pytest.param(4, {}, [USAGE], id="accepted"),
            pytest.param(4, {"state": "superseded"}, [USAGE], id="released"),
            pytest.param(9, {"allow_rejection": True}, [USAGE], id="rejected"),
            pytest.param(9, {}, [], id="goes on waiting: nothing new"),
            pytest.param(4, {"state": "planned"}, [], id="planned: nothing new"),
        ],
    )
    def test_repair(
        self, sent: list[str], gib: int, fields: dict[str, Any], expected: list[str]
    ) -> None:
        due(gib=gib, **fields)
        repair()
        assert sent == expected

    @pytest.mark.sql("broken_commitments")
    def test_look_at_slots_that_finds_one_missing_starts_the_repair(self, sent: list[str]) -> None:
        due(end_time=None)
        repair()
        tasks.verify_slots()
        sent.clear()
        Reservation.objects.all().delete()
        HostCapacity.objects.update(committed_memory_bytes=0, committed_vcpus=0)
        assert tasks.verify_slots()["nudged"] == 1
        assert sent == [REPAIR]
        sent.clear()
        assert tasks.verify_slots()["nudged"] == 0
        assert sent == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("reason", "minutes", "observed", "parent", "is_damped"),
    [
        pytest.param("Reserving", 31, 2, 2, True, id="waits for long"),
        pytest.param("Reserving", 29, 2, 2, False, id="waits for less than half an hour"),
        pytest.param("Accepted", 600, 2, 2, False, id="does not wait"),
        pytest.param("Rejected", 600, 2, 2, False, id="rejected"),
        pytest.param("Reserving", 600, 1, 2, False, id="new generation"),
        pytest.param("Reserving", 600, 2, 1, False, id="slot of an old generation"),
        pytest.param("", 600, None, 2, False, id="no condition yet"),
    ],
)
def test_news_of_a_slot(
    reason: str, minutes: int, observed: int | None, parent: int, *, is_damped: bool
) -> None:
    """Section 8.9: the statement agrees with the rule."""
    now = timezone.now()
    later, since = now + 60 * MINUTE, now - minutes * MINUTE
    row = make_commitment(
        A,
        generation=2,
        ready_status=reason == "Accepted",
        ready_reason=reason,
        ready_observed_generation=observed,
        ready_changed_at=since if reason else None,
        next_reconcile_at=later,
    )
    other = make_commitment(B, next_reconcile_at=later)
    slot = make_slot(row, make_host("h1"), parent_generation=parent)
    nudge_owners([slot.pk], now)
    due_at = dict(Commitment.objects.values_list("pk", "next_reconcile_at"))
    assert due_at == {row.pk: later if is_damped else now, other.pk: later}


@pytest.mark.django_db
@pytest.mark.usefixtures("cloud")
def test_rejected_commitment_whose_acceptance_ended_rests() -> None:
    """It holds nothing and shall hold nothing: looking at its slots calls for no repair."""
    row = due(allow_rejection=True)
    repair()
    ended = row.end_time
    assert ended is not None
    Commitment.objects.update(
        requested_amount=400 << 30, generation=2, end_time=ended + 9 * MINUTE, next_reconcile_at=NOW
    )
    repair()
    repair(ended)
    assert not Reservation.objects.exists()
    report = verify_slots(actor=task_actor("t"), request_id="r", now=ended + MINUTE, is_full=True)
    assert report.nudged == 0
