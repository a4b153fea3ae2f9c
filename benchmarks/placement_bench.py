"""``bench placement``: the Placement API against the reference on the same PostgreSQL.

Both are served by granian with the same number of processes and threads, from databases of one
server that hold the same rows. CPU counts the web processes and their database sessions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

from rich.console import Console

from benchmarks.measures import Measure, measure, percentile
from benchmarks.placement_servers import (
    THREADS,
    WORKERS,
    Connection,
    Load,
    Target,
    encode,
    make_reference_database,
    merged,
    reads_after_writes,
    repeated_load,
    run_load,
    served_headroom,
    served_reference,
    warm,
)
from benchmarks.placement_worlds import (
    PROJECT,
    USER,
    World,
    fill_ours,
    fill_reference,
    make_world,
    uuid_of,
    with_hot_provider,
)
from config.launcher.peers import ensure_peer
from config.launcher.places import this_checkout

SHAPES = ("flat", "nested", "sharing")
LIMITS = (1, 1000, 0)
CLIENTS = (1, 4, 16)
LARGE = 10_000
MIDDLE = 1000
CANDIDATES_RATIO_LARGE = 200.0
CANDIDATES_RATIO_MIDDLE = 50.0
WRITES_RATIO = 12.0
READS_RATIO = 8.0
NEVER_SLOWER = 1.0
MIB = 1 << 20
WARM_ROUNDS = 6
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How often something is measured: ``batches`` of so many requests, the median counts."""

    batches: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured, (of ours, of the reference), which takes far longer per request.

    Attributes:
        sizes: Numbers of providers.
        candidates: Searches, each after a write.
        writes: Writes per load.
        reads: Small reads per kind.
        lists: Lists of all providers.
        rounds: Writes each followed by a read through every connection.
    """

    sizes: tuple[int, ...]
    candidates: tuple[Amount, Amount]
    writes: tuple[Amount, Amount]
    reads: tuple[Amount, Amount]
    lists: tuple[Amount, Amount]
    rounds: int


QUICK = Scale(
    sizes=(200,),
    candidates=(Amount(batches=3, requests=8), Amount(batches=2, requests=1)),
    writes=(Amount(batches=2, requests=64), Amount(batches=1, requests=16)),
    reads=(Amount(batches=3, requests=40), Amount(batches=2, requests=5)),
    lists=(Amount(batches=2, requests=4), Amount(batches=1, requests=1)),
    rounds=1,
)
FULL = Scale(
    sizes=(MIDDLE, LARGE),
    candidates=(Amount(batches=5, requests=40), Amount(batches=3, requests=1)),
    writes=(Amount(batches=5, requests=480), Amount(batches=3, requests=64)),
    reads=(Amount(batches=5, requests=300), Amount(batches=5, requests=20)),
    lists=(Amount(batches=5, requests=10), Amount(batches=3, requests=1)),
    rounds=5,
)
_consumers = count(1 << 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both servers."""

    ours: Target
    reference: Target


def run(*, is_quick: bool) -> list[Measure]:
    """Measure each shape at each size, writes and small reads on the flat one."""
    scale = QUICK if is_quick else FULL
    peer = ensure_peer(this_checkout())
    make_reference_database()
    rows: list[Measure] = []
    with served_reference(peer) as reference:
        for size in scale.sizes:
            for shape in SHAPES:
                world, hot = with_hot_provider(make_world(shape, size))
                Console().print(f"{len(world.contents.providers)} providers, {shape}")
                fill_ours(world)
                fill_reference(reference.conninfo, world)
                with ExitStack() as held:
                    pair = Pair(ours=held.enter_context(served_headroom()), reference=reference)
                    label = f"{size} providers, {shape}"
                    rows.append(_first(pair, world, label))
                    _warm(pair, world)
                    rows += _candidates(pair, world, label, size, scale)
                    rows.append(_freshness(pair, world, label, scale))
                    if shape == "flat":
                        rows += _small_reads(pair, world, label, scale)
                        rows += _writes(pair, world, hot, label, scale)
                    rows.append(_memory(pair, label))
    return rows


def _warm(pair: Pair, world: World) -> None:
    paths = [f"/allocation_candidates?{world.query}&limit=1", "/traits"]
    for _ in range(WARM_ROUNDS):  # every process has to load the providers before it is measured
        warm(pair.ours, [*paths, f"/resource_providers/{world.hosts[0]}/usages"])
    warm(pair.reference, paths[1:])


def _first(pair: Pair, world: World, label: str) -> Measure:
    """Measure the first search of a server that has just started."""
    read = encode(pair.ours, "GET", f"/allocation_candidates?{world.query}&limit=1")
    load = run_load(pair.ours, [[read]])
    return measure("first search of a server, p50", label, load.seconds[0] * 1000, "ms")


