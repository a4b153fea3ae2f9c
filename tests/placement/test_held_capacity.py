"""Held capacity of hosts in candidates (spec placement, 8.4)."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client

from capacity.models import Reservation
from hosts.models import Host
from placement.models import Origin, ResourceProvider
from placement.selectors.snapshot import current_snapshot
from tests.domain.placement.facts import facts
from tests.factories import make_host, make_reservation, recount_room
from tests.placement.client import PlacementClient, placement_settings
from tests.placement.rows import make_provider
from tests.process_tables import load_snapshot, reset_snapshot

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def host() -> Host:
    host = make_host("h1", openstack_id=str(uuid4()))
    row = make_provider(
        "h1",
        uuid=UUID(host.openstack_id),
        inventories={"VCPU": 16, "MEMORY_MB": 65536, "DISK_GB": 10},
    )
    ResourceProvider.objects.filter(pk=row.pk).update(origin=Origin.HOST)
    make_provider("other", inventories={"VCPU": 16, "MEMORY_MB": 65536})
    make_host("not-a-uuid", openstack_id="17")
    reset_snapshot()
    return host


def candidates(settings: Any, resources: str, *, hide: bool = True) -> int:
    placement_settings(settings, hide_fully_held=hide)
    answer = PlacementClient().get(f"/allocation_candidates?resources={resources}").json
    return len(answer["allocation_requests"])


def is_true(settings: Any) -> bool:
    placement_settings(settings, hide_fully_held=True)
    return facts(current_snapshot()) == facts(load_snapshot())


def test_hosts_all_of_whose_room_is_held_are_hidden_where_that_is_set(
    settings: Any, host: Host
) -> None:
    assert candidates(settings, "VCPU:16") == 2
    row = make_reservation(host, memory_gib=16, vcpus=15)
    assert candidates(settings, "VCPU:16") == 2
    row.blocked_vcpus = 16
    row.save()
    recount_room(host)
    assert candidates(settings, "VCPU:1") == 1
    assert candidates(settings, "MEMORY_MB:1") == 2
    assert candidates(settings, "DISK_GB:10") == 1
    assert is_true(settings)
    reset_snapshot()
    assert candidates(settings, "VCPU:16", hide=False) == 2


def test_room_given_back_is_offered_again(settings: Any, host: Host) -> None:
    make_reservation(host, memory_gib=16, vcpus=16)
    assert candidates(settings, "VCPU:16") == 1
    Reservation.objects.all().delete()
    recount_room(host)
    assert candidates(settings, "VCPU:16") == 2
    assert is_true(settings)


def test_held_memory_is_rounded_up_to_whole_units(settings: Any, host: Host) -> None:
    row = make_reservation(host, memory_gib=64, vcpus=1, blocked_memory_bytes=(64 << 30) - 1)
    assert candidates(settings, "MEMORY_MB:1") == 1
    row.blocked_memory_bytes = (64 << 30) - (1 << 20)
    row.save()
    recount_room(host)
    assert candidates(settings, "MEMORY_MB:1") == 2


def test_changes_of_trees_and_of_held_room_are_applied_together(settings: Any, host: Host) -> None:
    assert candidates(settings, "VCPU:16") == 2
    make_reservation(host, memory_gib=16, vcpus=20)
    client = PlacementClient()
    client.set_inventory(host.openstack_id, VCPU=20)
    client.make_provider(VCPU=16)
    assert candidates(settings, "VCPU:17") == 0
    assert candidates(settings, "VCPU:16") == 2
    assert is_true(settings)


def test_a_limit_shows_owners_and_strangers_their_hosts_in_turn(settings: Any) -> None:
    """Nine of ten hosts are held for somebody; each is shown after enough requests."""
    placement_settings(settings)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})
    made = {}
    for number in range(10):
        one = make_host(f"n{number}", openstack_id=str(uuid4()), memory_gib=64, vcpus=16)
        row = make_provider(one.name, uuid=UUID(one.openstack_id), inventories={"VCPU": 16})
        ResourceProvider.objects.filter(pk=row.pk).update(origin=Origin.HOST)
        made[one.openstack_id] = bool(number)
        if number:
            make_reservation(one, memory_gib=1, vcpus=16)
    reset_snapshot()
    client, seen = PlacementClient(), set()
    for _ in range(5):
        answer = client.get("/allocation_candidates?resources=VCPU:1&limit=4").json
        shown = [uuid for one in answer["allocation_requests"] for uuid in one["allocations"]]
        assert sorted(made[uuid] for uuid in shown) == [False, True, True, True]
        seen |= set(shown)
    assert seen == made.keys()
    everything = client.get("/allocation_candidates?resources=VCPU:1").json
    assert len(everything["allocation_requests"]) == 10


def test_explanation_shows_what_is_held_whether_it_is_hidden_or_not(
    settings: Any, host: Host
) -> None:
    make_reservation(host, memory_gib=16, vcpus=4)
    for hide in (False, True):
        placement_settings(settings, hide_fully_held=hide)
        reset_snapshot()
        response = Client().get(
            "/api/v1/placement/explain?resources=VCPU:1", headers={"X-Auth-Token": "admin"}
        )
        answer = response.json()
        assert answer["fully_held_hosts_are_hidden"] is hide
        assert answer["held_capacity"] == {host.openstack_id: {"VCPU": 4, "MEMORY_MB": 16384}}
