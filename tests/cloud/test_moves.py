"""What the steps about moves ask Headroom's database, of moves as the feed's tests make them."""

from __future__ import annotations

import pytest

from capacity.models import HostCapacity
from cloud import feed, moves
from hosts.feed.lists import PassKind
from hosts.models import Host
from tests.cloud.test_claims import rows
from tests.hosts.feed_cloud import LiveCloud, read_cloud

pytestmark = pytest.mark.django_db(transaction=True)
GIB = 1 << 30


def found(query: str, *values: str | int | bool) -> bool:
    return bool(rows(query, *values))


def test_what_is_held_and_counted_of_a_move_is_found() -> None:
    cloud = LiveCloud(hosts=3)
    cloud.boot("v1", 1)
    read_cloud(cloud)
    source, target = (Host.objects.get(name=name).service_host for name in ("node1", "node3"))
    assert found(moves.NOT_HELD, "v1")
    assert found(moves.COUNTED_ANEW)
    assert not found(feed.NO_VM)

    migration = cloud.start("v1", 1, 3)
    read_cloud(cloud, PassKind.MIGRATIONS, PassKind.CHANGES)
    size = 8 * GIB
    assert found(moves.HELD, "v1", size, size, source, False)
    assert found(moves.HELD, "v1", size, size, target, True)
    assert not found(moves.HELD, "v1", size, size, source, True)
    assert not found(moves.HELD, "v1", 2 * size, 2 * size, source, False)
    assert found(moves.COUNTED, "v1", source, size)
    assert not found(moves.COUNTED, "v1", target, size)
    assert not found(moves.NOT_HELD, "v1")
    assert not found(moves.WRONG)

    migration["status"] = "completed"
    cloud.put("v1", 3)
    read_cloud(cloud, PassKind.MIGRATIONS, PassKind.CHANGES)
    assert found(moves.COUNTED, "v1", target, size)
    assert found(moves.NOT_HELD, "v1")
    assert not found(moves.WRONG)

    HostCapacity.objects.filter(host__name="node3").update(counted_from="placement")
    assert not found(moves.COUNTED_ANEW)
    HostCapacity.objects.filter(host__name="node3").update(allocated_memory_bytes=GIB)
    assert rows(moves.WRONG) == [(f"node3 counts {GIB} allocated and 0 in flight",)]


def test_the_flavors_that_move_have_the_sizes_of_the_cloud() -> None:
    assert moves._bytes(moves.SMALL) == 8 * GIB
    assert moves._bytes(moves.LARGE) == 32 * GIB
