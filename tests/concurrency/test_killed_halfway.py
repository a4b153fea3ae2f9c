"""A process that dies at any statement leaves the whole change or nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone

from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment, CommitmentEvent
from commitments.services.repair import repair_due_commitments
from journal.actors import task_actor
from journal.models import AuditEntry, Outbox
from scheduling.resources import GIB
from tests.commitments.change_requests import RAM, change, decide
from tests.factories import make_group, make_hosts

pytestmark = pytest.mark.django_db(transaction=True)

OLD, NEW, OTHER = "aaaaaaaa-0000", "bbbbbbbb-0000", "cccccccc-0000"
MOST_STATEMENTS = 200


def die_at_statement(number: int) -> Callable[..., Any]:
    """Return an execute wrapper that kills its process just before statement ``number``."""
    seen = 0

    def wrapper(execute: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(*arguments)

    return wrapper


def run_in_child(work: Callable[[], None], die_at: int) -> bool:
    """Run ``work`` in a forked process that dies at a statement; return whether it finished."""
    connections.close_all()
    child = os.fork()
    if child == 0:
        try:
            with connection.execute_wrapper(die_at_statement(die_at)):
                work()
        except BaseException:  # noqa: BLE001 - the child must never return into the test runner
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return True


def state_of_everything() -> tuple[object, ...]:
    """Return all rows that a change touches, without keys and times."""
    return (
        sorted(Commitment.objects.values_list("commitment_uuid", "state", "requested_amount")),
        sorted(
            Reservation.objects.values_list(
                "commitment__commitment_uuid", "slot_index", "target_host__name", "memory_bytes"
            )
        ),
        sorted(HostCapacity.objects.values_list("host__name", "committed_memory_bytes")),
        sorted(CommitmentEvent.objects.values_list("commitment_uuid", "action")),
        sorted(AuditEntry.objects.values_list("object_id", "action")),
        sorted(Outbox.objects.values_list("object_id", "topic")),
    )


def die_at_every_statement(work: Callable[[], None]) -> list[tuple[object, ...]]:
    """Kill ``work`` at its first, second, ... statement until it finishes; return the states."""
    states = [state_of_everything()]
    for number in range(1, MOST_STATEMENTS):
        has_finished = run_in_child(work, number)
        states.append(state_of_everything())
        if has_finished:
            return states
    pytest.fail(f"not finished after {MOST_STATEMENTS} statements")


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

    states = die_at_every_statement(work)
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

    states = die_at_every_statement(work)
    assert states[0] != states[-1]
    assert set(map(repr, states)) == {repr(states[0]), repr(states[-1])}
    for row in Commitment.objects.all():
        assert row.ready_reason == "Accepted"
        assert sum(slot.memory_bytes for slot in row.slots.all()) == row.requested_amount
    held = sum(HostCapacity.objects.values_list("committed_memory_bytes", flat=True))
    assert held == 12 * GIB
