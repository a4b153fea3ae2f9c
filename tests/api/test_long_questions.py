"""Every question that takes long is ended at its deadline, and told so in the shape of its API."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.urls import reverse

from capacity.nova.pipelines import ensure_shipped_pipelines
from hosts.models import Host
from tests.api.conftest import Configure
from tests.api.scheduler_client import NovaClient
from tests.api.test_what_if import A, batch
from tests.factories import make_group, make_group_capacity
from tests.failover.drill_rows import make_zone
from tests.placement.client import placement_settings
from tests.placement.rows import make_provider

pytestmark = pytest.mark.django_db(transaction=True)

QUERY = "resources=VCPU:1"
QUESTIONS: Mapping[str, Callable[[], Any]] = {
    "/api/v1/commitments/what-if": lambda: {"batch": batch(A, 1)},
    "/api/v1/failover/simulations": lambda: {"failed": {"hosts": ["h1"]}},
    "/api/v1/failover/drain-check": lambda: {"hosts": ["h1"]},
    "/api/v1/failover/rebalances": lambda: {"zone": "az-a", "apply": False},
    "/api/v1/scheduling/explain": lambda: NovaClient().body(),
    "/api/v1/placement/simulate": lambda: {"query": QUERY},
    f"/api/v1/placement/explain?{QUERY}": lambda: None,
}


@pytest.fixture(autouse=True)
def _region(settings: Any) -> None:
    placement_settings(settings)
    ensure_shipped_pipelines(request_id="test")
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_zone("r1@7{a@1} r2@8{b@2} r3@9{c@3} r4@10{d@4}")
    make_group_capacity("hana_1", "az-a", total_vcpus=80)
    make_provider("small", inventories={"VCPU": 8})


@pytest.fixture
def no_time(settings: Any, configure: Configure) -> None:
    configure(heavy=settings.HEADROOM.heavy.model_copy(update={"deadline_seconds": 0.0}))


def ask(path: str) -> Any:
    body = QUESTIONS[path]()
    client, headers = Client(raise_request_exception=False), {"X-Auth-Token": "admin"}
    if body is None:
        return client.get(path, headers=headers)
    return client.post(path, json.dumps(body), "application/json", headers=headers)


@pytest.mark.parametrize("path", QUESTIONS)
def test_question_with_time_is_answered(path: str) -> None:
    response = ask(path)
    assert response.status_code == 200, response.content


@pytest.mark.parametrize("path", QUESTIONS)
def test_question_without_time_is_ended(path: str, no_time: None) -> None:
    response = ask(path)
    assert response.status_code == 503, response.content
    assert response.json()["code"] == "computation_too_long"
    assert int(response.headers["Retry-After"]) >= 1


def test_pages_without_time_say_so(admin_client: Client, no_time: None) -> None:
    explorer = reverse("admin:placement_resourceprovider_candidates")
    drain = {
        "action": "check_drain_action",
        ACTION_CHECKBOX_NAME: list(Host.objects.values_list("pk", flat=True)),
    }
    pages = (
        admin_client.get(explorer, {"query": QUERY}),
        admin_client.post(reverse("admin:hosts_host_changelist"), drain, follow=True),
    )
    for page in pages:
        assert page.status_code == 200
        assert "the computation took longer than 0 s" in html.unescape(page.content.decode())
