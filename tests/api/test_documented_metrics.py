"""Every metric of the specifications is scraped under its documented name."""

from __future__ import annotations

import re

import pytest
from django.utils import timezone
from prometheus_client import Histogram

from capacity import metrics as capacity_metrics
from capacity.metrics import scheduling as metrics_scheduling
from capacity.models import HostCapacity, Reservation
from commitments.metrics import slots as metrics_slots
from commitments.models import ProjectUsage
from journal.metrics import metric_name
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.scraping import scrape

pytestmark = pytest.mark.django_db

LIQUID = [
    "committed_resource_info_api_requests_total",
    "committed_resource_info_api_request_duration_seconds",
    "committed_resource_capacity_api_requests_total",
    "committed_resource_capacity_api_request_duration_seconds",
    "committed_resource_reported_capacity",
    "committed_resource_usage_api_requests_total",
    "committed_resource_usage_api_request_duration_seconds",
    "committed_resource_quota_api_requests_total",
    "committed_resource_quota_api_request_duration_seconds",
    "committed_resource_change_api_requests_total",
    "committed_resource_change_api_request_duration_seconds",
    "committed_resource_change_api_commitment_changes_total",
    "committed_resource_change_api_timeouts_total",
    "committed_resource_capacity_vm_slots_empty_datacenter",
    "committed_resource_capacity_vm_slots_placeable",
    "committed_resource_capacity_hosts_empty_datacenter",
    "committed_resource_capacity_hosts_placeable",
    "committed_resource_running_instances",
    "committed_resource_free_capacity_gib",
    "committed_resource_exclusively_free_capacity_gib",
    "committed_resource_exclusively_free_slots",
    "committed_resource_committed_gib",
    "committed_resource_committed_reservations",
    "committed_resource_capacity_ready",
    "quota_total_usage",
    "quota_payg_usage",
    "quota_cr_usage",
    "quota_reconcile_duration_seconds",
    "quota_reconcile_total",
]
COMMITMENTS = [
    "committed_resource_syncer_errors_total",
    "committed_resource_syncer_duration_seconds",
    "committed_resource_syncer_limes_commitments_active",
    "committed_resource_syncer_crd_unmatched",
    "committed_resource_syncer_commitments_skipped_total",
    "committed_resource_syncer_cr_creates_total",
    "committed_resource_syncer_cr_updates_total",
    "committed_resource_syncer_cr_deletes_total",
    "committed_resource_unfulfilled",
    "committed_resource_slot_limit_rejections_total",
    "committed_resource_usage_reconcile_duration_seconds",
    "committed_resource_usage_status_age_seconds",
    "committed_resource_usage_assigned_vms_total",
    "committed_resource_host_oversubscribed",
    "committed_resource_host_oversubscribed_evicted_reservations_total",
    "reservations",
    "reservations_allocated_resources",
    "reservation_state",
    "nova_no_host_found_total",
    "nova_placement_total",
    "inflight_reservations_expired_total",
]


@pytest.fixture(scope="module")
def scraped() -> dict[str, str]:
    """Family or series name -> type, filled by the first test that scrapes."""
    return {}


@pytest.mark.parametrize("name", [*LIQUID, *COMMITMENTS])
def test_documented_metric_is_scraped(scraped: dict[str, str], name: str) -> None:
    if not scraped:
        make_group("hana_1", flavors=[("small", 1024, 4)])
        make_host("h1", zone="az-a", memory_gib=8, vcpus=8)
        page = scrape()
        scraped.update(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    assert metric_name(name) in scraped


READ_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10)
BUCKETS = {
    "committed_resource_info_api_request_duration_seconds": READ_SECONDS,
    "committed_resource_capacity_api_request_duration_seconds": READ_SECONDS,
    "committed_resource_usage_api_request_duration_seconds": READ_SECONDS,
    "committed_resource_quota_api_request_duration_seconds": tuple(Histogram.DEFAULT_BUCKETS[:-1]),
    "committed_resource_change_api_request_duration_seconds": (
        *(0.5, 1, 2.5, 5, 7.5),
        *(10, 12.5, 15, 20, 30),
    ),
    "committed_resource_syncer_duration_seconds": (0.5, 1, 5, 10, 30, 60, 120),
    "committed_resource_usage_reconcile_duration_seconds": (*READ_SECONDS, 30),
    "committed_resource_usage_status_age_seconds": (30, 60, 120, 300, 600, 900, 1800),
    "quota_reconcile_duration_seconds": tuple(0.1 * 2**n for n in range(10)),
}


@pytest.mark.parametrize(("name", "bounds"), BUCKETS.items(), ids=list(BUCKETS))
def test_buckets_of_a_duration_are_those_of_the_specification(
    name: str, bounds: tuple[float, ...]
) -> None:
    page = scrape()
    shown = re.findall(rf'^{metric_name(name)}_bucket{{.*le="([^"]+)".*}}', page, re.MULTILINE)
    found = sorted({float(bound) for bound in shown})
    assert found == pytest.approx([*bounds, float("inf")])


def test_documented_metrics_have_the_types_that_their_names_say() -> None:
    page = scrape()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    suffixes = {"_total": "counter", "_seconds": "histogram"}
    for name in LIQUID:
        kind = next((kind for end, kind in suffixes.items() if name.endswith(end)), "gauge")
        assert types.get(metric_name(name), kind) == kind, name


