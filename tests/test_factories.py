from __future__ import annotations

import pytest

from capacity.models import FlavorGroupSnapshot, HostCapacity
from scheduling.resources import GIB
from tests import factories

pytestmark = pytest.mark.django_db


def test_a_host_has_its_capacity_row() -> None:
    host = factories.make_host("h1", zone="az-b", memory_gib=64, vcpus=32)

    room = HostCapacity.objects.get(host=host)

    assert (room.zone, room.effective_memory_bytes, room.effective_vcpus) == ("az-b", 64 * GIB, 32)


def test_a_group_orders_its_flavors_and_is_ready() -> None:
    group = factories.make_group("hana_1")

    names = list(group.members.values_list("flavor__name", flat=True))

    assert names == ["large", "medium", "small"]
    assert group.ram_core_ratio_mib == 4096
    assert FlavorGroupSnapshot.objects.get().is_ready


@pytest.mark.parametrize(
    ("vm_gib", "slot_state", "blocked_gib", "allocated_gib"),
    [
        pytest.param(None, "confirmed", 16, 0, id="no VM"),
        pytest.param(4, "confirmed", 12, 4, id="confirmed VM"),
        pytest.param(24, "confirmed", 0, 24, id="confirmed VM larger than the slot"),
        pytest.param(4, "expected", 16, 4, id="expected VM"),
    ],
)
def test_room_follows_slots_and_vms(
    vm_gib: int | None, slot_state: str, blocked_gib: int, allocated_gib: int
) -> None:
    host = factories.make_host()
    commitment = factories.make_commitment(amount_gib=16)
    slot = factories.make_slot(commitment, host, memory_gib=16, vcpus=4)
    if vm_gib is not None:
        factories.make_vm("vm", host, slot=slot, slot_state=slot_state, memory_gib=vm_gib)

    room = HostCapacity.objects.get(host=host)

    assert room.committed_memory_bytes == blocked_gib * GIB
    assert room.allocated_memory_bytes == allocated_gib * GIB


def test_a_slot_without_host_blocks_nothing() -> None:
    commitment = factories.make_commitment()

    slot = factories.make_slot(commitment, None)

    assert (slot.blocked_memory_bytes, slot.is_ready) == (0, False)
