from __future__ import annotations

from itertools import chain
from uuid import UUID, uuid4

import pytest
from django.db import connection

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation
from cloud import claims
from cloud.exercise import STEPS
from cloud.feed import FEED_STEPS
from cloud.layout import FLAVORS, SHAPES, ZONES
from cloud.lifecycles import LIFECYCLE_STEPS
from cloud.moves import MOVE_STEPS
from cloud.reader import READER_STEPS
from placement.models import Origin, ResourceProvider
from tests import factories
from tests.placement.rows import allocate, make_provider

GIB = 1 << 30


def rows(query: str, *values: str | int | bool) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values or None)
        return list(cursor.fetchall())


def test_no_step_takes_the_place_of_another() -> None:
    others = set(
        chain(
            claims.COMMITTED_STEPS,
            claims.ASKED_STEPS,
            FEED_STEPS,
            LIFECYCLE_STEPS,
            MOVE_STEPS,
            READER_STEPS,
        )
    )
    assert len(STEPS) == len(others) + 17


def test_the_places_are_those_of_the_flavor_on_hosts_that_take_it() -> None:
    flavor = next(one for one in FLAVORS if one.name == claims.BURST_FLAVOR)
    host = SHAPES["general"]
    memory_mib = host.memory_mib - host.reserved_memory_mib
    vcpus = int((host.vcpus - host.reserved_vcpus) * host.vcpu_ratio)
    on_host = min(memory_mib // flavor.memory_mib, vcpus // flavor.vcpus)
    assert on_host * 2 * len(ZONES) == claims.PLACES
    assert flavor.memory_mib == claims.BURST_GIB * 1024
    assert claims.HELD_GIB * 1024 - memory_mib == 2 * flavor.memory_mib


@pytest.mark.django_db
def test_what_is_wrong_in_the_ledger_is_found() -> None:
    host = factories.make_host("h1", memory_gib=64)
    provider = make_provider("h1", inventories={"MEMORY_MB": 65536}, uuid=UUID(host.openstack_id))
    ResourceProvider.objects.filter(pk=provider.pk).update(origin=Origin.HOST)
    vm = uuid4()
    allocate(vm, {provider: {"MEMORY_MB": 8192}})
    slot = factories.make_slot(factories.make_commitment(), host, memory_gib=32, vcpus=4)
    factories.make_vm(host=host, openstack_id=str(vm), memory_gib=8, vcpus=2, slot=slot)
    rebuild_host_capacity()
    assert rows(claims.WRONG) == []
    assert rows(claims._INSIDE) == [("h1", str(vm))]
    assert rows(claims._ROOMS, "az-a") == [("h1", 32, 24)]
    assert rows(claims._IN_FLIGHT) == []

    Reservation.objects.filter(pk=slot.pk).update(blocked_memory_bytes=32 * GIB)
    HostCapacity.objects.filter(host=host).update(allocated_memory_bytes=9 * GIB)
    assert [text for (text,) in rows(claims.WRONG)] == [
        f"slot {slot.pk} blocks {32 * GIB}",
        f"h1 counts {24 * GIB} held",
        f"h1 counts {9 * GIB} allocated",
    ]
