"""``bench failover``: covering zones, eligibility, drills, and what coverage takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import psutil
from django.db import connection
from django.utils import timezone
from rich.console import Console

from benchmarks.exact_bound import BoundVM, exact_bound, has_solver
from benchmarks.failover_rebalancing import rebalancing_rows
from benchmarks.failover_region import add_vms, fill_failover_region, move_some_vms, move_vms
from benchmarks.failover_zones import RoomyChooser, model_zone
from benchmarks.measures import Measure, fitted_exponent, measure, percentile
from capacity.host_table import current_host_table
from failover.choices import RunOutcome
from failover.conf import current_config
from failover.domain.bounds import CoverageCost
from failover.domain.cleaning import plan_cleaning
from failover.domain.covering import plan_cover
from failover.domain.drill_columns import coverage_costs
from failover.domain.drill_report import drill_hosts, drill_pairs
from failover.domain.engine import EligibilityEngine
from failover.domain.plan import CleaningPlan, PlanOptions, ReuseOrder
from failover.domain.shadow import zone_after
from failover.domain.zone_columns import ZoneSnapshot
from failover.selectors.coverage import coverage_by_flavor, coverage_by_zone
from failover.selectors.zone import failover_requirements, failover_zones
from failover.services.drills import drill_zones
from failover.services.loop import reconcile_zone
from failover.services.replanning import ReplanOutcome, replan_vm
from journal.collector import paused_collector
from tests.process_tables import reset_host_table

REQUIRED = 2
MOVED_SHARE = 0.002
COLD_TARGET_SECONDS = 60.0
STEADY_TARGET_SECONDS = 5.0
QUERY_TARGET_MS = 0.2
REPLAN_TARGET_MS = 20.0
REPLANS, VMS_PER_REPLAN = 200, 80
UNLIMITED = 1 << 30
QUERIES = 2000
EXACT_CASES = ((6, 12, 1), (7, 8, 2))
EXACT_SECONDS = 10.0
COST_VMS_PER_HOST = 20

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region of equal zones.

    Attributes:
        hosts: Hosts of all zones.
        vms: VMs of all zones.
        zones: Number of zones.
    """

    hosts: int
    vms: int
    zones: int

    @property
    def label(self) -> str:
        """The size for people."""
        return f"{self.hosts} hosts, {self.vms} VMs, {self.zones} zones"


QUICK = tuple(Region(hosts=hosts, vms=hosts * 20, zones=1) for hosts in (200, 400, 800))
FULL = (
    Region(hosts=1800, vms=48_000, zones=4),
    Region(hosts=5000, vms=100_000, zones=4),
    Region(hosts=10_000, vms=200_000, zones=4),
)
COST_HOSTS_QUICK = (40, 100)
COST_HOSTS_FULL = (40, 100, 300, 1000)


def run(*, is_quick: bool) -> list[Measure]:
    """Measure three sizes, and the cost of coverage on further ones."""
    rows: list[Measure] = []
    costs: dict[str, list[float]] = {}
    regions = QUICK if is_quick else FULL
    for region in regions:
        Console().print(region.label)
        for name, seconds, row in _region(region, is_last=region is regions[-1]):
            rows.append(row)
            costs.setdefault(name, []).append(seconds)
    vms = [region.vms for region in regions]
    rows.extend(
        measure(f"{name}: exponent over VMs", "all sizes", fitted_exponent(vms, seconds), "")
        for name, seconds in costs.items()
    )
    rows.extend(_shares(COST_HOSTS_QUICK if is_quick else COST_HOSTS_FULL))
    rows.extend(_exact())
    for region in regions[:1] if is_quick else (regions[0], regions[-1]):
        rows.extend(_database(region))
    if not is_quick:
        rows.extend(rebalancing_rows())
    return rows


def _database(region: Region) -> list[Measure]:
    """Run the whole loop over rows: read, plan with the scheduler, write, check the rules."""
    Console().print(f"{region.label}, in the database")
    reset_host_table()
    fill_failover_region(region.hosts, region.vms, zones=region.zones, required=REQUIRED)
    found = _pass("cold coverage", region, COLD_TARGET_SECONDS)
    # The first run after the cold one follows what that wrote, as every process does once.
    gc.collect()
    started = time.process_time()
    current_host_table()
    follows = time.process_time() - started
    found.append(measure("host table follows the cold coverage: CPU", region.label, follows, "s"))
    move_some_vms()
    found += _pass("steady pass", region, STEADY_TARGET_SECONDS)
    found += _pass("idle pass", region, None)
    found += _replans(region)
    uncovered = sum(zone.uncovered_vms for zone in coverage_by_zone(coverage_by_flavor()))
    if uncovered:
        raise RuntimeError(f"{uncovered} VMs are uncovered")
    started = time.perf_counter()
    drilled = drill_zones(request_id="bench", now=timezone.now())
    seconds = time.perf_counter() - started
    if any(drilled.unprotected[zone, "host"] for zone in failover_zones()):
        raise RuntimeError("a fully covered region must survive the loss of any host")
    found.append(measure("nightly report: hosts, racks, pairs", region.label, seconds, "s"))
    return found


