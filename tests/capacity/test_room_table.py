"""What is free on a host, as the ledger keeps it (spec hosts, C.4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from capacity.models import HostCapacity
from scheduling.resources import GIB
from tests.factories import make_commitment, make_group, make_host, make_slot, make_vm
from tests.ledger import assert_rooms_add_up

pytestmark = pytest.mark.django_db

Amount = tuple[int, int]  # GiB, vCPUs


@pytest.mark.parametrize(
    ("has", "vms", "slots", "inside", "free"),
    [
        pytest.param((1024, 256), [], [], [], (1024, 256), id="nothing"),
        pytest.param((1024, 256), [(512, 128)], [], [], (512, 128), id="VMs"),
        pytest.param(
            (1024, 256), [(256, 64)], [(512, 128)], [], (256, 64), id="VMs and an empty slot"
        ),
        pytest.param((4096, 256), [], [(1024, 128)] * 5, [], (-1024, -384), id="more than it has"),
        pytest.param((1024, 256), [], [(512, 128)], [(256, 64)], (512, 128), id="a VM in its slot"),
        pytest.param(
            (1024, 256), [], [(480, 40)], [(240, 20), (240, 20)], (544, 216), id="a full slot"
        ),
        pytest.param((1024, 256), [], [(480, 40)], [(600, 50)], (424, 206), id="a VM that grew"),
    ],
)
def test_free_is_what_the_table_says(
    has: Amount,
    vms: Sequence[Amount],
    slots: Sequence[Amount],
    inside: Sequence[Amount],
    free: Amount,
) -> None:
    make_group()
    host = make_host("h1", memory_gib=has[0], vcpus=has[1])
    for gib, vcpus in vms:
        make_vm(host=host, memory_gib=gib, vcpus=vcpus)
    commitment = make_commitment()
    made = [make_slot(commitment, host, memory_gib=gib, vcpus=vcpus) for gib, vcpus in slots]
    for gib, vcpus in inside:
        make_vm(host=host, slot=made[0], memory_gib=gib, vcpus=vcpus)
    room = HostCapacity.objects.get(host=host)
    assert (
        room.effective_memory_bytes - room.allocated_memory_bytes - room.committed_memory_bytes
        == (free[0] * GIB)
    )
    assert room.effective_vcpus - room.allocated_vcpus - room.committed_vcpus == free[1]
    if min(free) >= 0:
        assert_rooms_add_up()
