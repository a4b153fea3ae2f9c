"""The hourly look for usage that is not the sum of allocations, and the line of a request."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import pytest
import structlog

from journal.metrics import metrics_page
from placement import metrics
from placement.api.base import shown_body
from placement.domain.candidate_encoding import NOTHING
from placement.models import Inventory
from placement.tasks import AUDIT_USAGE, audit_usage
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.placement.rows import allocate, make_provider
from tests.schedule import beat_schedule

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
    entries = beat_schedule().values()
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
    return [line for line in lines if line["event"] == "api_request"]


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
    assert (line["api"], line["actor"], line["decision"]) == ("placement", "secretive", "forbidden")
    assert line["response_bytes"] == len(answer.content)
    assert line["duration_ms"] > 0
    assert "secretive:project-9" not in str(line)


def test_bodies_are_shown_at_debug_level_alone_cut_and_without_secrets(
    settings: Any, lines: Any
) -> None:
    placement_settings(settings, max_body_log_kib=1)
    client = PlacementClient()
    body = {"name": "h1", "secret_thing": 'very " private', "token": 17, "x": "y" * 2000}
    assert client.post("/resource_providers", body).status == 400
    assert [line["event"] for line in lines] == ["api_request"]
    logging.getLogger("placement.api.base").setLevel(logging.DEBUG)
    try:
        assert client.post("/resource_providers", body).status == 400
        client.get("/traits")
    finally:
        logging.getLogger("placement.api.base").setLevel(logging.INFO)
    refused, listed = (line for line in lines if line["event"] == "placement_request_bodies")
    begin = '{"name":"h1","secret_thing":"***","token":"***","x":"yyy'
    assert refused["request_body"].startswith(begin)
    assert len(refused["request_body"]) < 1024
    assert '"status": 400' in refused["response_body"] or '"status":400' in refused["response_body"]
    assert listed["request_body"] == ""
    assert len(listed["response_body"]) == 1024


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        pytest.param(b'{"a": {"password": "x"}}', '{"a": {"password": "***"}}', id="inside"),
        pytest.param(b'{"X-Auth-Token":"abc', '{"X-Auth-Token":"***"', id="cut in the value"),
        pytest.param(b'{"CUSTOM_TOKEN":{"total":4}}', '{"CUSTOM_TOKEN":{"total":4}}', id="object"),
        pytest.param(b'{"name":"\xff"}', '{"name":"\ufffd"}', id="no UTF-8"),
        pytest.param(b"", "", id="nothing"),
    ],
)
def test_what_is_shown_of_a_body(body: bytes, shown: str) -> None:
    assert shown_body([body[:5], body[5:]], most_bytes=100) == shown


def test_the_option_for_wide_trees_is_accepted_and_changes_nothing(settings: Any) -> None:
    placement_settings(settings, optimize_for_wide_provider_trees=False)
    query = "/allocation_candidates?resources=VCPU:1"
    before = PlacementClient().get(query)
    placement_settings(settings, optimize_for_wide_provider_trees=True)
    after = PlacementClient().get(query)
    assert (after.status, after.content) == (before.status, before.content) == (200, NOTHING)


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
