"""What is said and counted of requests that nobody serves while a cloud moves (docs/gateway.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from prometheus_client import REGISTRY

from config.sections_gateway import GatewaySettings
from journal.clock import database_now
from placement.cutover import gate
from placement.models import Cutover, Phase
from tests.placement.client import PlacementClient, placement_settings

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:1/placement"


@pytest.fixture
def client(settings: Any, monkeypatch: pytest.MonkeyPatch) -> PlacementClient:
    """Of a gateway that holds writes for longer than anybody looks."""
    placement_settings(settings)
    section = GatewaySettings(upstream_url=NOWHERE, token="admin")
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"gateway": section})
    monkeypatch.setattr(gate, "MOST_LOOKS_SECONDS", -1.0)
    Cutover.objects.create(phase=Phase.CLOSING, closes_at=database_now() + timedelta(hours=1))
    return PlacementClient(X_Roles="admin,service")


def counted(method: str, status: int, mode: str = "passthrough") -> float:
    labels = {"method": method, "pattern": "/traits/{name}", "code": str(status), "mode": mode}
    return REGISTRY.get_sample_value("placement_requests_total", labels) or 0.0


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_held_write_is_answered_with_its_id_and_counted(
    client: PlacementClient, method: str
) -> None:
    before = counted(method, 503)

    answer = client.call(method, "/traits/CUSTOM_X")

    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.error["request_id"] == answer.headers["x-openstack-request-id"]
    assert answer.error["request_id"].startswith("req-")
    assert counted(method, 503) == before + 1


def test_a_read_is_counted_once_by_who_hands_it_on(client: PlacementClient) -> None:
    before = counted("GET", 502)

    answer = client.get("/traits/CUSTOM_X")

    assert answer.status == 502
    assert counted("GET", 502) == before + 1


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "not kept"])
def test_a_write_is_counted_once_as_it_is_answered(
    client: PlacementClient, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    Cutover.objects.update(phase=Phase.SWITCHED)
    wanted = ("PUT", 201, "local") if is_kept else ("PUT", 503, "passthrough")
    others = {("PUT", 201, "local"), ("PUT", 503, "passthrough")} - {wanted}
    before = counted(*wanted), [counted(*other) for other in others]

    def away(*_: object) -> None:
        raise OperationalError

    if not is_kept:
        monkeypatch.setattr(gate, "keep", away)

    answer = client.call("PUT", "/traits/CUSTOM_X")

    assert answer.status == wanted[1]
    assert (counted(*wanted) - 1, [counted(*other) for other in others]) == before
