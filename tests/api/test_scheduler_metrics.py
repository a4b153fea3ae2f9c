from __future__ import annotations

import pytest

from tests.api.scheduler_client import (
    NovaClient,
)
from tests.factories import make_hosts

pytestmark = pytest.mark.django_db
recorded_in_rows = pytest.mark.django_db(transaction=True)  # decisions are written on commit


def test_requests_are_counted_without_anything_of_their_content(nova: NovaClient) -> None:
    make_hosts(3)
    nova.post()
    nova.post(pipeline="name-that-must-not-be-a-label")
    page = nova.send("GET", path="/metrics").content.decode()
    assert "cortex_scheduler_api_request_duration_seconds_count" in page
    assert 'status="404"' in page
    assert "name-that-must-not-be-a-label" not in page
    for name in (
        "cortex_filter_weigher_pipeline_requests_total",
        "cortex_filter_weigher_pipeline_run_duration_seconds_count",
        "cortex_filter_weigher_pipeline_host_number_in_count",
        "cortex_filter_weigher_pipeline_host_number_out_count",
        "cortex_filter_weigher_pipeline_step_removed_hosts_count",
        "cortex_filter_weigher_pipeline_step_shift_origin_count",
        "cortex_filter_weigher_pipeline_step_impact_count",
    ):
        samples = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
        assert any('pipeline="kvm-general-purpose-load-balancing"' in line for line in samples)


def test_the_time_of_filters_is_measured_for_a_sample(
    nova: NovaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capacity.services.step_metrics.TIMED_ONCE_IN", 1)
    make_hosts(3)
    nova.post()
    page = nova.send("GET", path="/metrics").content.decode()
    assert "cortex_filter_weigher_pipeline_step_run_duration_seconds_count" in page
