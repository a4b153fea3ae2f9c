"""Failover reservations of amounts that hold no VM (spec failover, 3.1, 13.2 step 2)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from capacity.models import HostCapacity, ReadyReason, Reservation
from failover.conf import current_config
from failover.models import FailoverReservation
from failover.selectors.coverage import coverage_by_flavor
from failover.selectors.zone import failover_requirements, load_zone
from failover.tasks import validate_one_zone
from failover.validation import InvalidResourceAmount, validate_amounts
from tests.failover.zones import hosts, require, slots, vm

pytestmark = pytest.mark.django_db


def write(column: str, amount: int | None) -> None:
    """Set an amount as somebody does by hand."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE capacity_reservation SET {column} = %s", [amount])  # noqa: S608
    FailoverReservation.objects.update(next_validation_at=timezone.now() - timedelta(seconds=1))


def reservation() -> tuple[bool | None, str, str]:
    row = Reservation.objects.get()
    return row.is_ready, row.ready_reason, row.ready_message


def is_used() -> bool:
    snapshot = load_zone("az-a", current_config(failover_requirements()), now=timezone.now())
    return bool(snapshot.slots.is_usable[0])


def held_memory_bytes() -> int:
    return HostCapacity.objects.get(host__name="host2").failover_memory_bytes


@pytest.mark.parametrize(("column", "name"), [("vcpus", "cpu"), ("memory_bytes", "memory")])
def test_reservation_of_nothing_is_not_ready_and_covers_nobody(column: str, name: str) -> None:
    hosts("host1 host2 host3 host4")
    vm("vm-a@host1")
    require(any=1)
    slots("res@host2{vm-a@host1}")
    before, held = getattr(Reservation.objects.get(), column), held_memory_bytes()
    write(column, before)
    assert validate_one_zone("az-a")["valid"] == 1
    assert (is_used(), coverage_by_flavor()[0].covered_vms) == (True, 1)

    write(column, 0)
    for _ in range(2):
        assert validate_one_zone("az-a")["deleted"] == 0
        invalid = (False, ReadyReason.INVALID_RESOURCES.value)
        assert reservation() == (*invalid, f"invalid amount of {name}: 0, no VM fits in")
        assert (is_used(), coverage_by_flavor()[0].covered_vms) == (False, 0)
        assert (Reservation.objects.get().allocations.count(), held_memory_bytes()) == (1, held)
    due = FailoverReservation.objects.get().next_validation_at
    assert due is not None
    assert due > timezone.now()

    write(column, before)
    assert validate_one_zone("az-a")["valid"] == 1
    assert reservation() == (True, ReadyReason.ACTIVE.value, "")
    assert is_used()


@pytest.mark.parametrize("column", ["vcpus", "memory_bytes"])
@pytest.mark.parametrize("amount", [-1, None])
def test_database_refuses_less_than_nothing_and_what_is_no_amount(
    column: str, amount: int | None
) -> None:
    hosts("host1 host2")
    slots("res@host2{}")
    with pytest.raises(IntegrityError), transaction.atomic():
        write(column, amount)


@pytest.mark.parametrize(("memory_bytes", "vcpus"), [(0, 1), (1, 0), (-1, 1), (0, 0)])
def test_amounts_of_nothing_are_refused(memory_bytes: int, vcpus: int) -> None:
    validate_amounts(memory_bytes=1, vcpus=1)
    with pytest.raises(InvalidResourceAmount):
        validate_amounts(memory_bytes=memory_bytes, vcpus=vcpus)
