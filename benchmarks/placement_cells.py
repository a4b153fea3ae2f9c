"""What ``bench placement`` measures: each cell asks both servers the same, in turn."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from benchmarks.measures import Measure, measure, percentile
from benchmarks.placement_claims import JOINS_RATIO
from benchmarks.placement_loads import Load, Round, interleaved, reads_after_writes, run_load
from benchmarks.placement_servers import THREADS, WORKERS, Connection, Target, encode
from benchmarks.placement_worlds import CLAIMS, MOST_HOSTS, PROJECT, USER, World, uuid_of

LIMITS = (1, 1000, 0)
CLIENTS = (1, 4, 16)
CANDIDATES_RATIOS = {1000: 100.0, 10_000: 200.0}
WRITES_RATIO = 12.0
READS_RATIO = 8.0
INVENTORY_WRITES_RATIO = 8.0
NEVER_SLOWER = 1.0
MIB = 1 << 20
SEED = 7
#: Connections over which both processes of a server are asked.
LINKS = WORKERS * THREADS
#: Writes over each connection before any is measured.
WARM_WRITES = 6
_consumers = count(1 << 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How often something is measured.

    Attributes:
        rounds: Each asks ours and then the reference; the median counts.
        ours: Requests of a round.
        reference: The same for the reference, which takes far longer for each.
    """

    rounds: int
    ours: int
    reference: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured.

    Attributes:
        candidates: Searches, each after a write.
        writes: Writes per load.
        reads: Small reads per kind.
        lists: Lists of all providers.
        freshness_rounds: Writes each followed by a read through every connection.
    """

    candidates: Amount
    writes: Amount
    reads: Amount
    lists: Amount
    freshness_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both servers."""

    ours: Target
    reference: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a cell measures on.

    Attributes:
        hot: Uuid of a provider that has room for every write.
        label: Size and shape of the world.
    """

    pair: Pair
    world: World
    hot: str
    label: str
    scale: Scale

    def cpu(self, name: str, ours: Load, theirs: Load, floor: float) -> Measure:
        """Compare the CPU of a request."""
        return measure(
            f"{name}, CPU",
            self.label,
            ours.cpu_ms,
            "ms",
            baseline=theirs.cpu_ms,
            at_least_ratio=floor,
        )

    def latency(self, name: str, ours: Load, theirs: Load) -> Measure:
        """Compare how long a client waits."""
        return measure(
            f"{name}, p50",
            self.label,
            percentile(ours.seconds, 0.5) * 1000,
            "ms",
            baseline=percentile(theirs.seconds, 0.5) * 1000,
            at_least_ratio=NEVER_SLOWER,
        )


Cell = Callable[[Bench], list[Measure]]


def cells_of(shape: str, size: int) -> Mapping[str, Cell]:
    """Return by name what is measured on providers of a shape."""
    writes: dict[str, Cell] = {
        f"allocation writes, {kind}, {clients} clients": partial(
            _writes, kind=kind, clients=clients
        )
        for kind in ("spread", "one hot provider")
        for clients in CLIENTS
    }
    if shape == CLAIMS:
        return {"joined slots": _joins, **writes} if size <= MOST_HOSTS else {}
    floor = CANDIDATES_RATIOS.get(size, NEVER_SLOWER)
    cells: dict[str, Cell] = {
        f"candidates, limit {limit or 'none'}": partial(_candidates, limit=limit, floor=floor)
        for limit in LIMITS
    }
    cells["read after a write elsewhere"] = _freshness
    if shape != "flat":
        return cells
    for name in _SMALL_READS:
        cells[name] = partial(_small_read, name=name)
    for name, (path, ratio) in _LISTS.items():
        cells[name] = partial(_list, name=name, path=path, floor=ratio)
    return {**cells, "inventory writes": _inventory_writes, **writes}


def _candidates(bench: Bench, *, limit: int, floor: float) -> list[Measure]:
    """Measure searches right after a write that most of the time another process did.

    The last row repeats a search while nothing changes.
    """
    pair, amount = bench.pair, bench.scale.candidates
    name = f"candidates, limit {limit or 'none'}"
    path = f"/allocation_candidates?{bench.world.query}" + (f"&limit={limit}" if limit else "")
    with (
        _searches(pair.ours, bench.world, path, amount.ours, known_to=LINKS) as ours,
        # It does nothing else for another limit, and every process has met the search.
        _searches(pair.reference, bench.world, path, amount.reference, known_to=1) as theirs,
    ):
        mine, again, other = interleaved(
            amount.rounds, ours, _reads(pair.ours, path, amount.ours), theirs
        )
    for load in (mine, again, other):
        _check(load, path)
    _compare_candidates(mine, other, limit, bench.label)
    return [
        bench.cpu(name, mine, other, floor),
        bench.latency(name, mine, other),
        bench.cpu(f"{name}, nothing changed", again, other, floor),
    ]


@contextmanager
def _searches(
    target: Target, world: World, path: str, requests: int, *, known_to: int
) -> Iterator[Round]:
    """Give rounds of searches right after writes to hosts drawn at random, alike for both.

    Args:
        target: Server to ask.
        world: What it holds.
        path: Of the search.
        requests: Searches of a round.
        known_to: Connections that send the search once before.
    """
    links = [Connection(target) for _ in range(LINKS)]
    draw = random.Random(SEED)  # noqa: S311 - the same hosts for both
    read = encode(target, "GET", path)
    for link in links[:known_to]:  # as the processes of a busy cloud know it
        link.send_bytes(read)

    def run(number: int) -> Load:
        writes = _new_writes(target, draw, world.hosts, requests, world.asked)
        return reads_after_writes(links, read, writes, first=number)

    yield run
    for link in links:
        link.close()


def _reads(target: Target, path: str, requests: int) -> Round:
    """Return rounds of one GET request, sent many times over one connection."""
    request = encode(target, "GET", path)
    return lambda _: run_load(target, [[request] * requests])


def _check(load: Load, path: str) -> None:
    if load.done != sum(load.statuses.values()):
        message = f"{path} was answered with {load.statuses}"
        raise RuntimeError(message)


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


def _freshness(bench: Bench) -> list[Measure]:
    """Write through one connection, read candidates through several, check what they show.

    The connections end up with different worker processes, so most answers come from a process
    that did not do the write.
    """
    pair = bench.pair
    host = bench.world.hosts[0 if bench.world.shape == "nested" else -1]
    rounds = [_fresh_reads(target, bench.world, host) for target in (pair.ours, pair.reference)]
    ours, theirs = interleaved(bench.scale.freshness_rounds, *rounds)
    return [bench.cpu("read after a write elsewhere", ours, theirs, NEVER_SLOWER)]


def _fresh_reads(target: Target, world: World, host: str) -> Round:
    key = "in_tree_CPU" if world.shape == "nested" else "in_tree"
    resources = "resources_CPU=VCPU:1" if world.shape == "nested" else "resources=VCPU:1"
    read = encode(target, "GET", f"/allocation_candidates?{resources}&{key}={host}")

    def run(_: int) -> Load:
        first = Connection(target)
        used = _used(first, host) + 1
        status, answer = first.send_bytes(_new_write(target, host, world.asked))
        if status != 204:  # noqa: PLR2004 - HTTP
            raise RuntimeError(answer[:300])
        first.close()
        load = run_load(target, [[read] for _ in range(LINKS)])
        for body in load.bodies:
            summary = json.loads(body)["provider_summaries"][host]["resources"]["VCPU"]
            if summary["used"] != used:
                message = f"{target.name} shows {summary['used']} used after the write of {used}"
                raise RuntimeError(message)
        return load

    return run


def _used(link: Connection, host: str) -> int:
    _, body = link.send("GET", f"/resource_providers/{host}/usages")
    return int(json.loads(body)["usages"]["VCPU"])


def _small_read(bench: Bench, *, name: str) -> list[Measure]:
    path = _SMALL_READS[name].format(
        host=bench.world.hosts[0], consumer=next(iter(bench.world.contents.consumers))
    )
    return _compared_reads(bench, name, path, bench.scale.reads, READS_RATIO)


def _list(bench: Bench, *, name: str, path: str, floor: float) -> list[Measure]:
    return _compared_reads(bench, name, path, bench.scale.lists, floor)


def _compared_reads(
    bench: Bench, name: str, path: str, amount: Amount, floor: float
) -> list[Measure]:
    pair = bench.pair
    for target in (pair.ours, pair.reference):  # every process has met the request
        run_load(target, [[encode(target, "GET", path)] for _ in range(LINKS)])
    ours, theirs = interleaved(
        amount.rounds,
        _reads(pair.ours, path, amount.ours),
        _reads(pair.reference, path, amount.reference),
    )
    for load in (ours, theirs):
        _check(load, path)
    return [bench.cpu(name, ours, theirs, floor), bench.latency(name, ours, theirs)]


_SMALL_READS: Mapping[str, str] = {
    "provider usages": "/resource_providers/{host}/usages",
    "provider inventories": "/resource_providers/{host}/inventories",
    "provider allocations": "/resource_providers/{host}/allocations",
    "one provider": "/resource_providers/{host}",
    "consumer's allocations": "/allocations/{consumer}",
    "project usages": f"/usages?project_id={PROJECT}",
}
#: Path and least ratio.
_LISTS: Mapping[str, tuple[str, float]] = {
    "all providers": ("/resource_providers", 10.0),
    "providers with room": ("/resource_providers?resources=VCPU:4,MEMORY_MB:4096", 30.0),
}


def _allocation(host: str, asked: Mapping[str, int]) -> dict[str, Any]:
    return {
        "allocations": {host: {"resources": asked}},
        "project_id": PROJECT,
        "user_id": USER,
        "consumer_generation": None,
    }


def _new_write(target: Target, host: str, asked: Mapping[str, int]) -> bytes:
    path = f"/allocations/{uuid_of(next(_consumers))}"
    return encode(target, "PUT", path, _allocation(host, asked), minor=28)


def _new_writes(
    target: Target,
    draw: random.Random,
    hosts: Sequence[str],
    number: int,
    asked: Mapping[str, int],
) -> list[bytes]:
    return [_new_write(target, draw.choice(hosts), asked) for _ in range(number)]


def _inventory_writes(bench: Bench) -> list[Measure]:
    """Give one provider other inventories, again and again."""
    pair, amount, host = bench.pair, bench.scale.reads, bench.world.hosts[1]
    kinds = [
        _changes(pair.ours, host, amount.ours),
        _changes(pair.reference, host, amount.reference),
    ]
    for number in range(2 * LINKS):  # every database session has planned the write
        kinds[0](number)
    kinds[1](0)
    ours, theirs = interleaved(amount.rounds, *kinds)
    for load in (ours, theirs):
        _check(load, "PUT inventories")
    name = "inventory writes"
    return [
        bench.cpu(name, ours, theirs, INVENTORY_WRITES_RATIO),
        bench.latency(name, ours, theirs),
    ]


def _changes(target: Target, host: str, requests: int) -> Round:
    """Return rounds of writes of a provider's inventories, each of which changes them."""
    path = f"/resource_providers/{host}/inventories"

    def run(_: int) -> Load:
        link = Connection(target)
        known = json.loads(link.send("GET", path)[1])
        link.close()
        generation = known["resource_provider_generation"]
        bodies = []
        for number in range(requests):
            inventories = {
                name: {**fields, "reserved": number % 2}
                for name, fields in known["inventories"].items()
            }
            bodies.append(
                encode(
                    target,
                    "PUT",
                    path,
                    {
                        "resource_provider_generation": generation + number,
                        "inventories": inventories,
                    },
                )
            )
        return run_load(target, [bodies])

    return run


