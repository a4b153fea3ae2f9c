"""The rule of what a slot blocks is the same where rows are written and where plans are made."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.ledger.rooms import rebuild_host_capacity, refresh_blocks
from capacity.ledger.vms import NO_VMS, slot_vm_sums
from capacity.models import AllocationState, Reservation, ReservationAllocation
from commitments.domain.slot_room import shrunk_block
from commitments.services.admission import slot_room
from scheduling.resources import GIB, ZERO, ResourceVector
from tests.blocked_views import AllocationView, ReservationView, unused_reservation_capacity
from tests.factories import (
    make_commitment,
    make_group,
    make_hosts,
    make_reservation,
    make_slot,
    recount_room,
)

pytestmark = pytest.mark.django_db

HOSTS = ("h1", "h2")


class Vm(NamedTuple):
    """A VM in the slot: GiB and vCPUs, whether it was seen, hosts that hold it in flight."""

    gib: int
    is_confirmed: bool
    flights: frozenset[str]


vms = st.builds(
    Vm, st.integers(1, 12), st.booleans(), st.frozensets(st.sampled_from(HOSTS), max_size=2)
)


@settings(max_examples=60)
@given(
    target=st.sampled_from([*HOSTS, None]),
    confirmed=st.sampled_from([*HOSTS, None]),
    inside=st.lists(vms, max_size=4),
)
def test_statement_and_plan_block_the_same(
    target: str | None, confirmed: str | None, inside: list[Vm]
) -> None:
    savepoint = transaction.savepoint()
    try:
        make_group("hana_1")
        hosts = {host.name: host for host in make_hosts(2, memory_gib=99, vcpus=99)}
        slot = make_slot(make_commitment(), hosts.get(target or ""), memory_gib=8, vcpus=8)
        slot.confirmed_host = hosts.get(confirmed or "")
        slot.save()
        for host in hosts.values():
            recount_room(host)
        for number, vm in enumerate(inside):
            ReservationAllocation.objects.create(
                reservation=slot,
                vm_uuid=str(number),
                state=AllocationState.CONFIRMED if vm.is_confirmed else AllocationState.EXPECTED,
                memory_bytes=vm.gib * GIB,
                vcpus=vm.gib,
                since=timezone.now(),
                confirmed_at=timezone.now() if vm.is_confirmed else None,
                confirmed_host=(slot.target_host or hosts["h1"]) if vm.is_confirmed else None,
            )
            for name in sorted(vm.flights):
                make_reservation(
                    hosts[name],
                    kind="in_flight",
                    vm_uuid=str(number),
                    end_time=timezone.now(),
                    placement_id="00000000-0000-0000-0000-000000000001",
                )

        refresh_blocks([slot.pk])

        slot.refresh_from_db()
        assert slot.blocked == unused_reservation_capacity(_view(slot, target, confirmed, inside))
        room = slot_room(slot, slot_vm_sums([slot.pk]).get(slot.pk, NO_VMS))
        if target is not None and confirmed is not None:
            assert shrunk_block(room, slot.size) == slot.blocked
        assert rebuild_host_capacity() == 0
    finally:
        transaction.savepoint_rollback(savepoint)


def _view(
    slot: Reservation, target: str | None, confirmed: str | None, inside: list[Vm]
) -> ReservationView:
    """Return the slot as the rule sees it; without a target it blocks nothing."""
    on = {host for host in (target, confirmed) if host is not None}
    return ReservationView(
        reservation_id=slot.pk,
        slot=slot.size if target else ZERO,
        target_host=target,
        host=confirmed,
        allocations=tuple(
            AllocationView(
                vm_uuid=str(number),
                resources=ResourceVector(memory_bytes=vm.gib * GIB, vcpus=vm.gib),
                is_confirmed=vm.is_confirmed,
            )
            for number, vm in enumerate(inside)
            if target and (vm.is_confirmed or not on <= vm.flights)
        ),
    )
