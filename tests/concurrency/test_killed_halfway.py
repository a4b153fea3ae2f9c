"""A process that dies at any statement leaves the whole change or nothing."""

from __future__ import annotations

import pytest
from django.utils import timezone

from capacity.models import HostCapacity, Reservation, ReservationAllocation
from commitments.models import Commitment, CommitmentEvent
from commitments.services.repair import repair_due_commitments
from journal.actors import task_actor
from journal.models import AuditEntry, Outbox
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW, RAM, change, decide
from tests.commitments.slot_worlds import accepted_slot, delete, move, put_into, verify, vm_on
from tests.factories import make_group, make_host, make_hosts
from tests.killing import die_at_every_statement, run_in_child
from tests.ledger import assert_rooms_add_up

pytestmark = pytest.mark.django_db(transaction=True)

OLD, NEW, OTHER = "aaaaaaaa-0000", "bbbbbbbb-0000", "cccccccc-0000"


def state_of_everything() -> tuple[object, ...]:
    """Return all rows that a change touches, without keys and times."""
    return (
        sorted(Commitment.objects.values_list("commitment_uuid", "state", "requested_amount")),
        sorted(
            Reservation.objects.values_list(
                "commitment__commitment_uuid", "slot_index", "target_host__name", "memory_bytes"
            )
        ),
        sorted(
            ReservationAllocation.objects.values_list(
                "vm_uuid", "state", "reservation__slot_index", "confirmed_host__name"
            ),
            key=str,
        ),
        sorted(HostCapacity.objects.values_list("host__name", "committed_memory_bytes")),
        sorted(CommitmentEvent.objects.values_list("commitment_uuid", "action")),
        sorted(AuditEntry.objects.values_list("object_id", "action")),
        sorted(Outbox.objects.values_list("object_id", "topic")),
    )


def test_killed_change_request_leaves_the_whole_change_or_nothing() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(4, memory_gib=4, vcpus=4)
    decide({"alpha": {RAM: [change(OLD, 6)]}})
    changes = [
        change(OLD, 6, "superseded", old="confirmed"),
        change(NEW, 4),
        change(OTHER, 12, None, old="planned"),
    ]

    def work() -> None:
        assert not decide(
            {"alpha": {RAM: changes}, "beta": {RAM: [change("dddddddd", 5)]}}
        ).rejection_reason

    states = die_at_every_statement(work, state_of_everything)
    before, after = states[0], states[-1]
    assert before != after
    assert len(states) > 10
    first_after = states.index(after)
    assert all(state == before for state in states[:first_after])
    assert all(state == after for state in states[first_after:])


def test_killed_repair_run_leaves_whole_commitments_and_the_next_run_finishes() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(2, memory_gib=4, vcpus=4)
    decide({"alpha": {RAM: [change(NEW, 9, "pending")]}})
    decide({"alpha": {RAM: [change(OTHER, 3, "pending")]}})
    Commitment.objects.update(next_reconcile_at=timezone.now())
    make_hosts(4, prefix="late", memory_gib=4, vcpus=4)

    def work() -> None:
        repair_due_commitments(actor=task_actor("test"), request_id="repair")

    states = die_at_every_statement(work, state_of_everything)
    assert states[0] != states[-1]
    assert set(map(repr, states)) == {repr(states[0]), repr(states[-1])}
    for row in Commitment.objects.all():
        assert row.ready_reason == "Accepted"
        assert sum(slot.memory_bytes for slot in row.slots.all()) == row.requested_amount
    held = sum(HostCapacity.objects.values_list("committed_memory_bytes", flat=True))
    assert held == 12 * GIB


def test_killed_rejection_leaves_the_whole_rollback_or_nothing() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(2, memory_gib=4, vcpus=4)
    decide({"alpha": {RAM: [change(NEW, 4)]}})
    Commitment.objects.update(
        requested_amount=40 * GIB, allow_rejection=True, generation=2, next_reconcile_at=NOW
    )
    Reservation.objects.filter(slot_index=0).delete()

    def work() -> None:
        repair_due_commitments(actor=task_actor("test"), request_id="repair", now=NOW)

    states = die_at_every_statement(work, state_of_everything)
    assert states[0] != states[-1]
    assert set(map(repr, states)) == {repr(states[0]), repr(states[-1])}
    row = Commitment.objects.get()
    assert (row.ready_reason, row.accepted_amount) == ("Rejected", 4 * GIB)
    assert row.slots.count() == 4


def test_killed_verification_leaves_whole_chunks_and_the_next_run_finishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("commitments.services.verification.CHUNK_SLOTS", 2)
    make_group("hana_1", flavors=[("small", 4096, 1)])
    old = make_host("old", memory_gib=4000, vcpus=400)
    new = make_host("new", memory_gib=4000, vcpus=400)
    slots = [accepted_slot(old) for _ in range(4)]
    vms = [vm_on(old, openstack_id=f"vm-{n}") for n in range(4)]
    for slot, vm in zip(slots, vms, strict=True):
        put_into(slot, vm.openstack_id, minutes=60, is_confirmed=vm is not vms[0])
    move(vms[1], new)
    delete(vms[2])
    vm_on(old, openstack_id="extra")
    put_into(slots[3], "never", minutes=60)

    def work() -> None:
        verify(60)

    states = die_at_every_statement(work, state_of_everything)
    distinct = list(dict.fromkeys(map(repr, states)))
    assert 2 <= len(distinct) <= 4  # nothing, one chunk, both chunks
    assert_rooms_add_up()
    assert verify(63).events == {"gone": 1}
    in_slots = ReservationAllocation.objects.order_by("vm_uuid")
    assert list(in_slots.values_list("vm_uuid", "confirmed_host__name")) == [
        ("vm-0", "old"),
        ("vm-1", "new"),
        ("vm-3", "old"),
    ]
    verify(120)
    settled = state_of_everything()
    run_in_child(work, die_at=10_000)
    assert state_of_everything() == settled


def test_killed_move_off_a_lost_host_leaves_every_slot_on_one_host() -> None:
    make_group("hana_1", flavors=[("small", 4096, 1)])
    lost = make_host("lost", memory_gib=960, vcpus=80)
    make_host("other", memory_gib=960, vcpus=80)
    for _ in range(2):
        accepted_slot(lost)
    lost.state = "down"
    lost.save(update_fields=["state"])

    def work() -> None:
        verify(60)

    states = die_at_every_statement(work, state_of_everything)
    assert set(map(repr, states)) == {repr(states[0]), repr(states[-1])}
    assert set(Reservation.objects.values_list("target_host__name", flat=True)) == {"other"}
    assert_rooms_add_up()
