from __future__ import annotations

import pytest
from django.db import transaction

from capacity.models import HostCapacity, ReservationKind
from capacity.selectors.host_table import current_host_table, load_host_table
from capacity.services.ledger import move_blocks, rebuild_host_capacity
from hosts.models import Host, HostStatus
from scheduling.resources import GIB, ResourceVector
from scheduling.table import CAPACITY_COLUMNS, HostTable
from tests.factories import make_host, make_vm

pytestmark = pytest.mark.django_db(transaction=True)


def by_name(table: HostTable) -> dict[str, tuple[object, ...]]:
    return {
        name: (
            table.zones[table.zone[row]],
            bool(table.state_ok[row]),
            *(int(getattr(table, column)[row]) for column in CAPACITY_COLUMNS),
        )
        for name, row in table.row_of.items()
    }


def test_table_follows_changes_additions_and_deletions() -> None:
    make_host("h1")
    make_host("h2")
    assert set(current_host_table().names) == {"h1", "h2"}
    make_host("h3", zone="az-b")
    Host.objects.filter(name="h1").update(status=HostStatus.DISABLED)
    Host.objects.get(name="h2").delete()
    table = current_host_table()
    assert by_name(table) == by_name(load_host_table())
    assert set(table.names) == {"h1", "h3"}
    assert not table.state_ok[table.row_of["h1"]]


def test_table_follows_renamed_and_recreated_hosts() -> None:
    make_host("h1")
    make_host("h2")
    current_host_table()
    Host.objects.filter(name="h1").update(name="h9")
    Host.objects.get(name="h2").delete()
    make_host("h2", zone="az-c")
    assert by_name(current_host_table()) == by_name(load_host_table())


def test_rolled_back_writes_never_stay_in_the_table() -> None:
    host = make_host("h1", memory_gib=64)
    before = by_name(current_host_table())
    with transaction.atomic():
        taken = {host.pk: ResourceVector(memory_bytes=GIB, vcpus=1)}
        assert move_blocks(ReservationKind.COMMITTED, taken) == ()
        inside = current_host_table()
        assert inside.committed_memory_bytes[inside.row_of["h1"]] == GIB
        transaction.set_rollback(True)
    assert by_name(current_host_table()) == before


def test_block_is_refused_where_the_room_is_smaller_than_asked() -> None:
    small = make_host("h1", memory_gib=4, vcpus=2)
    large = make_host("h2", memory_gib=64, vcpus=32)
    asked = ResourceVector(memory_bytes=4 * GIB, vcpus=3)
    with transaction.atomic():
        refused = move_blocks(ReservationKind.COMMITTED, {small.pk: asked, large.pk: asked})
        transaction.set_rollback(True)
    assert refused == (small.pk,)


def test_block_may_shrink_on_an_oversubscribed_host() -> None:
    host = make_host("h1", memory_gib=8, vcpus=4)
    room = {host.pk: ResourceVector(memory_bytes=8 * GIB, vcpus=4)}
    with transaction.atomic():
        assert move_blocks(ReservationKind.COMMITTED, room) == ()
    Host.objects.update(effective_memory_bytes=GIB)
    rebuilt = HostCapacity.objects.filter(host=host)
    rebuilt.update(effective_memory_bytes=GIB)
    give_back = {host.pk: ResourceVector(memory_bytes=-GIB, vcpus=0)}
    with transaction.atomic():
        assert move_blocks(ReservationKind.COMMITTED, give_back) == ()
    assert rebuilt.get().committed_memory_bytes == 7 * GIB


def test_rebuild_counts_vms_and_writes_only_what_differs() -> None:
    host = make_host("h1")
    make_vm(host=host, memory_gib=4, vcpus=2)
    HostCapacity.objects.update(allocated_memory_bytes=0)
    with transaction.atomic():
        assert rebuild_host_capacity() == 1
    assert HostCapacity.objects.get().allocated_memory_bytes == 4 * GIB
    with transaction.atomic():
        assert rebuild_host_capacity() == 0
