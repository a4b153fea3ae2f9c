"""How large the metrics page is, by hosts and projects."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.models import ProjectQuota
from journal.metrics import metric_name
from tests.factories import make_host, make_hosts, make_quota, make_reservation
from tests.scraping import scrape

pytestmark = pytest.mark.django_db

MB = 1_000_000
EMPTY = 250_000
"""Bytes of a page of a web process that just started; that of a test run has what ran before."""
ZONES = 4
RESOURCES = [f"hw_version_group_{group}_{kind}" for group in range(5) for kind in ("ram", "cores")]


def page() -> str:
    return scrape()


def lines(text: str, suffix: str, label: str = "") -> list[str]:
    return [
        line for line in text.splitlines() if line.startswith(metric_name(suffix)) and label in line
    ]


def tell(settings: Any, **most: int) -> None:
    changed = settings.HEADROOM.metrics.model_copy(update=most)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"metrics": changed})


def add_hosts(count: int, *, prefix: str) -> None:
    for host in make_hosts(count, prefix=f"node-{prefix}-", building_block="bb001", memory_gib=64):
        make_reservation(host, memory_gib=4, vcpus=1)


def add_project(project_id: str) -> None:
    for zone in range(ZONES):
        make_quota(project_id=project_id, zone=f"az-{zone}")
    ProjectQuota.objects.filter(project_id=project_id).update(
        total_usage=dict.fromkeys(RESOURCES, 12), payg_usage=dict.fromkeys(RESOURCES, 5)
    )


def test_largest_region_told_one_by_one_and_any_larger_one_stay_below_a_megabyte(
    settings: Any,
) -> None:
    small = len(page())
    add_hosts(10, prefix="a")
    hosts = len(page())
    add_project("0fd630f1f29d4da9953f48f1a09f76b5")
    projects = len(page())
    most = settings.HEADROOM.metrics
    by_host, by_project = (hosts - small) / 10, projects - hosts
    told_one_by_one = by_host * most.hosts_up_to + by_project * most.projects_up_to
    assert EMPTY + told_one_by_one < MB
    tell(settings, hosts_up_to=10, projects_up_to=1)
    add_hosts(1, prefix="b")
    add_project("1fd630f1f29d4da9953f48f1a09f76b5")
    above = len(page())
    add_hosts(20, prefix="c")
    for number in range(3):
        add_project(f"{number + 2}fd630f1f29d4da9953f48f1a09f76b5")
    assert len(page()) < above + 1000, "one more host or project is no more series"


def test_sums_are_those_of_the_hosts(settings: Any) -> None:
    add_hosts(3, prefix="a")
    single = lines(page(), "kvm_host_capacity_usage", 'resource="ram",type="available"')
    tell(settings, hosts_up_to=2)
    (total,) = lines(page(), "kvm_host_capacity_usage", 'resource="ram",type="available"')
    assert 'compute_host=""' in total
    assert float(total.split()[-1]) == sum(float(line.split()[-1]) for line in single)
    held = lines(page(), "reservations_allocated_resources", 'resource="memory"')
    assert len(held) == 1
    assert 'host=""' in held[0]


def test_hosts_that_promise_too_much_are_named_at_any_size(settings: Any) -> None:
    tell(settings, hosts_up_to=0)
    host = make_host("full", memory_gib=4, vcpus=4)
    make_host("fine", memory_gib=4, vcpus=4)
    make_reservation(host, memory_gib=4, vcpus=6)
    (line,) = lines(page(), "kvm_host_capacity_exceeded")
    assert 'compute_host="full"' in line
    assert 'resource="cpu"' in line
    assert line.endswith(" 2.0")
