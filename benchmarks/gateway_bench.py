"""``bench gateway``: what it costs to hand a request on to another Placement.

The same requests go to a real openstack-placement directly and through Headroom, in turn, round by
round. Both are served by granian with the same number of processes and threads. The value is the
CPU of Headroom's processes and database sessions for each request, the baseline that of the other
Placement for the same request asked directly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from benchmarks.measures import Measure, measure
from benchmarks.placement_loads import Load, interleaved, run_load
from benchmarks.placement_servers import (
    Target,
    encode,
    make_reference_database,
    served_headroom,
    served_reference,
    warm,
)
from benchmarks.placement_worlds import fill_reference, make_world
from config.launcher.demo import ADDRESS
from config.launcher.peers import ensure_peer
from config.launcher.places import this_checkout

MOST_ADDED_MS = 2.0
CLIENTS = 4
CONSUMERS = itertools.count(1 << 90)
WARM_ROUNDS = 6

Request = Callable[[Target], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is sent.

    Attributes:
        providers: Of the other Placement.
        rounds: How often both are asked in turn.
        requests: Of each client in a round; of large answers a tenth.
    """

    providers: int
    rounds: int
    requests: int


QUICK = Scale(providers=200, rounds=3, requests=20)
FULL = Scale(providers=1000, rounds=5, requests=100)


def run(*, is_quick: bool) -> list[Measure]:
    """Measure small reads, writes, and large answers."""
    scale = QUICK if is_quick else FULL
    world = make_world("flat", scale.providers)
    make_reference_database()
    with ExitStack() as held:
        reference = held.enter_context(served_reference(ensure_peer(this_checkout())))
        fill_reference(reference.conninfo, world)
        gateway = held.enter_context(
            served_headroom(GATEWAY__UPSTREAM_URL=f"http://{ADDRESS}:{reference.port}")
        )
        host = world.hosts[0]
        read = f"/resource_providers/{host}/inventories"
        for _ in range(WARM_ROUNDS):
            warm(gateway, [read, "/resource_providers"])
        few = max(2, scale.requests // 10)
        cells: dict[str, tuple[Request, int]] = {
            "GET inventories": (partial(_get, path=read), scale.requests),
            "PUT allocations": (
                partial(_write, providers=itertools.cycle(world.hosts)),
                scale.requests,
            ),
            "GET resource_providers": (partial(_get, path="/resource_providers"), few),
        }
        size = f"{scale.providers} providers"
        return [
            row
            for name, (request, count) in cells.items()
            for row in _measured(name, size, reference, gateway, request, (scale.rounds, count))
        ]


def _measured(  # noqa: PLR0917 - a cell in its parts
    name: str,
    size: str,
    reference: Target,
    gateway: Target,
    request: Request,
    amount: tuple[int, int],
) -> list[Measure]:
    rounds, count = amount

    def load(target: Target) -> Load:
        return run_load(target, [[request(target) for _ in range(count)] for _ in range(CLIENTS)])

    direct, through = interleaved(rounds, lambda _: load(reference), lambda _: load(gateway))
    if direct.statuses != through.statuses:
        message = f"{name}: {direct.statuses} directly, {through.statuses} through Headroom"
        raise RuntimeError(message)
    if direct.statuses.keys() - {200, 204}:
        raise RuntimeError(f"{name}: {direct.statuses}")
    return [
        measure(
            f"{name}, CPU added per request",
            size,
            through.cpu_ms,
            "ms",
            baseline=direct.cpu_ms,
            at_most=MOST_ADDED_MS,
        )
    ]


def _get(target: Target, path: str) -> bytes:
    return encode(target, "GET", path)


def _write(target: Target, providers: Iterator[str]) -> bytes:
    # One after the other: for two writes of one at once the other Placement may answer 409.
    body = {
        "allocations": {next(providers): {"resources": {"VCPU": 1}}},
        "project_id": "bench-project",
        "user_id": "bench-user",
        "consumer_generation": None,
    }
    return encode(target, "PUT", f"/allocations/{UUID(int=next(CONSUMERS))}", body, minor=28)