def _pass(name: str, region: Region, target: float | None) -> list[Measure]:
    """Run the loop once in every zone, one after the other."""
    name = f"{name}, whole loop with the database"
    gc.collect()
    wall, cpu, server = time.perf_counter(), time.process_time(), _server_seconds()
    runs = [reconcile_zone(zone, request_id="bench") for zone in failover_zones()]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    server = _server_seconds() - server
    missing = sum(run.figures.failed for run in runs)
    if missing or any(run.outcome != RunOutcome.DONE for run in runs):
        raise RuntimeError(f"{name}: {missing} reservations failed")
    return [
        measure(name, region.label, wall, "s", at_most=target),
        measure(f"{name}: CPU of the process", region.label, cpu, "s"),
        measure(f"{name}: CPU of PostgreSQL", region.label, server, "s"),
    ]


def _server_seconds() -> float:
    """Return the CPU that the server process of this session has used; 0 if it is not here."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone() or (0,)
    try:
        spent = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(spent.user + spent.system)


def _replans(region: Region) -> list[Measure]:
    """Plan single VMs in a covered region: new ones, then VMs that move, with all writing.

    As the task does it: the policies are read once, everything else for each VM.
    """
    found = []
    config = current_config(failover_requirements())
    for name, change in (("new VM", add_vms), ("moved VM", move_vms)):
        uuids = change(min(REPLANS, region.vms // VMS_PER_REPLAN))
        samples, created = [], 0
        cpu = time.process_time() + _server_seconds()
        for uuid in uuids:
            started = time.perf_counter()
            done = replan_vm(uuid, request_id="bench", config=config)
            samples.append((time.perf_counter() - started) * 1000)
            created += done.created
            if done.outcome != ReplanOutcome.COVERED or done.joined != REQUIRED:
                raise RuntimeError(f"{name}: {done}")
        cpu = (time.process_time() + _server_seconds() - cpu) * 1000 / len(uuids)
        words = f"re-plan of one VM with the database, {name}"
        middle, slow = percentile(samples, 0.5), percentile(samples, 0.99)
        found += [
            measure(f"{words}, p50", region.label, middle, "ms", at_most=REPLAN_TARGET_MS),
            measure(f"{words}, p99", region.label, slow, "ms"),
            measure(f"{words}: CPU with the server's", region.label, cpu, "ms"),
            measure(f"{words}: new reservations", region.label, created / len(uuids), "per VM"),
        ]
    return found


def _region(region: Region, *, is_last: bool) -> list[tuple[str, float, Measure]]:
    """Measure a region zone by zone, on one core; sums over its zones."""
    sums: dict[str, float] = {}
    queries: list[float] = []
    for number in range(region.zones):
        zone = model_zone(
            region.hosts // region.zones,
            region.vms // region.zones,
            required=REQUIRED,
            seed=number + 1,
            name=f"az-{number + 1}",
        )
        queries += _zone(zone, sums)
    targets = {"cold coverage": COLD_TARGET_SECONDS, "steady pass": STEADY_TARGET_SECONDS}
    found = [
        (
            name,
            seconds,
            measure(
                name, region.label, seconds, "s", at_most=targets.get(name) if is_last else None
            ),
        )
        for name, seconds in sums.items()
    ]
    mean = sum(queries) / len(queries)
    target = QUERY_TARGET_MS if is_last else None
    query = "eligibility query"
    found.append((query, mean, measure(query, region.label, mean, "ms", at_most=target)))
    slow = percentile(queries, 0.99)
    found.append(("eligibility query p99", slow, measure(f"{query} p99", region.label, slow, "ms")))
    return found


def _zone(zone: ZoneSnapshot, sums: dict[str, float]) -> list[float]:
    def timed(name: str, work: Callable[[], _Result]) -> _Result:
        gc.collect()
        with paused_collector():  # as the product does
            started = time.process_time()
            result = work()
        sums[name] = sums.get(name, 0.0) + time.process_time() - started
        return result

    options = PlanOptions()
    cover = timed(
        "cold coverage", lambda: plan_cover(zone, CleaningPlan(), RoomyChooser(zone), options)
    )
    covered = zone_after(zone, cover)
    moved = _with_moves(covered)

    def steady() -> None:
        cleaning = plan_cleaning(moved, replace(options, brake_floor=UNLIMITED))
        plan_cover(moved, cleaning, RoomyChooser(moved), options)

    timed("steady pass", steady)
    report = timed("drill of all single hosts", lambda: drill_hosts(covered))
    pairs = timed("drill of all interacting pairs", lambda: drill_pairs(covered))
    if report.unprotected_vms or pairs.unprotected_vms:
        raise RuntimeError("a fully covered zone must survive every drill")
    return _query_milliseconds(covered)


def _with_moves(covered: ZoneSnapshot) -> ZoneSnapshot:
    """Return the zone after some VMs moved to another host."""
    draw = np.random.default_rng(7)
    count = max(1, int(len(covered.vms) * MOVED_SHARE))
    chosen = draw.choice(len(covered.vms), size=count, replace=False)
    host = covered.vms.host.copy()
    host[chosen] = (host[chosen] + 1) % len(covered.hosts)
    return replace(covered, vms=replace(covered.vms, host=host))


def _query_milliseconds(covered: ZoneSnapshot) -> list[float]:
    engine = EligibilityEngine.from_columns(
        len(covered.hosts),
        covered.vms.host.tolist(),
        covered.slots.host.astype(np.int64),
        covered.members.slot.astype(np.int64),
        covered.members.vm.astype(np.int64),
    )
    draw = np.random.default_rng(3)
    samples = []
    for vm in draw.integers(0, len(covered.vms), size=QUERIES).tolist():
        started = time.thread_time()
        engine.eligible_slots(vm)
        samples.append((time.thread_time() - started) * 1000)
    return samples


def _shares(sizes: tuple[int, ...]) -> list[Measure]:
    """Compare what the choice rules reserve with the bound, as shares of VM memory."""
    rows: list[Measure] = []
    for hosts in sizes:
        zone = model_zone(hosts, hosts * COST_VMS_PER_HOST, required=REQUIRED)
        size = f"{hosts} hosts, n = {REQUIRED}"
        shares: dict[str, float] = {}
        bound = 0.0
        for order, most, words in (
            (ReuseOrder.MOST_USERS, UNLIMITED, "most users first, no limit"),
            (ReuseOrder.MOST_USERS, PlanOptions().max_users, "most users first"),
            (ReuseOrder.FEWEST_USERS, PlanOptions().max_users, "fewest users, tight size"),
        ):
            options = PlanOptions(reuse_order=order, max_users=most)
            cover = plan_cover(zone, CleaningPlan(), RoomyChooser(zone), options)
            cost = coverage_costs(zone_after(zone, cover))[0]
            shares[words] = _share(cost, cost.reserved_memory_bytes)
            bound = _share(cost, cost.bounds.best)
        reference = shares["most users first, no limit"]
        rows.extend(
            measure(f"reserved share of VM memory: {words}", size, share, "%", baseline=reference)
            for words, share in shares.items()
        )
        rows.append(measure("reserved share of VM memory: lower bound", size, bound, "%"))
    return rows


def _share(cost: CoverageCost, part: int | None) -> float:
    """Return a part of the VMs' memory in percent."""
    return 100 * (part or 0) / cost.vm_memory_bytes if cost.vm_memory_bytes else 0.0


