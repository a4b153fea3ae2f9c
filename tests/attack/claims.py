"""Claims of VMs that go on without pause, and how many of them are answered beside an attack."""

from __future__ import annotations

import json
import os
import time
from statistics import median
from typing import Any

import psutil

from config.launcher.processes import wait_until
from tests.attack.load import UUID, Asked, Load, request_of
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, Answer, WebServer

PLACEMENT = {"OpenStack-API-Version": "placement 1.39"}
PROVIDER = "11111111-1111-4111-8111-111111111111"
OPERATOR = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
CLAIMERS = 16
#: More of them give figures that can be told; a few show that claims go on.
WINDOWS = int(os.environ.get("HEADROOM_ATTACK_WINDOWS", "2"))
WINDOW_CLAIMS = 300


def placement(web: WebServer, method: str, path: str, body: Any = None) -> Answer:
    return web.send(method, f"/placement/{path}", body, headers=PLACEMENT)


def make_provider(web: WebServer) -> None:
    """Make what is claimed from, through the API."""
    made = placement(web, "POST", "resource_providers", {"name": "p", "uuid": PROVIDER})
    assert made.status == 200
    inventory = {"inventories": {"VCPU": {"total": 1_000_000}}, "resource_provider_generation": 0}
    path = f"resource_providers/{PROVIDER}/inventories"
    assert placement(web, "PUT", path, inventory).status == 200


def claims(web: WebServer) -> Asked:
    """Return the load: each claim is of a new VM."""
    body = {
        "allocations": {PROVIDER: {"resources": {"VCPU": 1}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    fields = {"X-Auth-Token": ADMIN, "Content-Type": "application/json", **PLACEMENT}
    path = f"/placement/allocations/{UUID.decode()}"
    content = json.dumps(body).encode()
    return Asked(
        port=web.port, connections=CLAIMERS, request=request_of("PUT", path, fields, content)
    )


def rate_of(claiming: Load) -> float:
    """Return how many claims are answered in a second: the median of some windows."""
    return median(_rate_of_window(claiming) for _ in range(WINDOWS))


def _rate_of_window(claiming: Load) -> float:
    before, begun = claiming.answered(204), time.monotonic()
    enough = before + WINDOW_CLAIMS
    assert wait_until(lambda: claiming.answered(204) >= enough, 2 * PATIENCE_SECONDS)
    return (claiming.answered(204) - before) / (time.monotonic() - begun)


def workers_of(web: WebServer) -> list[psutil.Process]:
    """Return the processes that answer requests."""
    assert web.child is not None
    return list(psutil.Process(web.child.process.pid).children())


def descendants_of(web: WebServer) -> list[psutil.Process]:
    """Return what the processes that answer requests have started."""
    found: list[psutil.Process] = []
    for worker in workers_of(web):
        found += worker.children()
    return found


def tell(attack: str, before: float, beside: float, after: float, **figures: object) -> None:
    """Print the figures of an attack; the rate without it is what it was before and after."""
    alone = (before + after) / 2
    line = f"claims/s {before:.0f} before, {beside:.0f} beside, {after:.0f} after {attack}"
    more = ", ".join(f"{name} {figure}" for name, figure in figures.items())
    print(f"{line}: {beside / alone:.0%}; {more}")  # noqa: T201 - what it is for
