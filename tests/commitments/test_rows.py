"""What the database keeps of commitments and refuses (spec commitments, 2.8, 2.9, 24)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from capacity.models import Reservation, ReservationAllocation
from commitments.hooks_capacity import count_broken_amounts
from commitments.models import Commitment, CommitmentEvent
from commitments.services.repair import repair_due_commitments
from commitments.services.usage import reconcile_project_usage
from journal.actors import task_actor
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW, change, decide_ram
from tests.factories import make_commitment, make_group, make_host, make_slot, make_vm

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
ACTOR = task_actor("test")
END = NOW + timedelta(days=30)


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        pytest.param({"commitment_uuid": "x"}, "uuid_valid", id="uuid too short"),
        pytest.param({"commitment_uuid": "abc_123"}, "uuid_valid", id="uuid of other characters"),
        pytest.param({"state": "gone"}, "state_known", id="state"),
        pytest.param({"resource_type": "disk"}, "resource_type_known", id="resource type"),
        pytest.param({"scheduling_domain": "moon"}, "scheduling_domain_known", id="domain"),
        pytest.param({"requested_amount": -(1 << 20)}, "amount_not_negative", id="amount below 0"),
        pytest.param({"requested_amount": GIB + 1}, "memory_whole_mib", id="not in whole MiB"),
        pytest.param({"zone": ""}, "identity_not_empty", id="no zone"),
        pytest.param({"flavor_group_name": ""}, "identity_not_empty", id="no group"),
        pytest.param({"project_id": ""}, "identity_not_empty", id="no project"),
    ],
)
def test_database_refuses(fields: dict[str, Any], constraint: str) -> None:
    make_commitment(A)
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Commitment.objects.update(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"requested_amount": 0}, id="amount 0"),
        pytest.param({"requested_amount": 3 << 20}, id="whole MiB"),
        pytest.param({"resource_type": "cores", "requested_amount": 7}, id="any number of cores"),
        pytest.param(
            {"start_time": END, "end_time": END - timedelta(days=1)},
            id="end before start",
        ),
    ],
)
def test_database_accepts(fields: dict[str, Any]) -> None:
    make_commitment(A)
    assert Commitment.objects.update(**fields) == 1


def ask(gib: int, *, is_new: bool = False) -> None:
    one = change(A, gib, old=None if is_new else "confirmed", expires_at=END)
    assert decide_ram("alpha", one).rejection_reason == ""


def look_at_it() -> None:
    Commitment.objects.update(next_reconcile_at=NOW)
    repair_due_commitments(actor=ACTOR, request_id="r", now=NOW)


def cover_a_vm() -> None:
    reconcile_project_usage("alpha", actor=ACTOR, request_id="r", now=NOW + timedelta(minutes=1))
    assert Commitment.objects.get().used_memory_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("act", "generation", "events"),
    [
        pytest.param(lambda: ask(8), 2, 2, id="amount 4 GiB -> 8 GiB"),
        pytest.param(lambda: ask(4, is_new=True), 1, 1, id="upsert with identical values"),
        pytest.param(look_at_it, 1, 1, id="status"),
        pytest.param(cover_a_vm, 1, 1, id="assignments"),
    ],
)
def test_generation_counts_changes_of_what_is_asked_alone(
    act: Callable[[], None], generation: int, events: int
) -> None:
    """The table of 2.9."""
    make_group("hana_1", flavors=[("small", 2048, 4)])
    host = make_host("h1", zone="az-a", memory_gib=64, vcpus=256)
    make_vm(host=host, memory_gib=2, vcpus=4, project_id="alpha")
    ask(4, is_new=True)
    act()
    assert Commitment.objects.get().generation == generation
    assert CommitmentEvent.objects.count() == events


def test_commitments_that_are_gone_are_found_by_index() -> None:
    CommitmentEvent.objects.bulk_create(
        CommitmentEvent(commitment_uuid=A, actor="x", action="changed", after={"amount": number})
        for number in range(2000)
    )
    CommitmentEvent.objects.create(
        commitment_uuid=A,
        actor="x",
        action="commitment_deleted",
        before={"flavorGroupName": "hana_1", "amount": GIB + (1 << 20), "resourceType": "memory"},
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE commitments_commitmentevent")
        cursor.execute(
            "EXPLAIN SELECT 1 FROM commitments_commitmentevent WHERE after IS NULL"
            " AND created_at > %s",
            [datetime(2020, 1, 1, tzinfo=UTC)],
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "commitments_event_gone_idx" in plan
    assert count_broken_amounts("hana_1", (), GIB) == 1


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        pytest.param({"kind": "hoard"}, "kind_known", id="reservation type"),
        pytest.param({"scheduling_domain": "moon"}, "scheduling_domain_known", id="domain"),
        pytest.param({"intent": "guess"}, "intent_known", id="intent"),
        pytest.param({"memory_bytes": -1}, "not_negative", id="memory below 0"),
        pytest.param({"commitment": None}, "slot_has_commitment", id="slot of no commitment"),
    ],
)
def test_database_refuses_of_a_reservation(fields: dict[str, Any], constraint: str) -> None:
    """Section 24."""
    make_slot(make_commitment(A), make_host("h1"))
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Reservation.objects.update(**fields)


@pytest.mark.parametrize(
    "intent",
    [
        "create",
        "rebuild",
        "resize",
        "live_migration",
        "evacuate",
        "reserve_for_failover",
        "reuse_failover_reservation",
        "reserve_for_committed_resource",
        "capacity_probe",
        "unknown",
        "",
    ],
)
def test_database_knows_every_intent(intent: str) -> None:
    """Section 9.5: the intents known to the scheduler; what Nova does not say is unknown."""
    make_slot(make_commitment(A), make_host("h1"))
    assert Reservation.objects.update(intent=intent) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_slots_of_a_commitment_have_numbers_of_their_own(index: int) -> None:
    """Section 2.8."""
    row, host = make_commitment(A), make_host("h1")
    make_slot(row, host, index=index)
    with pytest.raises(IntegrityError, match="slot_unique"), transaction.atomic():
        make_slot(row, host, index=index)


def test_vm_seen_in_a_slot_has_a_host_and_a_time() -> None:
    """Section 2.8."""
    host = make_host("h1")
    make_vm(host=host, slot=make_slot(make_commitment(A), host), memory_gib=1)
    with pytest.raises(IntegrityError, match="confirmed_has_host"), transaction.atomic():
        ReservationAllocation.objects.update(confirmed_at=None)
