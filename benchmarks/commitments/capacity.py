"""Capacity of flavor groups: every zone computed anew, then asked for again without changes."""

from __future__ import annotations

from rich.console import Console

from benchmarks.commitments.costs import Cost, cost_of, peak_gib
from benchmarks.commitments.region import fill_commitment_region
from benchmarks.measures import Measure, fitted_exponent, measure
from capacity.figures.group_capacity import refresh_group_capacity
from capacity.models import GroupCapacity
from tests.process_tables import reset_host_table

GROUPS = 50
ZONES = 3
VMS_PER_HOST = 20
HOSTS_PER_PROJECT = 20
TARGET_SECONDS = 10.0
COLD = "capacity of all groups, cold"
WARM = "capacity of all groups, host table known"
FRESH = "capacity of all groups, nothing changed"


def run(*, is_quick: bool) -> list[Measure]:
    """Measure three sizes in the number of hosts."""
    sizes = (300, 1000, 3000) if is_quick else (1000, 3000, 10_000)
    rows: list[Measure] = []
    seconds: dict[str, list[float]] = {}
    for size in sizes:
        Console().print(f"{size} hosts, {GROUPS} groups")
        fill_commitment_region(
            hosts=size,
            vms=size * VMS_PER_HOST,
            projects=size // HOSTS_PER_PROJECT,
            groups=GROUPS,
        )
        label = f"{size} hosts, {GROUPS} groups"
        for name, cost in _measured().items():
            seconds.setdefault(name, []).append(cost.seconds)
            target = TARGET_SECONDS if size == max(sizes) and name == COLD else None
            rows += [
                measure(name, label, cost.seconds, "s", at_most=target),
                measure("CPU of it", label, cost.cpu_seconds, "s"),
                measure("database CPU of it", label, cost.database_cpu_seconds, "s"),
            ]
        rows.append(measure("peak memory so far", label, peak_gib(), "GiB"))
    for name in (COLD, WARM):
        exponent = fitted_exponent(sizes, seconds[name])
        rows.append(measure(f"fitted exponent of {name}", "all sizes", exponent, "", at_most=1.2))
    return rows


def _measured() -> dict[str, Cost]:
    reset_host_table()
    costs = {COLD: _timed(is_forced=True), WARM: _timed(is_forced=True)}
    if GroupCapacity.objects.filter(is_ready=True).count() != GROUPS * ZONES:
        message = "not every group was computed in every zone"
        raise RuntimeError(message)
    costs[FRESH] = _timed(is_forced=False)
    return costs


def _timed(*, is_forced: bool) -> Cost:
    cost, refreshed = cost_of(lambda: refresh_group_capacity(is_forced=is_forced))
    expected = "computed" if is_forced else "fresh"
    if {zone.outcome for zone in refreshed} != {expected}:
        message = f"the zones were not {expected}: {refreshed}"
        raise RuntimeError(message)
    return cost
