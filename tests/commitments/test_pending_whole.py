"""Pending commitments that were never accepted hold all or nothing, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment
from commitments.services.verification import verify_slots
from journal.actors import task_actor
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW, change, decide_ram
from tests.commitments.due_rows import A, B, change_spec, conditions, due, make_all_due, repair
from tests.examples import few
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.ledger import assert_rooms_add_up, fingerprint
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db
HOSTS, HOST_GIB = 2, 5
amounts = st.integers(min_value=1, max_value=8)
states = st.sampled_from(["pending", "pending", "guaranteed", "confirmed", "planned"])
steps = st.lists(
    st.tuples(st.sampled_from([A, B]), amounts, states, st.sampled_from(["limes", "syncer"])),
    max_size=6,
)


@pytest.fixture
def cloud() -> None:
    make_cloud()


def make_cloud() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    for number in range(HOSTS):
        make_host(f"h{number}", zone="az-a", memory_gib=HOST_GIB, vcpus=HOST_GIB)


def held_gib(uuid: str) -> int:
    placed = Reservation.objects.filter(
        commitment__commitment_uuid=uuid, target_host__isnull=False
    ).values_list("memory_bytes", flat=True)
    return sum(placed) // GIB


def committed_gib() -> int:
    return sum(HostCapacity.objects.values_list("committed_memory_bytes", flat=True)) // GIB


def verify() -> int:
    return verify_slots(actor=task_actor("test"), request_id="verify-1", now=NOW).nudged


@pytest.mark.usefixtures("cloud")
class TestNeverAccepted:
    def test_written_by_limes_holds_nothing_where_it_does_not_fit(self) -> None:
        decide_ram("alpha", change(A, 25, "pending"))
        assert conditions() == [(False, "Reserving")]
        assert (held_gib(A), committed_gib()) == (0, 0)

    def test_written_by_limes_holds_all_where_it_fits(self) -> None:
        decide_ram("alpha", change(A, 10, "pending"))
        assert conditions() == [(True, "Accepted")]
        assert held_gib(A) == 10

    def test_taken_in_by_the_syncer_holds_nothing_where_it_does_not_fit(self) -> None:
        due(A, 25, "pending")
        repair()
        assert (held_gib(A), committed_gib()) == (0, 0)
        message = Commitment.objects.get().ready_message
        assert message == "insufficient capacity: 10/25 reservation slots could be placed"

    def test_retry_takes_all_as_soon_as_it_fits(self) -> None:
        due(A, 12, "pending")
        repair()
        make_host("h9", zone="az-a", memory_gib=2, vcpus=2)
        make_all_due()
        repair()
        assert conditions() == [(True, "Accepted")]
        assert held_gib(A) == 12

    def test_others_of_the_same_look_get_what_it_does_not_hold(self) -> None:
        due(A, 25, "pending")
        due(B, 10)
        repair()
        assert (held_gib(A), held_gib(B)) == (0, 10)

    def test_retry_in_vain_writes_no_story(self) -> None:
        due(A, 25, "pending")
        repair()
        before = fingerprint()
        make_all_due()
        repair(NOW + timedelta(minutes=2))
        changed = {
            name for (name, old), (_, new) in zip(before, fingerprint(), strict=True) if old != new
        }
        assert changed == {"commitments_commitment"}  # the timer
        assert held_gib(A) == 0

    @pytest.mark.parametrize("next_look", [None, timedelta(hours=1)])
    def test_part_held_since_before_is_given_back_by_the_ordinary_look(
        self, next_look: timedelta | None
    ) -> None:
        row = make_commitment(
            A,
            amount_gib=25,
            state="pending",
            ready_reason="Reserving",
            next_reconcile_at=NOW + next_look if next_look else None,
            end_time=NOW + timedelta(days=9),
        )
        for index, host in enumerate(HostCapacity.objects.all()):
            make_slot(row, host.host, memory_gib=1, vcpus=1, index=index)
        assert held_gib(A) == 2
        assert verify() == 1
        repair()
        assert (held_gib(A), committed_gib()) == (0, 0)
        assert verify() == 0

    def test_part_of_a_confirmed_one_is_given_back_once_it_is_only_pending(self) -> None:
        row = due(A, 25)
        repair()
        assert held_gib(A) == 10
        change_spec(row, state="pending")
        repair()
        assert held_gib(A) == 0


@pytest.mark.usefixtures("cloud")
def test_accepted_pending_commitment_keeps_what_it_has() -> None:
    row = due(A, 8, "pending")
    repair()
    change_spec(row, requested_amount=25 * GIB)
    repair()
    assert conditions() == [(False, "Reserving")]
    assert held_gib(A) >= 8


@contextmanager
def fresh_cloud() -> Iterator[None]:
    """Make a cloud that goes again, as often as one test needs one."""
    savepoint = transaction.atomic()
    savepoint._from_testcase = True  # type: ignore[attr-defined]  # set by Django itself
    with savepoint:
        make_cloud()
        yield
        transaction.set_rollback(True)
    reset_host_table()


@given(steps=steps)
@few(10)
def test_no_history_leaves_a_part(steps: list[tuple[str, int, str, str]]) -> None:
    with fresh_cloud():
        for uuid, amount_gib, state, writer in steps:
            write(uuid, amount_gib, state, writer)
            verify()
            make_all_due()
            repair()
            for row in Commitment.objects.filter(state="pending", accepted_amount=None):
                assert held_gib(row.commitment_uuid) == 0
            for row in Commitment.objects.filter(state="pending", ready_reason="Accepted"):
                assert held_gib(row.commitment_uuid) == row.requested_amount // GIB
            assert_rooms_add_up()


def write(uuid: str, amount_gib: int, state: str, writer: str) -> None:
    """Write a commitment as Limes asks for it, or as the syncer finds it."""
    stored = Commitment.objects.filter(commitment_uuid=uuid).first()
    if writer == "limes":
        old = stored.state if stored is not None else None
        decide_ram("alpha", change(uuid, amount_gib, state, old=old))
    elif stored is None:
        due(uuid, amount_gib, state)
    else:
        change_spec(stored, requested_amount=amount_gib * GIB, state=state)