def _writes(bench: Bench, *, kind: str, clients: int) -> list[Measure]:
    pair, amount = bench.pair, bench.scale.writes
    hosts = bench.world.hosts if kind == "spread" else (bench.hot,)
    for target in (pair.ours, pair.reference):  # every database session has planned the write
        _write_rounds(target, hosts, LINKS, LINKS * WARM_WRITES, bench.world.asked)(0)
    ours, theirs = interleaved(
        amount.rounds,
        _write_rounds(pair.ours, hosts, clients, amount.ours, bench.world.asked),
        _write_rounds(pair.reference, hosts, clients, amount.reference, bench.world.asked),
    )
    if ours.done != sum(ours.statuses.values()):
        message = f"allocations were refused: {ours.statuses}"
        raise RuntimeError(message)
    name = f"allocation writes, {kind}, {clients} clients"
    rows = [
        measure(
            f"{name}, seconds per 1000",
            bench.label,
            1000 / ours.per_second,
            "s",
            baseline=1000 / max(theirs.per_second, 1e-9),
            at_least_ratio=WRITES_RATIO,
        ),
        bench.cpu(name, ours, theirs, WRITES_RATIO),
    ]
    if refused := sum(theirs.statuses.values()) - theirs.done:
        rows.append(measure(f"{name}, refused by the reference", bench.label, refused, "requests"))
    return rows


