"""The rule of what a slot blocks is the same where rows are written and where plans are made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from capacity.ledger.rooms import blocks_by_host, rebuild_host_capacity, refresh_blocks
from capacity.ledger.vms import NO_VMS, slot_vm_sums
from capacity.models import AllocationState, Reservation, ReservationAllocation
from commitments.domain.slot_room import shrunk_block
from commitments.services.admission import slot_room
from hosts.models import Host
from journal.statements import fetch_rows
from scheduling.resources import GIB, ZERO, ResourceVector
from tests.blocked_views import AllocationView, ReservationView, unused_reservation_capacity
from tests.claims import assert_slots_block_by_the_rule
from tests.examples import few
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
SETTLE: Final = """
SELECT host_id, committed_memory_bytes, committed_vcpus
  FROM capacity_settle_claims(%s, %s::bigint[], %s::jsonb) WHERE failover_id IS NULL
"""


class Vm(NamedTuple):
    """A VM in the slot: GiB and vCPUs, whether it was seen, hosts that hold it in flight."""

    gib: int
    is_confirmed: bool
    flights: frozenset[str]


vms = st.builds(
    Vm, st.integers(1, 12), st.booleans(), st.frozensets(st.sampled_from(HOSTS), max_size=2)
)


places = st.sampled_from([*HOSTS, None])


@contextmanager
def slot_with(
    target: str | None, confirmed: str | None, inside: list[Vm]
) -> Iterator[tuple[Reservation, dict[str, Host]]]:
    """Make a slot with VMs, seen or only placed, some of them in flight; take all back after."""
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
                    flavor_group_name=slot.flavor_group_name,
                )
        yield slot, hosts
    finally:
        transaction.savepoint_rollback(savepoint)


@pytest.mark.sql("capacity_wanted_blocks", "capacity_vms_in_slot")
@few(25)
@given(target=places, confirmed=places, inside=st.lists(vms, max_size=4))
def test_statement_and_plan_block_the_same(
    target: str | None, confirmed: str | None, inside: list[Vm]
) -> None:
    with slot_with(target, confirmed, inside) as (slot, _):
        refresh_blocks([slot.pk])

        slot.refresh_from_db()
        assert slot.blocked == unused_reservation_capacity(_view(slot, target, confirmed, inside))
        room = slot_room(slot, slot_vm_sums([slot.pk]).get(slot.pk, NO_VMS))
        if target is not None and confirmed is not None:
            assert shrunk_block(room, slot.size) == slot.blocked
        assert rebuild_host_capacity() == 0


@pytest.mark.sql("capacity_settle_claims", "capacity_join_slots")
@few(25)
@given(
    target=places,
    confirmed=places,
    inside=st.lists(vms, max_size=4),
    claimed=st.dictionaries(st.sampled_from("0123"), st.tuples(places, st.integers(1, 12))),
)
def test_claims_and_plan_block_the_same(
    target: str | None,
    confirmed: str | None,
    inside: list[Vm],
    claimed: dict[str, tuple[str | None, int]],
) -> None:
    with slot_with(target, confirmed, inside) as (slot, hosts):
        refresh_blocks([slot.pk])
        before = blocks_by_host([Reservation.objects.get(pk=slot.pk)])
        pieces = [
            {
                "vm": vm,
                "project": slot.project_id,
                "host": hosts[name].pk,
                "memory_bytes": gib * GIB,
                "vcpus": gib,
                "classes": {},
            }
            for vm, (name, gib) in claimed.items()
            if name is not None
        ]
        touched = sorted({hosts[name].pk for name, _ in claimed.values() if name is not None})

        grown = fetch_rows(SETTLE, [list(claimed), touched, json.dumps(pieces)])

        assert_slots_block_by_the_rule()
        after = blocks_by_host([Reservation.objects.get(pk=slot.pk)])
        told = {
            host_id: ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
            for host_id, memory_bytes, vcpus in grown
        }
        for host in hosts.values():
            change = after.get(host.pk, ZERO) - before.get(host.pk, ZERO)
            assert told.get(host.pk, ZERO) == change, host.name


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