def _exact() -> list[Measure]:
    """Compare with what the solver proves on small zones."""
    if not has_solver():
        Console().print("highspy is not installed: no exact bound")
        return []
    return [row for case in EXACT_CASES for row in _exact_case(*case)]


def _exact_case(hosts: int, count: int, required: int) -> list[Measure]:
    zone = model_zone(hosts, count, required=required, seed=5)
    cover = plan_cover(zone, CleaningPlan(), RoomyChooser(zone), PlanOptions())
    cost = coverage_costs(zone_after(zone, cover))[0]
    vms = zone.vms
    answer = exact_bound(
        [
            BoundVM(
                uuid=uuid,
                host=zone.hosts.names[vms.host[row]],
                memory_bytes=int(vms.memory_bytes[row]),
                required_count=int(vms.required[row]),
            )
            for row, uuid in enumerate(vms.uuids)
        ],
        dict.fromkeys(zone.hosts.names, None),
        seconds=EXACT_SECONDS,
    )
    size = f"{hosts} hosts, {count} VMs, n = {required}"
    whole = cost.vm_memory_bytes / 100
    figures = (
        ("fewest users, tight size", _share(cost, cost.reserved_memory_bytes)),
        ("best plan of HiGHS", (answer.best_bytes or 0) / whole),
        ("proven by HiGHS", answer.bound_bytes / whole),
        ("lower bound", _share(cost, cost.bounds.best)),
    )
    return [
        measure(f"reserved share, small zone: {words}", size, share, "%")
        for words, share in figures
    ]
