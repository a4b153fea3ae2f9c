"""Freeing hosts: the plan of one zone, without the database, with and without a limit of moves."""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console

from benchmarks.commitments.costs import peak_gib
from benchmarks.measures import Measure, fitted_exponent, measure
from commitments.domain.compaction import CompactionState, SlotKind, plan_compaction
from scheduling.resources import GIB

SLOTS_PER_HOST = 6
SIZES_GIB = ((32, 4), (64, 8), (96, 8), (128, 16), (256, 32))
HOST_GIB, HOST_VCPUS = 1024, 128
TENANCIES = 20
PASSING_SHARE = 0.8
LIMIT = 100
TARGET_SECONDS = 10.0
WHOLE = "plan that frees hosts, no limit"
LIMITED = f"plan that frees hosts, {LIMIT} moves"


def run(*, is_quick: bool) -> list[Measure]:
    """Measure three sizes in the number of hosts, of which half have VMs."""
    sizes = (300, 1000, 3000) if is_quick else (1000, 3000, 10_000)
    rows: list[Measure] = []
    seconds: dict[str, list[float]] = {}
    for size in sizes:
        state = fragmented_zone(size)
        label = f"{size} hosts, {len(state.slot_host)} slots"
        Console().print(label)
        for name, most_moves in ((WHOLE, len(state.slot_host)), (LIMITED, LIMIT)):
            started = time.perf_counter()
            plan = plan_compaction(state, most_moves=most_moves)
            taken = time.perf_counter() - started
            seconds.setdefault(name, []).append(taken)
            if not plan.releases:
                message = "no host would be freed"
                raise RuntimeError(message)
            target = TARGET_SECONDS if size == max(sizes) else None
            rows += [
                measure(name, label, taken, "s", at_most=target),
                measure("hosts freed by it", label, len(plan.releases), "hosts"),
            ]
        rows.append(measure("peak memory so far", label, peak_gib(), "GiB"))
    for name, taken_seconds in seconds.items():
        exponent = fitted_exponent(sizes, taken_seconds)
        rows.append(measure(f"fitted exponent of {name}", "all sizes", exponent, "", at_most=1.5))
    return rows


def fragmented_zone(hosts: int) -> CompactionState:
    """Make a zone: half its hosts run VMs, half hold empty slots of several sizes and tenancies."""
    rng = np.random.default_rng(hosts)
    total = np.tile(np.array([HOST_GIB, HOST_VCPUS], dtype=np.int64), (hosts, 1))
    free = total.copy()
    has_vms = np.arange(hosts) % 2 == 0
    free[has_vms] = (total[has_vms] * rng.random((int(has_vms.sum()), 1))).astype(np.int64)
    masks = [rng.random(hosts) < PASSING_SHARE for _ in range(TENANCIES)]
    no_preference = np.zeros(hosts)
    kinds = tuple(
        SlotKind(memory_bytes=gib * GIB, vcpus=vcpus, passing=mask, preference=no_preference)
        for mask in masks
        for gib, vcpus in SIZES_GIB
    )
    slot_host, slot_kind = [], []
    for host in np.flatnonzero(~has_vms).tolist():
        for kind in rng.integers(len(kinds), size=2 * SLOTS_PER_HOST).tolist():
            size = np.array(SIZES_GIB[kind % len(SIZES_GIB)])
            if (free[host] >= size).all():
                free[host] -= size
                slot_host.append(host)
                slot_kind.append(kind)
    return CompactionState(
        free_memory_bytes=free[:, 0] * GIB,
        free_vcpus=free[:, 1].copy(),
        total_memory_bytes=total[:, 0] * GIB,
        total_vcpus=total[:, 1].copy(),
        is_closed=np.zeros(hosts, dtype=np.bool_),
        is_source=~has_vms,
        slot_host=np.array(slot_host, dtype=np.int64),
        slot_kind=np.array(slot_kind, dtype=np.int64),
        kinds=kinds,
    )
