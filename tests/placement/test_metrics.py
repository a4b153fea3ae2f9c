"""Metrics of spec placement, 10.2, and the alerts on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from journal.metrics import metrics_page
from tests.alert_rules import rules
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.scraping import scrape

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"\b(?:cortex_)?placement_[a-z_]+")
DOWNSTREAM = "cortex_placement_shim_downstream_request_duration_seconds"
DOCUMENTED = {
    DOWNSTREAM: ("histogram", {"method", "pattern", "responsecode"}),
    "placement_requests_total": ("counter", {"method", "pattern", "code", "mode"}),
    "placement_allocation_write_seconds": ("histogram", {"kind", "result"}),
    "placement_allocation_conflicts_total": ("counter", {"reason"}),
    "placement_candidates_seconds": ("histogram", {"groups", "limited"}),
    "placement_candidates_returned": ("histogram", set()),
    "placement_snapshot_age_changes": ("gauge", set()),
    "placement_snapshot_checks_total": ("counter", {"outcome"}),
    "placement_snapshot_differences_total": ("counter", {"part"}),
    "placement_snapshot_reload_seconds": ("histogram", set()),
    "placement_snapshot_providers": ("gauge", set()),
    "placement_capacity": ("gauge", {"resource_class", "az"}),
    "placement_used": ("gauge", {"resource_class", "az"}),
    "placement_overcommitted_inventories": ("gauge", {"resource_class"}),
    "placement_largest_group_hosts": ("gauge", {"group"}),
    "placement_usage_drift_total": ("counter", set()),
}
READ_AT_SCRAPE = {
    "placement_capacity",
    "placement_used",
    "placement_overcommitted_inventories",
    "placement_largest_group_hosts",
}
REASONS = {
    "capacity",
    "constraint",
    "consumer_generation",
    "held",
    "no_inventory",
    "retry_exhausted",
}


def series(page: str, name: str) -> list[dict[str, str]]:
    """Return the labels of each series of a metric; those of buckets without their bound."""
    found = re.findall(rf"^{name}(?:_bucket|_count)?(?:{{(.*)}})? \S+$", page, re.MULTILINE)
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', text)) for text in found]
    return [{key: value for key, value in each.items() if key != "le"} for each in labels]


@pytest.fixture
def page(settings: Any, transactional_db: None) -> str:
    """The metrics page after a read, a write, a refused write and a search."""
    del transactional_db
    placement_settings(settings, enforce_new_defaults=False)
    client = PlacementClient()
    provider = client.make_provider(VCPU=4)
    client.allocate(uuid(), {provider: {"VCPU": 1}})
    client.allocate(uuid(), {provider: {"VCPU": 9}})
    client.get("/allocation_candidates?resources=VCPU:1&limit=5")
    return metrics_page().decode()


def test_every_metric_is_there_with_its_labels(page: str) -> None:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    for name, (kind, labels) in DOCUMENTED.items():
        assert kinds[name] == kind, name
        listed = series(page, name)
        # What is read from the database is read once a minute: see test_inventory_metrics.
        assert listed or name in READ_AT_SCRAPE, name
        assert not listed or {frozenset(each) for each in listed} == {frozenset(labels)}, name


def test_paths_are_told_by_their_template(page: str) -> None:
    patterns = {each["pattern"] for each in series(page, "placement_requests_total")}
    assert {"/resource_providers/{uuid}/inventories", "/allocations/{consumer_uuid}"} <= patterns
    assert not [pattern for pattern in patterns if re.search(r"[0-9a-f]{8}-", pattern)]
    modes = {each["mode"] for each in series(page, "placement_requests_total")}
    assert {"local"} <= modes <= {"local", "hybrid", "passthrough"}  # of other tests, too


@pytest.mark.django_db
def test_reasons_of_conflicts_are_there_before_any_conflict() -> None:
    text = metrics_page().decode()
    told = {each["reason"] for each in series(text, "placement_allocation_conflicts_total")}
    assert told == REASONS


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ({"VCPU": 9}, "capacity"),
        ({"DISK_GB": 3}, "constraint"),
        ({"VGPU": 1}, "no_inventory"),
    ],
)
def test_refused_writes_are_counted_by_reason(
    settings: Any, transactional_db: None, held: dict[str, int], reason: str
) -> None:
    del transactional_db
    placement_settings(settings)
    client = PlacementClient()
    provider = client.make_provider(VCPU=4, DISK_GB={"total": 8, "step_size": 2})

    def counted() -> float:
        found = re.search(
            rf'^placement_allocation_conflicts_total{{reason="{reason}"}} (\S+)$',
            metrics_page().decode(),
            re.MULTILINE,
        )
        assert found
        return float(found[1])

    before = counted()
    assert client.allocate(uuid(), {provider: held}).status == 409
    assert counted() == before + 1
    consumer = uuid()
    client.allocate(consumer, {provider: {"VCPU": 1}})
    assert client.allocate(consumer, {provider: {"VCPU": 1}}, generation=9).status == 409
    assert counted() == before + 1


@pytest.mark.django_db
def test_rules_use_only_metrics_that_are_scraped(client: Client) -> None:
    scraped = set(re.findall(r"^# TYPE (\w+) ", scrape(), re.M))
    used = {name for rule in rules("placement") for name in METRIC.findall(rule["expr"])}
    assert {name.removesuffix("_bucket") for name in used} <= scraped
