"""``bench placement``: the Placement API against the reference on the same PostgreSQL.

Both are served by granian with the same number of processes and threads, from databases of one
server that hold the same rows, and are asked in turn, round by round. CPU counts the web processes
and their database sessions.
"""

from __future__ import annotations

import re
from contextlib import ExitStack

from rich.console import Console

from benchmarks.measures import Measure, measure
from benchmarks.placement_cells import MIB, Amount, Bench, Cell, Pair, Scale, cells_of
from benchmarks.placement_claims import claims
from benchmarks.placement_loads import run_load
from benchmarks.placement_servers import (
    encode,
    make_reference_database,
    served_headroom,
    served_reference,
    warm,
)
from benchmarks.placement_worlds import (
    CLAIMS,
    fill_hosts,
    fill_ours,
    fill_reference,
    make_world,
    with_hot_provider,
)
from config.launcher.peers import ensure_peer
from config.launcher.places import this_checkout

SHAPES = ("flat", "nested", "sharing", CLAIMS)
SIZES = (1000, 10_000)
WARM_ROUNDS = 6
QUICK = Scale(
    candidates=Amount(rounds=3, ours=10, reference=1),
    writes=Amount(rounds=2, ours=64, reference=16),
    reads=Amount(rounds=5, ours=100, reference=10),
    lists=Amount(rounds=2, ours=4, reference=1),
    freshness_rounds=1,
)
FULL = Scale(
    candidates=Amount(rounds=5, ours=30, reference=1),
    writes=Amount(rounds=4, ours=400, reference=48),
    reads=Amount(rounds=7, ours=150, reference=12),
    lists=Amount(rounds=5, ours=5, reference=1),
    freshness_rounds=5,
)
QUICK_SIZES = (200,)


def run(*, is_quick: bool, only: str = "") -> list[Measure]:
    """Measure each shape at each size, writes and small reads on the flat one.

    Args:
        is_quick: Whether to take a small size, or few rounds where cells are chosen.
        only: Regular expression; cells whose size and name it does not match are left out.
    """
    scale = QUICK if is_quick else FULL
    sizes = QUICK_SIZES if is_quick and not only else SIZES
    rows: list[Measure] = []
    if re.search(only, "claims"):
        rows += claims(is_quick=is_quick)
        if only and not any(
            re.search(only, f"{label}, {name}")
            for size in sizes
            for shape in SHAPES
            for label in (f"{size} providers, {shape}",)
            for name in cells_of(shape, size)
        ):
            return rows
    peer = ensure_peer(this_checkout())
    make_reference_database()
    with ExitStack() as held:
        reference = held.enter_context(served_reference(peer))
        for size in sizes:
            for shape in SHAPES:
                label = f"{size} providers, {shape}"
                chosen = [
                    cell
                    for name, cell in cells_of(shape, size).items()
                    if re.search(only, f"{label}, {name}")
                ]
                if not chosen:
                    continue
                world, hot = with_hot_provider(make_world(shape, size))
                Console().print(label)
                settles = {"ALLOCATION_SOURCE": "placement"} if shape == CLAIMS else {}
                fill = fill_hosts if shape == CLAIMS else fill_ours
                fill(world)
                fill_reference(reference.conninfo, world)
                with served_headroom(**settles) as ours:
                    pair = Pair(ours=ours, reference=reference)
                    rows += _measured(
                        Bench(pair=pair, world=world, hot=hot, label=label, scale=scale), chosen
                    )
    return rows


def _measured(bench: Bench, cells: list[Cell]) -> list[Measure]:
    rows = [_first(bench)]
    _warm(bench)
    for cell in cells:
        rows += cell(bench)
    return [*rows, _memory(bench)]


def _first(bench: Bench) -> Measure:
    """Measure the first search of a server that has just started."""
    ours = bench.pair.ours
    read = encode(ours, "GET", f"/allocation_candidates?{bench.world.query}&limit=1")
    load = run_load(ours, [[read]])
    return measure("first search of a server, p50", bench.label, load.seconds[0] * 1000, "ms")


def _warm(bench: Bench) -> None:
    """Let every process of both servers load what it keeps and meet the kinds of requests."""
    world = bench.world
    paths = [
        f"/allocation_candidates?{world.query}&limit=1",
        f"/resource_providers/{world.hosts[0]}/usages",
        "/traits",
    ]
    for _ in range(WARM_ROUNDS):
        warm(bench.pair.ours, paths)
    warm(bench.pair.reference, paths)


def _memory(bench: Bench) -> Measure:
    pair = bench.pair
    ours, theirs = (target.memory_bytes() / MIB for target in (pair.ours, pair.reference))
    return measure("memory of the web processes", bench.label, ours, "MiB", baseline=theirs)
