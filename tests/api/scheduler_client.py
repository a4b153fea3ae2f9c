"""Nova as tests play it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from django.test import Client

from capacity.models import Reservation, ReservationKind
from capacity.nova.pipelines import save_pipeline
from journal.actors import Actor
from scheduling.pipelines import PipelineSpec

SCHEDULER = "scheduler-token-0123456789"
RECORDED = Path(__file__).parents[1] / "data" / "nova34-external-request.json"
PATH = "/scheduler/nova/external"
DATA = "nova_object.data"
READ_ONLY = {
    "read_only": True,
    "skip_history": True,
    "skip_inflight": True,
    "skip_committed_resource_tracking": True,
}
TYPE = "capabilities:hypervisor_type"
HANA = "trait:CUSTOM_HANA_EXCLUSIVE_HOST"
OPERATOR = Actor(name="operator")


def in_flight() -> list[str]:
    """Return the names of the hosts that hold room for a VM in flight."""
    rows = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
    return sorted(rows.values_list("target_host__name", flat=True))


def save(name: str, **fields: Any) -> None:
    """Save a pipeline."""
    save_pipeline(PipelineSpec(name=name, **fields), actor=OPERATOR, request_id="req-1")


def recorded_request() -> dict[str, Any]:
    """Return the call that an upstream Nova 34 made."""
    body: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))["request"]
    return body


class NovaClient:
    """Sends requests the way Nova does."""

    def __init__(self, hosts: tuple[str, ...] = ("h1", "h2", "h3")) -> None:
        self.template = recorded_request()
        self.offer(self.template, hosts)

    @staticmethod
    def offer(body: dict[str, Any], hosts: tuple[str, ...], weight: float = 0.0) -> None:
        body["hosts"] = [{"host": name, "hypervisor_hostname": name} for name in hosts]
        body["weights"] = dict.fromkeys(hosts, weight)

    def body(self, **changes: Any) -> dict[str, Any]:
        """Return a request with changes: ``flavor=``, ``options=``, ``hints=``, spec fields."""
        body = copy.deepcopy(self.template)
        spec = body["spec"][DATA]
        flavor = spec["flavor"][DATA]
        flavor.update(memory_mb=4096, vcpus=1, **changes.pop("flavor", {}))
        if "offered" in changes:
            self.offer(body, changes.pop("offered"))
        for name in ("options", "pipeline", "weights", "hosts"):
            if name in changes:
                body[name] = changes.pop(name)
        if "hints" in changes:
            spec["scheduler_hints"] = changes.pop("hints")
        spec.update(changes)
        return body

    def post(self, body: Any = None, *, token: str | None = SCHEDULER, **changes: Any) -> Any:
        """Send a body: bytes as they are, None as the template with changes, the rest as JSON."""
        content = self.body(**changes) if body is None else body
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        return self.send("POST", content, token=token)

    def send(
        self, method: str, content: bytes = b"", *, path: str = PATH, token: str | None = SCHEDULER
    ) -> Any:
        headers = {} if token is None else {"X-Auth-Token": token}
        client = Client(raise_request_exception=False, enforce_csrf_checks=True)
        return client.generic(method, path, content, "application/json", headers=headers)

    def hosts(self, body: Any = None, **changes: Any) -> list[str]:
        """Return the hosts of the answer."""
        response = self.post(body, **changes)
        assert response.status_code == 200, response.content
        answer = response.json()
        assert set(answer) == {"hosts"}
        hosts: list[str] = answer["hosts"]
        return hosts


def assert_error(response: Any, status: int, *words: str) -> None:
    """Check the shape of an error: JSON with a text and a request id, and the words."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/json"
    answer = response.json()
    assert set(answer) == {"error", "request_id"}
    assert answer["request_id"] == response["X-Request-ID"]
    for word in words:
        assert word in answer["error"]
