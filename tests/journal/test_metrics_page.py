from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import SecretStr

from commitments import metrics
from journal.metrics import ScrapeCollector, _scrape_registry, at_scrape

pytestmark = pytest.mark.django_db

SECRET = "metrics-secret"  # noqa: S105 - made up here


def page(**headers: str) -> str:
    response = Client().get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain")
    return response.content.decode()


@pytest.fixture
def secret(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"metrics_token": SecretStr(SECRET)})


def test_every_series_of_the_endpoints_exists_from_the_start() -> None:
    text = page()
    for name, codes in {
        "info": (200, 405, 500, 503),
        "capacity": (200, 500, 503),
        "usage": (200, 400, 405, 500, 503),
        "quota": (204, 400, 405, 500, 503),
    }.items():
        for code in codes:
            series = f'cortex_committed_resource_{name}_api_requests_total{{status_code="{code}"}}'
            assert series in text
    stem = "cortex_committed_resource_change_api"
    for code in (200, 400, 405, 409, 500, 503):
        for dry_run in ("true", "false"):
            for result in ("accepted", "rejected", "error"):
                labels = f'dry_run="{dry_run}",result="{result}",status_code="{code}"'
                assert f"{stem}_requests_total{{{labels}}}" in text
    assert f'{stem}_timeouts_total{{dry_run="true"}}' in text
    assert f'{stem}_commitment_changes_total{{az="",dry_run="false",result="error"}}' in text
    assert (
        'cortex_committed_resource_usage_reconcile_duration_seconds_count{result="error"}' in text
    )


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("header", ["", "Bearer wrong", f"Basic {SECRET}", SECRET])
def test_page_asks_for_its_token(header: str) -> None:
    headers = {"Authorization": header} if header else {}
    response = Client().get("/metrics", headers=headers)
    assert (response.status_code, response["WWW-Authenticate"]) == (401, "Bearer")
    assert b"cortex" not in response.content


@pytest.mark.usefixtures("secret")
def test_page_opens_for_its_token() -> None:
    assert "cortex_committed_resource" in page(Authorization=f"Bearer {SECRET}")


class Gauges:
    """A collector that reads when a scrape comes."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.is_broken = False

    def collect(self) -> Iterator[Metric]:
        if self.is_broken:
            raise OperationalError
        family = GaugeMetricFamily("test_rows", "Rows.", labels=["name"])
        for name, count in self.rows.items():
            family.add_metric([name], count)
        yield family


@pytest.fixture
def gauges() -> Iterator[Gauges]:
    before = set(_scrape_registry._collector_to_names)
    collector = Gauges()
    checked: ScrapeCollector = collector
    at_scrape(checked)
    yield collector
    for added in set(_scrape_registry._collector_to_names) - before:
        _scrape_registry.unregister(added)


def test_scrape_time_gauges_forget_rows_that_are_gone(gauges: Gauges) -> None:
    gauges.rows = {"a": 1}
    assert 'test_rows{name="a"} 1.0' in page()
    gauges.rows = {"b": 2}
    assert 'test_rows{name="a"}' not in page()


def test_scrape_survives_a_database_that_is_down(gauges: Gauges) -> None:
    gauges.rows = {"a": 1}
    gauges.is_broken = True
    text = page()
    assert "test_rows" not in text
    assert "cortex_committed_resource" in text


def test_zone_labels_are_bounded() -> None:
    labels = metrics._BoundedLabels(2)
    assert [labels.label(zone) for zone in "abca"] == ["a", "b", "other", "a"]


MULTIPROCESS = """
import django, sys
django.setup()
from commitments import metrics
if sys.argv[1] == "count":
    metrics.INFO.observe(status_code=200, seconds=0.1)
else:
    from journal.metrics import metrics_page
    print(metrics_page().decode())
"""


def test_counters_of_several_processes_add_up(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
    for mode in ("count", "count", "show"):
        done = subprocess.run(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", MULTIPROCESS, mode],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
    name = "cortex_committed_resource_info_api_requests_total"
    assert f'{name}{{status_code="200"}} 2.0' in done.stdout
