"""Reservations sized by the largest flavor of the group (spec failover, 12.2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.models import Reservation
from failover.conf import current_config
from tests.factories import make_group
from tests.failover.zones import cover, flavor, hosts, require, run, vm

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("by_group", "expected"),
    [
        pytest.param(True, ("large", "group_1", 16 << 30, 8), id="by group"),
        pytest.param(False, ("small", "small", 4 << 30, 2), id="by flavor"),
    ],
)
def test_reservation_is_as_large_as_configured(
    by_group: bool, expected: tuple[str, str, int, int]
) -> None:
    hosts("host1 host2 host3")
    make_group("group_1", flavors=[("small", 4096, 2), ("large", 16384, 8)])
    vm("vm-1@host1", of=flavor("small", vcpus=2, gib=4))
    require(any=1)
    config = replace(current_config({"*": 1}), use_flavor_group_resources=by_group)
    run(config=config)
    run(config=config)
    row = Reservation.objects.get()
    found = (row.resource_name, row.flavor_group_name, row.memory_bytes, row.vcpus)
    assert found == expected
    assert cover() == {"vm-1": 1}


def test_groups_that_are_not_known_yet_leave_the_size_of_the_flavor() -> None:
    hosts("host1 host2")
    vm("vm-1@host1", of=flavor("small", vcpus=2, gib=4))
    require(any=1)
    run(config=replace(current_config({"*": 1}), use_flavor_group_resources=True))
    assert Reservation.objects.get().memory_bytes == 4 << 30
