"""Rooms follow a change of ``HEADROOM_ALLOCATION_SOURCE``, whatever happened before (ADR 0014)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

from bridge.hypervisors import allocated
from capacity import hooks
from capacity.doctor import check_drift
from capacity.ledger import recounting
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation
from capacity.tasks import recount_rooms
from core.doctor.findings import Severity
from hosts.models import Host, ServerMigration
from placement.models import Consumer
from placement.tasks import reconcile_hosts
from tests.factories import make_commitment, make_host, make_slot, make_vm
from tests.killing import die_at_every_statement
from tests.ledger import assert_rooms_add_up
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.placement.test_allocation_source import GIB, TWO_GIB, use_source

pytestmark = pytest.mark.django_db(transaction=True)

#: What each source says that VMs take of the hosts, in GiB.
SAID = {"instances": [4, 0, 4], "placement": [2, 2, 0], "hypervisor": [8, 0, 16]}
PAIRS = list(permutations(SAID, 2))


@pytest.fixture(autouse=True)
def hosts(settings: Any) -> Iterator[list[Host]]:
    """Hosts of which each source says something else, counted from no source."""
    before = hooks.allocation_sources()
    hooks.add_allocation_source(allocated.NAME, allocated.SOURCE)
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    made = [make_host(name, memory_gib=64, vcpus=32) for name in ("h1", "h2", "h3")]
    rebuild_host_capacity()
    reconcile_hosts()
    client = PlacementClient(X_Roles="admin,service")
    for host in made[:2]:
        assert client.allocate(uuid(), {host.openstack_id: TWO_GIB}).status == 204
    for host, gib in zip(made, SAID["hypervisor"], strict=True):
        host.reported_memory_bytes, host.reported_vcpus = gib * GIB, gib
        host.reported_instances = []
        host.save()
    make_vm("v1", made[0], memory_gib=4)
    make_vm("v3", made[2], memory_gib=4)
    HostCapacity.objects.update(counted_from=None)
    yield made
    hooks._allocation_sources.clear()
    hooks._allocation_sources.update(before)


def counted() -> tuple[list[int], list[str | None]]:
    """Return the GiB that rooms say is allocated, and from which source, by name of the host."""
    rooms = HostCapacity.objects.order_by("host__name")
    sizes = rooms.values_list("allocated_memory_bytes", flat=True)
    return [size // GIB for size in sizes], list(rooms.values_list("counted_from", flat=True))


def told() -> list[str]:
    """Return what the doctor says of rooms that are counted otherwise."""
    return [
        finding.found
        for finding in check_drift()
        if "still counted" in finding.found and finding.severity is Severity.WARNING
    ]


@pytest.mark.parametrize(("former", "source"), PAIRS)
def test_rooms_are_counted_anew_without_anything_else_being_written(
    settings: Any, former: str, source: str
) -> None:
    use_source(settings, former)
    assert recount_rooms() == {"recounted": 3}
    assert counted() == (SAID[former], [former] * 3)
    assert told() == []

    use_source(settings, source)
    assert told() == [
        f"3 hosts still counted from {former}: HEADROOM_ALLOCATION_SOURCE is {source} now"
    ]
    assert recount_rooms() == {"recounted": 3}
    assert counted() == (SAID[source], [source] * 3)
    assert told() == []
    assert recount_rooms() == {"recounted": 0}


def test_rooms_of_the_last_release_are_counted_once(settings: Any) -> None:
    use_source(settings, "instances")
    assert told() == [
        "3 hosts still counted from nobody: HEADROOM_ALLOCATION_SOURCE is instances now"
    ]
    recount_rooms()
    assert recount_rooms() == {"recounted": 0}


def test_a_placement_that_nobody_uses_is_no_drift(settings: Any) -> None:
    """What VMs take there is nothing, as where Nova asks another one."""
    use_source(settings, "instances")
    recount_rooms()
    assert [one.severity for one in check_drift() if "placement" in one.found] == [Severity.WARNING]
    for consumer in Consumer.objects.all():
        assert PlacementClient().delete(f"/allocations/{consumer.uuid}").status == 204
    (silent,) = [one for one in check_drift() if one.found.startswith("placement: ")]
    assert (silent.severity, silent.found) == (
        Severity.OK,
        "placement: tells of no VM, and is not what hosts are counted from",
    )

    use_source(settings, "placement")
    (lost,) = [one for one in check_drift() if one.found.startswith("placement: ")]
    assert lost.severity is Severity.ERROR, "the one in force has to tell of them"


@pytest.mark.parametrize(("former", "source"), PAIRS)
def test_a_process_with_the_old_setting_is_put_right(
    settings: Any, hosts: list[Host], former: str, source: str
) -> None:
    """As while processes are started anew one after the other."""
    use_source(settings, source)
    recount_rooms()
    use_source(settings, former)
    rebuild_host_capacity([hosts[0].pk])
    assert counted()[1] == [former, source, source]
    use_source(settings, source)
    assert recount_rooms() == {"recounted": 1}
    assert counted() == (SAID[source], [source] * 3)


def test_slots_and_their_holds_stay(settings: Any, hosts: list[Host]) -> None:
    use_source(settings, "placement")
    slot = make_slot(make_commitment(), hosts[1], memory_gib=16)
    recount_rooms()
    use_source(settings, "instances")
    recount_rooms()
    assert counted()[0] == SAID["instances"]
    assert Reservation.objects.get(pk=slot.pk).blocked_memory_bytes == 16 * GIB
    assert_rooms_add_up()


def held_on_h2() -> list[int]:
    """Return the GiB of each row that holds room for a move there."""
    rows = Reservation.objects.filter(kind="in_flight", target_host__name="h2")
    return [size // GIB for size in rows.values_list("blocked_memory_bytes", flat=True)]


def test_what_moves_is_held_where_the_source_does_not_count_it(settings: Any) -> None:
    ServerMigration.objects.create(
        uuid="m1",
        vm_uuid=make_vm("moving", Host.objects.get(name="h1"), memory_gib=4).openstack_id,
        migration_type="live-migration",
        status="running",
        source_name="h1",
        target_name="h2",
    )
    for source, held in (("instances", [4]), ("placement", []), ("instances", [4])):
        use_source(settings, source)
        recount_rooms()
        assert held_on_h2() == held
        assert_rooms_add_up()


def rooms() -> tuple[object, ...]:
    """Return GiB and source of each room, by name of the host."""
    return tuple(zip(*counted(), strict=True))


def test_killed_at_any_statement_it_goes_on(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recounting, "ROOMS_PER_PART", 1)
    use_source(settings, "placement")
    recount_rooms()
    before = rooms()
    use_source(settings, "instances")

    def work() -> None:
        recount_rooms()

    states = die_at_every_statement(work, rooms)
    after = tuple(zip(SAID["instances"], ["instances"] * 3, strict=True))
    # Each room is whole, old or new, and those that are done stay done.
    assert set(states) == {(*after[:done], *before[done:]) for done in range(4)}
    assert states[-1] == after
