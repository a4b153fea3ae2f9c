"""Gauges of capacity and usage (spec placement, 10.2)."""

from __future__ import annotations

from uuid import uuid4

import pytest

from capacity.models import GroupCapacity
from journal.metrics import metrics_page
from journal.readings import Scraped
from placement.metrics import INVENTORIES
from placement.models import Inventory, ResourceProvider
from tests.placement.rows import allocate, make_provider

pytestmark = pytest.mark.django_db


def values(collector: Scraped, name: str) -> dict[tuple[str, ...], float]:
    family = next(family for family in collector.collect() if family.name == name)
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def test_sums_are_by_class_and_zone_of_the_root() -> None:
    host = make_provider("host", inventories={"VCPU": 16})
    ResourceProvider.objects.filter(pk=host.pk).update(zone="az-a")
    cell = make_provider("cell", parent=host, inventories={"PCPU": 8})
    make_provider("other", inventories={"VCPU": 4})
    allocate(uuid4(), {host: {"VCPU": 5}, cell: {"PCPU": 2}})
    Inventory.objects.filter(provider=host).update(allocation_ratio=1.55, reserved=1)
    collector = INVENTORIES
    assert values(collector, "placement_capacity") == {
        ("PCPU", "az-a"): 8,
        ("VCPU", ""): 4,
        ("VCPU", "az-a"): 23,
    }
    assert values(collector, "placement_used") == {
        ("PCPU", "az-a"): 2,
        ("VCPU", ""): 0,
        ("VCPU", "az-a"): 5,
    }
    assert values(collector, "placement_overcommitted_inventories") == {("PCPU",): 0, ("VCPU",): 0}


def test_inventories_that_shrank_below_their_usage_are_counted() -> None:
    host = make_provider("host", inventories={"VCPU": 16})
    allocate(uuid4(), {host: {"VCPU": 5}})
    Inventory.objects.filter(provider=host).update(total=4)
    assert values(INVENTORIES, "placement_overcommitted_inventories") == {("VCPU",): 1}


def test_gauges_are_on_the_metrics_page() -> None:
    assert b"# TYPE placement_capacity gauge" in metrics_page()


def test_the_hosts_that_nova_should_ask_for_are_told() -> None:
    assert values(INVENTORIES, "placement_largest_group_hosts") == {}
    for zone, name, hosts in (("a", "small", 3), ("b", "small", 4), ("a", "large", 6)):
        row, _ = GroupCapacity.objects.get_or_create(group_name=name, zone=zone)
        row.flavors.create(flavor_name=name, total_hosts=hosts)
    assert values(INVENTORIES, "placement_largest_group_hosts") == {("small",): 7}
