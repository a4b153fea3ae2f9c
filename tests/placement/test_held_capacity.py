"""Held capacity of hosts in candidates (spec placement, 8.4)."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client

from capacity.models import Reservation
from hosts.models import Host
from placement.models import Origin, ResourceProvider
from placement.selectors.snapshot import current_snapshot, load_snapshot, reset_snapshot
from tests.domain.placement.facts import facts
from tests.factories import make_host, make_reservation, recount_room
from tests.placement.client import PlacementClient, placement_settings
from tests.placement.rows import make_provider

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


def candidates(settings: Any, resources: str, *, subtract: bool = True) -> int:
    placement_settings(settings, subtract_held=subtract)
    answer = PlacementClient().get(f"/allocation_candidates?resources={resources}").json
    return len(answer["allocation_requests"])


def is_true(settings: Any) -> bool:
    placement_settings(settings, subtract_held=True)
    return facts(current_snapshot()) == facts(load_snapshot())


def test_held_room_is_left_out_of_candidates_where_that_is_set(settings: Any, host: Host) -> None:
    assert candidates(settings, "VCPU:16") == 2
    make_reservation(host, memory_gib=16, vcpus=4)
    assert candidates(settings, "VCPU:16") == 1
    assert candidates(settings, "VCPU:12") == 2
    assert candidates(settings, f"MEMORY_MB:{49152}") == 2
    assert candidates(settings, f"MEMORY_MB:{49153}") == 1
    assert candidates(settings, "DISK_GB:10") == 1
    assert is_true(settings)
    reset_snapshot()
    assert candidates(settings, "VCPU:16", subtract=False) == 2


def test_room_given_back_is_offered_again(settings: Any, host: Host) -> None:
    make_reservation(host, memory_gib=16, vcpus=4)
    assert candidates(settings, "VCPU:16") == 1
    Reservation.objects.all().delete()
    recount_room(host)
    assert candidates(settings, "VCPU:16") == 2
    assert is_true(settings)


def test_held_memory_is_rounded_up_to_whole_units(settings: Any, host: Host) -> None:
    make_reservation(host, memory_gib=1, vcpus=1, blocked_memory_bytes=1)
    assert candidates(settings, "MEMORY_MB:65536") == 1
    assert candidates(settings, "MEMORY_MB:65535") == 2


def test_changes_of_trees_and_of_held_room_are_applied_together(settings: Any, host: Host) -> None:
    assert candidates(settings, "VCPU:16") == 2
    make_reservation(host, memory_gib=16, vcpus=4)
    client = PlacementClient()
    client.set_inventory(host.openstack_id, VCPU=20)
    client.make_provider(VCPU=16)
    assert candidates(settings, "VCPU:17") == 0
    assert candidates(settings, "VCPU:16") == 3
    assert is_true(settings)


def test_explanation_shows_what_is_held_whether_it_is_subtracted_or_not(
    settings: Any, host: Host
) -> None:
    make_reservation(host, memory_gib=16, vcpus=4)
    for subtract in (False, True):
        placement_settings(settings, subtract_held=subtract)
        reset_snapshot()
        response = Client().get(
            "/api/v1/placement/explain?resources=VCPU:1", headers={"X-Auth-Token": "admin"}
        )
        answer = response.json()
        assert answer["held_capacity_is_subtracted"] is subtract
        assert answer["held_capacity"] == {host.openstack_id: {"VCPU": 4, "MEMORY_MB": 16384}}
