"""The metrics that existing dashboards know, on the page that Prometheus scrapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from capacity.metrics import scheduling as metrics
from tests.api.scheduler_client import NovaClient
from tests.factories import make_group, make_host, make_hosts
from tests.scraping import scrape

pytestmark = pytest.mark.django_db
PIPELINE = "kvm-general-purpose-load-balancing"
WEIGHT_MODIFICATION = "cortex_filter_weigher_pipeline_step_weight_modification"

# Name of the spec, type, labels; scheduling, 11.
METRICS = [
    (
        "cortex_scheduler_api_request_duration_seconds",
        "histogram",
        {"method", "path", "status", "error"},
    ),
    ("cortex_filter_weigher_pipeline_requests_total", "counter", {"pipeline"}),
    ("cortex_filter_weigher_pipeline_run_duration_seconds", "histogram", {"pipeline"}),
    ("cortex_filter_weigher_pipeline_host_number_in", "histogram", {"pipeline"}),
    ("cortex_filter_weigher_pipeline_host_number_out", "histogram", {"pipeline"}),
    ("cortex_filter_weigher_pipeline_step_run_duration_seconds", "histogram", {"pipeline", "step"}),
    ("cortex_filter_weigher_pipeline_step_removed_hosts", "histogram", {"pipeline", "step"}),
    (WEIGHT_MODIFICATION, "gauge", {"pipeline", "host", "step"}),
    (
        "cortex_filter_weigher_pipeline_step_shift_origin",
        "histogram",
        {"pipeline", "step", "outidx"},
    ),
    (
        "cortex_filter_weigher_pipeline_step_impact",
        "histogram",
        {"pipeline", "step", "stat", "unit"},
    ),
    (
        "cortex_filter_weigher_pipeline_step_events_total",
        "counter",
        {"pipeline", "step", "event", "detail"},
    ),
    (
        "cortex_nova_filter_quota_enforcement_decisions_total",
        "counter",
        {"mode", "decision", "resource", "availability_zone", "flavor_group"},
    ),
    ("cortex_nova_placement_total", "counter", {"flavor_group", "intent", "cr_slot"}),
    ("cortex_nova_no_host_found_total", "counter", {"cr_slot", "flavor_group", "intent"}),
]


def scraped(nova: NovaClient) -> dict[str, tuple[str, list[dict[str, str]]]]:
    """Return what is scraped: name of the spec -> type, labels of each series."""
    page = scrape()
    found = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        counted = {"counter": name, "histogram": f"{name}_count"}.get(family.type, name)
        labels = [dict(sample.labels) for sample in family.samples if sample.name == counted]
        found[name] = (family.type, labels)
    return found


@pytest.fixture
def _asked(nova: NovaClient, scheduler_settings: Any) -> None:
    """One VM placed and one refused, both of a flavor in a group and with an unknown image."""
    scheduler_settings(committed_resource_tracking=True, weight_modification_metric=True)
    make_group("hana_1", flavors=[("g_c8_m32", 4096, 1)])
    make_hosts(3)
    assert nova.hosts()
    assert nova.hosts(num_instances=1000, instance_uuid="another") == []


@pytest.mark.usefixtures("_asked")
def test_a_metric_of_the_spec_is_scraped_under_its_name(nova: NovaClient) -> None:
    found = scraped(nova)
    for name, kind, labels in METRICS:
        found_kind, series = found[name]
        assert found_kind == kind, name
        assert series, name
        assert all(set(one) == labels for one in series), name
        if "pipeline" in labels:
            assert PIPELINE in {one["pipeline"] for one in series}, name


BUCKETS = {
    "cortex_filter_weigher_pipeline_host_number_in": [1000 ** (n / 9) for n in range(10)],
    "cortex_filter_weigher_pipeline_host_number_out": [1000 ** (n / 9) for n in range(10)],
    "cortex_filter_weigher_pipeline_step_removed_hosts": [1000 ** (n / 9) for n in range(10)],
    "cortex_filter_weigher_pipeline_step_shift_origin": [
        *range(10),
        *(10, 20, 30, 40),
        *(50, 100, 150, 200, 250, 300),
    ],
    "cortex_filter_weigher_pipeline_step_impact": [0.01 * 10 ** (5 * n / 19) for n in range(20)],
}


@pytest.mark.usefixtures("_asked")
def test_a_histogram_has_the_buckets_of_the_spec(nova: NovaClient) -> None:
    bounds: dict[str, set[float]] = {name: set() for name in BUCKETS}
    for family in text_string_to_metric_families(scrape()):
        for sample in family.samples:
            if family.name in BUCKETS and sample.name == f"{family.name}_bucket":
                bounds[family.name].add(float(sample.labels["le"]))
    for name, found in bounds.items():
        assert sorted(found - {math.inf}) == pytest.approx(BUCKETS[name]), name


@pytest.mark.usefixtures("_asked")
def test_an_event_keeps_its_own_labels_but_none_named_as_those_of_the_metric(
    nova: NovaClient,
) -> None:
    labels = {"pipeline": "x", "step": "y", "event": "z", "hypervisor_type": "odd", "key": "k"}
    metrics.count_event("p", "filter_capabilities", "noticed", labels)
    _, series = scraped(nova)["cortex_filter_weigher_pipeline_step_events_total"]
    assert {
        "pipeline": "p",
        "step": "filter_capabilities",
        "event": "noticed",
        "detail": "hypervisor_type=odd,key=k",
    } in series
    undetermined = "image_properties_hv_type_undetermined"
    assert (undetermined, "intent=create") in {(one["event"], one["detail"]) for one in series}


@pytest.mark.usefixtures("_asked")
def test_every_filter_and_active_weigher_of_a_run_is_timed(nova: NovaClient) -> None:
    _, series = scraped(nova)["cortex_filter_weigher_pipeline_step_run_duration_seconds"]
    steps = {one["step"] for one in series if one["pipeline"] == PIPELINE}
    assert {"filter_status_conditions", "filter_quota_enforcement", "kvm_binpack"} <= steps


def test_weight_modifications_are_counted_on_demand_only(
    nova: NovaClient, scheduler_settings: Any
) -> None:
    make_hosts(2, prefix="weighed-")
    offered = ("weighed-1", "weighed-2")
    nova.hosts(offered=offered)
    hosts = [one["host"] for one in scraped(nova)[WEIGHT_MODIFICATION][1]]
    assert "weighed-1" not in hosts
    scheduler_settings(weight_modification_metric=True)
    nova.hosts(offered=offered)
    hosts = [one["host"] for one in scraped(nova)[WEIGHT_MODIFICATION][1]]
    assert set(offered) <= set(hosts)


def test_a_weight_modification_is_what_the_weigher_contributed(
    nova: NovaClient, scheduler_settings: Any
) -> None:
    scheduler_settings(weight_modification_metric=True)
    make_hosts(1, prefix="alone-", memory_gib=8)
    nova.hosts(offered=("alone-1",))
    page = scrape()
    values = {
        sample.labels["step"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == WEIGHT_MODIFICATION and sample.labels["host"] == "alone-1"
    }
    assert values["kvm_binpack"] == pytest.approx(-0.4621, abs=0.0001)  # 4 of 8 GiB, times -1
    assert values["kvm_prefer_smaller_hosts"] == 0


def test_hosts_of_an_unknown_type_are_counted_each(nova: NovaClient) -> None:
    for number in range(2):
        make_host(f"odd-{number}", hypervisor_type="odd")
    make_hosts(1)
    labels = {
        "pipeline": PIPELINE,
        "step": "filter_capabilities",
        "event": "filter_capabilities_unknown_hypervisor_type",
        "detail": "hypervisor_type=odd",
    }
    name = "cortex_filter_weigher_pipeline_step_events_total"
    before = REGISTRY.get_sample_value(name, labels) or 0
    assert nova.hosts(offered=("h1", "odd-0", "odd-1")) == ["h1"]
    assert REGISTRY.get_sample_value(name, labels) == before + 2


def test_requests_are_counted_without_anything_of_their_content(nova: NovaClient) -> None:
    make_hosts(3)
    nova.post()
    nova.post(pipeline="name-that-must-not-be-a-label")
    page = scrape()
    assert 'status="404"' in page
    assert "name-that-must-not-be-a-label" not in page