def _candidates(pair: Pair, world: World, label: str, size: int, scale: Scale) -> list[Measure]:
    """Measure searches right after a write that most of the time another process did.

    The second kind of row repeats a search while nothing changes.
    """
    rows = []
    floors = {LARGE: CANDIDATES_RATIO_LARGE, MIDDLE: CANDIDATES_RATIO_MIDDLE}
    floor = floors.get(size, NEVER_SLOWER)
    for limit in LIMITS:
        query = world.query + (f"&limit={limit}" if limit else "")
        path = f"/allocation_candidates?{query}"
        ours, theirs = (
            _searches(target, world, path, amount)
            for target, amount in zip((pair.ours, pair.reference), scale.candidates, strict=True)
        )
        _compare_candidates(ours, theirs, limit, label)
        again = _repeated(pair.ours, path, scale.candidates[0])
        name = f"candidates, limit {limit or 'none'}"
        rows += [
            _cpu(f"{name}, CPU", label, ours, theirs, floor),
            _latency(f"{name}, p50", label, ours, theirs),
            _cpu(f"{name}, nothing changed, CPU", label, again, theirs, floor),
        ]
    return rows


def _searches(target: Target, world: World, path: str, amount: Amount) -> Load:
    """Search right after writes to hosts drawn at random, alike for both servers."""
    links = [Connection(target) for _ in range(WORKERS * THREADS)]
    draw = random.Random(SEED)  # noqa: S311 - the same hosts for both
    read = encode(target, "GET", path)
    for link in links:  # every process knows the search, as those of a busy cloud do
        link.send_bytes(read)
    loads = [
        reads_after_writes(
            links, read, _new_writes(target, draw, world.hosts, amount.requests), first=batch
        )
        for batch in range(amount.batches)
    ]
    for link in links:
        link.close()
    return _checked(merged(loads), path)


def _new_writes(
    target: Target, draw: random.Random, hosts: Sequence[str], number: int
) -> list[bytes]:
    return [
        encode(
            target,
            "PUT",
            f"/allocations/{uuid_of(next(_consumers))}",
            _allocation(draw.choice(hosts), 1),
            minor=28,
        )
        for _ in range(number)
    ]


def _repeated(target: Target, path: str, amount: Amount) -> Load:
    """Send one GET request many times over one connection."""
    request = encode(target, "GET", path)
    loads = repeated_load(target, [[[request] * amount.requests]] * amount.batches)
    return _checked(loads, path)


def _checked(load: Load, path: str) -> Load:
    if load.done != sum(load.statuses.values()):
        message = f"{path} was answered with {load.statuses}"
        raise RuntimeError(message)
    return load


def _both(pair: Pair, path: str, amounts: tuple[Amount, Amount]) -> tuple[Load, Load]:
    """Send one GET request many times over one connection to each server."""
    ours, theirs = amounts
    return _repeated(pair.ours, path, ours), _repeated(pair.reference, path, theirs)


def _compare_candidates(ours: Load, theirs: Load, limit: int, label: str) -> None:
    """Stop when the servers disagree: how fast a wrong answer comes is of no interest."""
    mine, other = (json.loads(load.bodies[0]) for load in (ours, theirs))
    found = [len(answer["allocation_requests"]) for answer in (mine, other)]
    same = found[0] == found[1]
    if not limit:
        same = same and mine["provider_summaries"].keys() == other["provider_summaries"].keys()
    if not same:
        message = f"{label}, limit {limit}: {found[0]} candidates, the reference has {found[1]}"
        raise RuntimeError(message)


def _cpu(name: str, label: str, ours: Load, theirs: Load, floor: float) -> Measure:
    return measure(name, label, ours.cpu_ms, "ms", baseline=theirs.cpu_ms, at_least_ratio=floor)


def _latency(name: str, label: str, ours: Load, theirs: Load) -> Measure:
    return measure(
        name,
        label,
        percentile(ours.seconds, 0.5) * 1000,
        "ms",
        baseline=percentile(theirs.seconds, 0.5) * 1000,
        at_least_ratio=NEVER_SLOWER,
    )


