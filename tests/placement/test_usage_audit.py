"""The hourly look for usage that is not the sum of allocations, and the line of a request."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import pytest
import structlog
from django.conf import settings as django_settings

from journal.metrics import metrics_page
from placement import metrics
from placement.models import Inventory
from placement.tasks import AUDIT_USAGE, audit_usage
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.placement.rows import allocate, make_provider

pytestmark = pytest.mark.django_db


def counted() -> float:
    return float(metrics.USAGE_DRIFT._value.get())


def test_drift_is_counted_and_left_alone() -> None:
    provider = make_provider("p", inventories={"VCPU": 8, "DISK_GB": 8})
    allocate(uuid4(), {provider: {"VCPU": 2}})
    before = counted()
    assert audit_usage() == {"drifted": 0}
    assert counted() == before
    Inventory.objects.filter(resource_class__name="VCPU").update(used=3)
    Inventory.objects.filter(resource_class__name="DISK_GB").update(used=1)
    assert audit_usage() == {"drifted": 2}
    assert counted() == before + 2
    assert set(Inventory.objects.values_list("used", flat=True)) == {3, 1}


def test_the_counter_is_shown_before_anything_is_found_and_the_task_is_scheduled() -> None:
    assert b"# TYPE placement_usage_drift_total counter" in metrics_page()
    entries = django_settings.CELERY["beat_schedule"].values()
    assert [
        entry["schedule"].run_every.seconds for entry in entries if entry["task"] == AUDIT_USAGE
    ] == [3600]


@pytest.fixture
def lines(settings: Any) -> Any:
    placement_settings(settings)
    logging.getLogger("placement.api.base").setLevel(logging.INFO)
    with structlog.testing.capture_logs() as captured:
        yield captured


def of_requests(lines: list[Any]) -> list[Any]:
    return [line for line in lines if line["event"] == "placement_request"]


def test_a_request_leaves_one_line_without_headers_or_bodies(lines: Any) -> None:
    client = PlacementClient(token="secretive:project-9")
    provider = uuid()
    answer = client.get(f"/resource_providers/{provider}/usages?secret=no")
    assert answer.status == 403
    (line,) = of_requests(lines)
    assert {name: line[name] for name in ("method", "pattern", "path", "query", "status")} == {
        "method": "GET",
        "pattern": "/resource_providers/{uuid}/usages",
        "path": f"/placement/resource_providers/{provider}/usages",
        "query": "secret=no",
        "status": 403,
    }
    assert (line["user_id"], line["project_id"], line["mode"]) == (
        "secretive",
        "project-9",
        "local",
    )
    assert line["response_bytes"] == len(answer.content)
    assert line["latency_ms"] > 0
    assert "secretive:project-9" not in str(line)


def test_a_request_without_a_token_has_a_line_too(lines: Any) -> None:
    assert PlacementClient(token="").get("/traits").status == 401
    (line,) = of_requests(lines)
    assert (line["status"], line["user_id"], line["project_id"]) == (401, "", "")


def test_long_paths_and_queries_are_cut(lines: Any) -> None:
    PlacementClient().get(f"/{'x' * 5000}?{'y' * 5000}")
    (line,) = of_requests(lines)
    assert (len(line["path"]), len(line["query"])) == (2000, 2000)


def test_lines_can_be_turned_off(settings: Any, lines: Any) -> None:
    placement_settings(settings, log_requests=False)
    PlacementClient().get("/traits")
    assert of_requests(lines) == []
