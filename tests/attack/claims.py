"""Claims of VMs that go on without pause, and how many of them are answered beside an attack."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import psutil

from config.launcher.processes import wait_until
from tests.attack.load import UUID, Asked, Load, request_of
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, Answer, WebServer

PLACEMENT = {"OpenStack-API-Version": "placement 1.39"}
#: As many as a busy zone has: one alone would be a row that all wait for and whose versions pile
#: up behind whoever holds a transaction open.
PROVIDERS = tuple(f"11111111-1111-4111-8111-{number:012}" for number in range(64))
OPERATOR = [{"token": ADMIN, "name": "operator", "roles": ["cloud_resource_admin", "admin"]}]
CLAIMERS = 16
#: More of them give figures that can be told; one shows that claims go on.
ROUNDS = int(os.environ.get("ATTACK_ROUNDS", "1"))
WINDOW_CLAIMS = 300 if ROUNDS == 1 else 1500


def placement(web: WebServer, method: str, path: str, body: Any = None) -> Answer:
    return web.send(method, f"/placement/{path}", body, headers=PLACEMENT)


def make_providers(web: WebServer) -> None:
    """Make what is claimed from, through the API."""
    inventory = {"inventories": {"VCPU": {"total": 1_000_000}}, "resource_provider_generation": 0}
    for uuid in PROVIDERS:
        made = placement(web, "POST", "resource_providers", {"name": uuid, "uuid": uuid})
        assert made.status == 200
        path = f"resource_providers/{uuid}/inventories"
        assert placement(web, "PUT", path, inventory).status == 200


def claims(web: WebServer) -> Asked:
    """Return the load: each claim is of a new VM."""
    body = {
        "allocations": {PROVIDERS[0]: {"resources": {"VCPU": 1}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    fields = {"X-Auth-Token": ADMIN, "Content-Type": "application/json", **PLACEMENT}
    path = f"/placement/allocations/{UUID.decode()}"
    content = json.dumps(body).encode()
    return Asked(
        port=web.port,
        connections=CLAIMERS,
        request=request_of("PUT", path, fields, content),
        choices=tuple(uuid.encode() for uuid in PROVIDERS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Claims answered in a second, in turn without and beside an attack: one more without it.

    A machine that becomes slower meanwhile does so for both.
    """

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def tell(self, attack: str, **figures: object) -> None:
        """Print what an attack leaves of the rate: the median of its rounds."""
        alone = [(before + after) / 2 for before, after in pairwise(self.alone)]
        shares = [beside / rate for beside, rate in zip(self.beside, alone, strict=True)]
        line = f"claims/s {median(alone):.0f} alone, {median(self.beside):.0f} beside {attack}"
        range_of = f"{min(shares):.0%} to {max(shares):.0%} in {len(shares)} rounds"
        more = ", ".join(f"{name} {figure}" for name, figure in figures.items())
        print(f"{line}: {median(shares):.0%} ({range_of}); {more}")  # noqa: T201 - what it is for


def rates_of(claiming: Load, attack: Callable[[], AbstractContextManager[None]]) -> Rates:
    """Return the rates of claims in rounds; ``attack`` is entered and left in each.

    What is to be looked at while it lasts, it looks at before its block ends.
    """
    _rate_of_window(claiming)  # the first ones load what all need
    rates = Rates()
    for _ in range(ROUNDS):
        rates.alone.append(_rate_of_window(claiming))
        with attack():
            rates.beside.append(_rate_of_window(claiming))
    rates.alone.append(_rate_of_window(claiming))
    return rates


def _rate_of_window(claiming: Load) -> float:
    before, begun = claiming.answered(204), time.monotonic()
    enough = before + WINDOW_CLAIMS
    assert wait_until(lambda: claiming.answered(204) >= enough, 2 * PATIENCE_SECONDS)
    return (claiming.answered(204) - before) / (time.monotonic() - begun)


def workers_of(web: WebServer) -> list[psutil.Process]:
    """Return the processes that answer requests."""
    assert web.child is not None
    generations = psutil.Process(web.child.process.pid).children()
    return [worker for generation in generations for worker in generation.children()]


def descendants_of(web: WebServer) -> list[psutil.Process]:
    """Return what the processes that answer requests have started."""
    found: list[psutil.Process] = []
    for worker in workers_of(web):
        found += worker.children()
    return found