def _freshness(pair: Pair, world: World, label: str, scale: Scale) -> Measure:
    """Write through one connection, read candidates through several, check what they show.

    The connections end up with different worker processes, so most answers come from a process
    that did not do the write.
    """
    costs = []
    for target in (pair.ours, pair.reference):
        links = [Connection(target) for _ in range(WORKERS * THREADS)]
        host = world.hosts[-1]
        if world.shape == "nested":
            host = world.hosts[0]
        before = target.cpu()
        used, reads = _used(links[0], host), 0
        for _ in range(scale.rounds):
            status, body = links[reads % len(links)].send(
                "PUT", f"/allocations/{uuid_of(next(_consumers))}", _allocation(host, 1), minor=28
            )
            if status != 204:  # noqa: PLR2004 - HTTP
                raise RuntimeError(body[:300])
            used += 1
            for link in links:
                seen = _used_in_candidates(link, world, host)
                reads += 1
                if seen != used:
                    message = f"{target.name} shows {seen} used after the write of {used}"
                    raise RuntimeError(message)
        after = target.cpu()
        spent = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
        costs.append(spent * 1000 / max(1, reads))
        for link in links:
            link.close()
    return measure(
        "read after a write elsewhere, CPU",
        label,
        costs[0],
        "ms",
        baseline=costs[1],
        at_least_ratio=NEVER_SLOWER,
    )


def _used(link: Connection, host: str) -> int:
    _, body = link.send("GET", f"/resource_providers/{host}/usages")
    return int(json.loads(body)["usages"]["VCPU"])


def _used_in_candidates(link: Connection, world: World, host: str) -> int:
    key = "in_tree_CPU" if world.shape == "nested" else "in_tree"
    query = "resources_CPU=VCPU:1" if world.shape == "nested" else "resources=VCPU:1"
    _, body = link.send("GET", f"/allocation_candidates?{query}&{key}={host}")
    summary = json.loads(body)["provider_summaries"][host]["resources"]["VCPU"]
    return int(summary["used"])


def _small_reads(pair: Pair, world: World, label: str, scale: Scale) -> list[Measure]:
    host = world.hosts[0]
    consumer = next(iter(world.contents.consumers))
    reads = {
        "provider usages": f"/resource_providers/{host}/usages",
        "provider inventories": f"/resource_providers/{host}/inventories",
        "provider allocations": f"/resource_providers/{host}/allocations",
        "one provider": f"/resource_providers/{host}",
        "consumer's allocations": f"/allocations/{consumer}",
        "project usages": f"/usages?project_id={PROJECT}",
    }
    rows = []
    for name, path in reads.items():
        ours, theirs = _both(pair, path, scale.reads)
        rows += [
            _cpu(f"{name}, CPU", label, ours, theirs, READS_RATIO),
            _latency(f"{name}, p50", label, ours, theirs),
        ]
    lists = {
        "all providers": "/resource_providers",
        "providers with room": "/resource_providers?resources=VCPU:4,MEMORY_MB:4096",
    }
    for name, path in lists.items():
        ours, theirs = _both(pair, path, scale.lists)
        rows += [
            _cpu(f"{name}, CPU", label, ours, theirs, NEVER_SLOWER),
            _latency(f"{name}, p50", label, ours, theirs),
        ]
    return rows


def _allocation(host: str, vcpus: int) -> dict[str, Any]:
    return {
        "allocations": {host: {"resources": {"VCPU": vcpus}}},
        "project_id": PROJECT,
        "user_id": USER,
        "consumer_generation": None,
    }


def _writes(pair: Pair, world: World, hot: str, label: str, scale: Scale) -> list[Measure]:
    rows = []
    for kind, hosts in (("spread", world.hosts), ("one hot provider", (hot,))):
        for clients in CLIENTS:
            ours, theirs = (
                repeated_load(
                    target,
                    [
                        _write_requests(target, hosts, clients, amount.requests)
                        for _ in range(amount.batches)
                    ],
                )
                for target, amount in zip((pair.ours, pair.reference), scale.writes, strict=True)
            )
            if ours.done != sum(ours.statuses.values()):
                message = f"allocations were refused: {ours.statuses}"
                raise RuntimeError(message)
            name = f"allocation writes, {kind}, {clients} clients"
            refused = sum(theirs.statuses.values()) - theirs.done
            rows += [
                measure(
                    f"{name}, seconds per 1000",
                    label,
                    1000 / ours.per_second,
                    "s",
                    baseline=1000 / max(theirs.per_second, 1e-9),
                    at_least_ratio=WRITES_RATIO,
                ),
                _cpu(f"{name}, CPU", label, ours, theirs, WRITES_RATIO),
            ]
            if refused:
                rows.append(
                    measure(f"{name}, refused by the reference", label, refused, "requests")
                )
    return rows


def _write_requests(
    target: Target, hosts: Sequence[str], clients: int, number: int
) -> list[list[bytes]]:
    """Return new consumers for each client, on hosts drawn alike for both servers."""
    draw = random.Random(SEED)  # noqa: S311 - the same load for both
    return [_new_writes(target, draw, hosts, number // clients) for _ in range(clients)]


def _memory(pair: Pair, label: str) -> Measure:
    ours, theirs = (target.memory_bytes() / MIB for target in (pair.ours, pair.reference))
    return measure("memory of the web processes", label, ours, "MiB", baseline=theirs)