def _joins(bench: Bench) -> list[Measure]:
    """Measure claims and deletions over HTTP on hosts with a slot of the project and on bare ones.

    A deletion is of a claim of the same round.
    """
    target, requests = bench.pair.ours, bench.scale.writes.ours
    draw = random.Random(SEED)  # noqa: S311 - the same hosts in each run

    def rounds(hosts: Sequence[str]) -> tuple[Round, Round]:
        consumers: list[str] = []

        def claim(_: int) -> Load:
            consumers[:] = (uuid_of(next(_consumers)) for _ in range(requests))
            return run_load(
                target,
                [
                    [
                        encode(
                            target,
                            "PUT",
                            f"/allocations/{consumer}",
                            _allocation(draw.choice(hosts), bench.world.asked),
                            minor=28,
                        )
                        for consumer in consumers
                    ]
                ],
            )

        def delete(_: int) -> Load:
            paths = [f"/allocations/{consumer}" for consumer in consumers]
            return run_load(target, [[encode(target, "DELETE", path) for path in paths]])

        return claim, delete

    bare, held = bench.world.hosts[::2], bench.world.hosts[1::2]
    for hosts in (bare, held):  # every database session has planned the write
        _write_rounds(target, hosts, LINKS, LINKS * WARM_WRITES, bench.world.asked)(0)
    loads = interleaved(2 * bench.scale.writes.rounds, *rounds(bare), *rounds(held))
    for load in loads:
        _check(load, "a claim")
    rows = []
    for name, without, joined in zip(("claim", "deletion"), loads[:2], loads[2:], strict=True):
        rows += [
            measure(
                f"{name} over HTTP that concerns a slot, CPU, by one that does not",
                bench.label,
                joined.cpu_ms,
                "ms",
                baseline=without.cpu_ms,
            ),
            measure(
                f"{name} over HTTP that concerns a slot, by one that does not",
                bench.label,
                joined.cpu_ms / without.cpu_ms,
                "times",
                at_most=JOINS_RATIO,
            ),
        ]
    return rows


def _write_rounds(
    target: Target, hosts: Sequence[str], clients: int, requests: int, asked: Mapping[str, int]
) -> Round:
    """Return rounds of new consumers for each client, on hosts drawn alike for both servers."""
    each = requests // clients
    draw = random.Random(SEED)  # noqa: S311 - the same load for both

    def run(_: int) -> Load:
        return run_load(
            target, [_new_writes(target, draw, hosts, each, asked) for _ in range(clients)]
        )

    return run
