"""What slots and VMs in flight into them block together is promised once."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.utils import timezone

from capacity.ledger.claims import blocked_twice_on
from scheduling.resources import GIB, ResourceVector
from tests.blocked_twice import blocked_twice_by_row
from tests.factories import (
    make_allocation,
    make_commitment,
    make_host,
    make_reservation,
    make_slot,
    make_vm,
)

pytestmark = [pytest.mark.django_db, pytest.mark.sql("capacity_blocked_twice")]

Row = tuple[str, str, int, str]

CASES: dict[str, tuple[list[Row], int]] = {
    "nothing to share": ([("in_flight", "a", 4, "v")], 0),
    "own slot": ([("committed", "a", 8, ""), ("in_flight", "a", 4, "v")], 4),
    "slot of another project": ([("committed", "a", 8, ""), ("in_flight", "b", 4, "v")], 0),
    "overfill": ([("committed", "a", 2, ""), ("in_flight", "a", 4, "v")], 2),
    "pools are sums": (
        [
            ("committed", "a", 4, ""),
            ("committed", "a", 4, ""),
            ("in_flight", "a", 6, "v"),
            ("in_flight", "a", 6, "w"),
        ],
        8,
    ),
    "evacuation": ([("failover", "", 4, "v"), ("evacuate", "a", 4, "v")], 4),
    "no evacuation": ([("failover", "", 4, "v"), ("in_flight", "a", 4, "v")], 0),
    "a VM shares no more than it takes": (
        [("committed", "a", 8, ""), ("failover", "", 4, "v"), ("evacuate", "a", 6, "v")],
        6,
    ),
    "a failover slot is shared once": (
        [("failover", "", 4, "v w"), ("evacuate", "a", 3, "v"), ("evacuate", "a", 3, "w")],
        4,
    ),
}


@pytest.mark.parametrize(("rows", "gib"), CASES.values(), ids=list(CASES))
def test_slots_and_vms_in_flight_into_them_block_the_same_room(rows: list[Row], gib: int) -> None:
    host = make_host("h1", memory_gib=99, vcpus=99)
    commitments = {name: make_commitment(group="g", project_id=name) for name in "ab"}
    for kind, project, size, vms in rows:
        if kind == "committed":
            make_slot(commitments[project], host, memory_gib=size, vcpus=size)
        elif kind == "failover":
            spare = make_reservation(host, memory_gib=size, vcpus=size)
            for vm in vms.split():
                make_allocation(spare, make_vm(vm, make_host(f"home of {vm}"), openstack_id=vm))
        else:
            make_reservation(
                host,
                kind="in_flight",
                memory_gib=size,
                vcpus=size,
                project_id=project,
                flavor_group_name="g",
                vm_uuid=vms,
                intent="evacuate" if kind == "evacuate" else "create",
                confirmed_host=None,
                placement_id=uuid4(),
                end_time=timezone.now(),
            )
    shared = ResourceVector(memory_bytes=gib * GIB, vcpus=gib)
    assert blocked_twice_on([host.pk]) == ({host.pk: shared} if gib else {})
    assert blocked_twice_on([host.pk]) == blocked_twice_by_row([host.pk])