PRE_SET = {
    "info": ("200", "401", "403", "405", "500", "503"),
    "capacity": ("200", "401", "403", "405", "500", "503"),
    "usage": ("200", "400", "401", "403", "405", "500", "503"),
    "quota": ("204", "400", "401", "403", "405", "500", "503"),
}


@pytest.mark.parametrize(("endpoint", "codes"), PRE_SET.items(), ids=list(PRE_SET))
def test_status_codes_of_an_endpoint_are_there_before_any_request(
    endpoint: str, codes: tuple[str, ...]
) -> None:
    page = scrape()
    name = metric_name(f"committed_resource_{endpoint}_api_requests_total")
    assert set(codes) <= set(re.findall(rf'^{name}{{status_code="(\d+)"}}', page, re.MULTILINE))


def test_results_of_changes_are_there_before_any_request() -> None:
    page = scrape()
    name = metric_name("committed_resource_change_api_requests_total")
    for code in ("200", "400", "401", "403", "405", "409", "422", "500", "503"):
        for dry_run in ("true", "false"):
            for result in ("accepted", "rejected", "error"):
                labels = f'{{dry_run="{dry_run}",result="{result}",status_code="{code}"}}'
                assert f"{name}{labels}" in page


def test_changes_and_timeouts_are_there_before_any_request() -> None:
    page = scrape()
    changes = metric_name("committed_resource_change_api_commitment_changes_total")
    timeouts = metric_name("committed_resource_change_api_timeouts_total")
    for dry_run in ("true", "false"):
        assert f'{timeouts}{{dry_run="{dry_run}"}}' in page
        for result in ("accepted", "rejected", "error"):
            assert f'{changes}{{az="",dry_run="{dry_run}",result="{result}"}}' in page


LABELS = {
    "committed_resource_syncer_commitments_skipped_total": {"reason"},
    "committed_resource_unfulfilled": {"flavor_group", "resource_type", "availability_zone"},
    "committed_resource_slot_limit_rejections_total": {"flavor_group", "availability_zone"},
    "committed_resource_usage_reconcile_duration_seconds_count": {"result"},
    "committed_resource_usage_status_age_seconds_count": set[str](),
    "committed_resource_usage_assigned_vms_total": {"project_id"},
    "committed_resource_host_oversubscribed": {"host", "az", "resource"},
    "committed_resource_host_oversubscribed_evicted_reservations_total": {"az"},
    "reservations": {"status_ready", "status_error"},
    "reservations_allocated_resources": {"status_ready", "status_error", "host", "resource"},
    "reservation_state": {"domain", "type", "state", "reason"},
    "nova_no_host_found_total": {"cr_slot", "flavor_group", "intent"},
    "nova_placement_total": {"cr_slot", "flavor_group", "intent"},
    "inflight_reservations_expired_total": {"intent"},
}


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Series -> names of its labels, filled by the first test that scrapes."""
    return {}


@pytest.mark.parametrize(("name", "expected"), LABELS.items(), ids=list(LABELS))
def test_labels_of_a_metric_are_those_of_the_table(
    labels: dict[str, set[str]], name: str, expected: set[str]
) -> None:
    """Spec commitments, 20.1; what happened once makes a series where none is there before."""
    if not labels:
        host = make_host("h1", zone="az-a", memory_gib=8, vcpus=8)
        make_group("hana_1", flavors=[("small", 4096, 4)])
        make_slot(make_commitment(is_accepted=False, ready_reason="Reserving"), host)
        ProjectUsage.objects.create(project_id="alpha", assigned_vms=1, uncovered_vms=0)
        first = {"flavor_group": "g", "intent": "create", "cr_slot": "no_cr"}
        metrics_slots.SLOT_LIMIT_REJECTIONS.labels(flavor_group="g", availability_zone="a")
        metrics_scheduling.NO_HOST_FOUND.labels(**first)
        metrics_scheduling.PLACEMENTS.labels(**first)
        capacity_metrics.EVICTED.labels(az="a")
        HostCapacity.objects.filter(host=host).update(
            oversubscribed_since=timezone.now(), allocated_memory_bytes=9 << 30
        )
        page = scrape()
        for series, inside in re.findall(r"^([a-z_]+)(?:\{(.*)\})? \S+$", page, re.MULTILINE):
            labels[series] = set(re.findall(r'(\w+)="', inside))
    assert labels[metric_name(name)] == expected


def test_reservations_are_counted_by_state_and_reason() -> None:
    row = make_commitment("aaaaaaaa-000001")
    host = make_host("h1", zone="az-a", memory_gib=8, vcpus=8)
    make_slot(row, host)
    make_slot(row, None)
    Reservation.objects.filter(pk=make_slot(row, host).pk).update(is_ready=None)
    page = scrape()
    name = metric_name("reservation_state")
    found = dict(re.findall(rf"^{name}{{(.*)}} (\S+)$", page, re.MULTILINE))
    labels = 'domain="nova",reason="{}",state="{}",type="CommittedResourceReservation"'
    assert found == {
        labels.format("ReservationActive", "ready"): "1.0",
        labels.format("NoHostsFound", "error"): "1.0",
        labels.format("", "unknown"): "1.0",
    }
