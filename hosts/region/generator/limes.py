"""Commitments in all six states and quotas of a generated region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from hosts.region.generator.catalog import GROUPS, GroupPlan
from hosts.region.generator.plan import RegionPlan

DAY_SECONDS: Final = 86_400
YEAR_SECONDS: Final = 365 * DAY_SECONDS
# Nothing that is live ends before this (2028-02-01), so that a region stays usable for years.
EARLIEST_END: Final = 1_833_062_400
COMMITTED_SHARE_PERCENT: Final = 10
CORES_EVERY: Final = 9
STATE_CYCLE: Final = (
    *("confirmed",) * 12,
    *("pending",) * 2,
    *("guaranteed",) * 2,
    *("planned",) * 2,
    "superseded",
    "expired",
)
MOST_UNFIT: Final = 6
# States that hold nothing unless all fits: a guaranteed one would fill its zone, and leave no room
# for the other commitments and for failover.
UNFIT_STATES: Final = ("pending", "planned")
CORES_PER_COMMITMENT: Final = 16

Item = dict[str, Any]  # JSON of a commitment or quota


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Free memory of one flavor group in one zone, and what commitments may take of it."""

    zone: str
    group: GroupPlan
    free_gib: int

    @property
    def budget_gib(self) -> int:
        """Memory for all commitments together, half for each of two groups that share hosts."""
        sharing = sum(group.shape == self.group.shape for group in GROUPS)
        return self.free_gib * COMMITTED_SHARE_PERCENT // 100 // sharing


def pools(plan: RegionPlan) -> list[Pool]:
    """Return the pools that commitments can be made from, after all VMs are placed."""
    free: dict[tuple[str, str], int] = {}
    for host in plan.hosts:
        if host.takes_vms:
            key = (host.zone, host.hardware.shape)
            free[key] = free.get(key, 0) + host.free_gib
    return [
        Pool(zone=zone, group=group, free_gib=free[zone, group.shape])
        for zone in plan.zones
        for group in GROUPS
        if group.handles_commitments and free.get((zone, group.shape), 0) > 0
    ]


def commitments(plan: RegionPlan) -> Iterator[Item]:
    """Yield commitments: most fit, a few ask for more than their zone has."""
    available = pools(plan)
    count = plan.options.commitments
    if not available or count == 0:
        return
    slots = [max(1, pool.budget_gib // _step_gib(pool.group)) for pool in available]
    unfit_every = max(2, count // min(MOST_UNFIT, max(2, count // 40)))
    for index in range(count):
        rng = plan.rng
        picked = rng.choices(range(len(available)), weights=slots)[0]
        pool = available[picked]
        expected = max(1, count * slots[picked] // sum(slots))
        status = STATE_CYCLE[index % len(STATE_CYCLE)]
        is_unfit = index % unfit_every == unfit_every - 1
        if is_unfit:
            status = UNFIT_STATES[index // unfit_every % 2]
        project = plan.projects[min(rng.randrange(len(plan.projects)) for _ in range(2))]
        item: Item = {
            "id": index + 1,
            "uuid": plan.new_uuid(),
            "service_type": "compute",
            "availability_zone": pool.zone,
            "transferable": False,
            "notify_on_confirm": False,
            "project_id": project.id,
            "domain_id": project.domain_id,
        }
        if pool.group.handles_cores and index % CORES_EVERY == 0 and not is_unfit:
            item |= _cores(plan, pool)
        else:
            item |= _memory(plan, pool, expected, is_unfit=is_unfit)
        yield item | _terms(plan, status)


def _step_gib(group: GroupPlan) -> int:
    """Return the least amount that makes a slot, in GiB and a multiple of the unit."""
    return max(group.ram_unit_gib, group.smallest_gib)


def _cores(plan: RegionPlan, pool: Pool) -> Item:
    return {
        "resource_name": f"hw_version_{pool.group.name}_cores",
        "amount": plan.rng.randint(1, 4) * CORES_PER_COMMITMENT,
        "unit": "",
    }


def _memory(plan: RegionPlan, pool: Pool, expected: int, *, is_unfit: bool) -> Item:
    step_gib = _step_gib(pool.group)
    share_gib = pool.budget_gib * plan.rng.randint(50, 150) // 100 // expected
    amount_gib = max(1, share_gib // step_gib) * step_gib
    if is_unfit:
        amount_gib = (pool.free_gib * 5 // 4 // step_gib + 1) * step_gib
    unit_gib = pool.group.ram_unit_gib
    return {
        "resource_name": f"hw_version_{pool.group.name}_ram",
        "amount": amount_gib // unit_gib,
        "unit": "GiB" if unit_gib == 1 else f"{unit_gib} GiB",
    }


def _terms(plan: RegionPlan, status: str) -> Item:
    rng, now = plan.rng, plan.options.taken_at
    created = now - rng.randrange(30 * DAY_SECONDS, 700 * DAY_SECONDS)
    years = rng.randint(1, 3)
    if status == "expired":
        created = now - YEAR_SECONDS - rng.randrange(10 * DAY_SECONDS, 200 * DAY_SECONDS)
        return _dated(status, created, 1, confirmed_at=created + 60)
    if status in {"planned", "guaranteed"}:
        confirm_by = now + rng.randrange(400 * DAY_SECONDS, 700 * DAY_SECONDS)
        return _dated(status, created, years, confirm_by=confirm_by)
    while created + years * YEAR_SECONDS < EARLIEST_END:
        years += 1
    confirmed_at = None if status == "pending" else created + 60
    return _dated(status, created, years, confirmed_at=confirmed_at)


def _dated(
    status: str,
    created: int,
    years: int,
    *,
    confirmed_at: int | None = None,
    confirm_by: int | None = None,
) -> Item:
    terms: Item = {
        "status": status,
        "created_at": created,
        "duration": "1 year" if years == 1 else f"{years} years",
        "expires_at": (confirm_by or created) + years * YEAR_SECONDS,
    }
    if confirmed_at is not None:
        terms["confirmed_at"] = confirmed_at
    if confirm_by is not None:
        terms["confirm_by"] = confirm_by
    return terms


def quotas(plan: RegionPlan) -> Iterator[Item]:
    """Yield quotas of every project that uses something, half as much again as it uses."""
    groups = {group.name: group for group in GROUPS}
    for project_id, zone, group_name in sorted(plan.used):
        memory_gib, vcpus, vms = plan.used[project_id, zone, group_name]
        units = -(-memory_gib * 3 // 2 // groups[group_name].ram_unit_gib)
        amounts = (("ram", units), ("cores", vcpus * 3 // 2), ("instances", vms * 3 // 2 + 1))
        for suffix, quota in amounts:
            yield {
                "project_id": project_id,
                "availability_zone": zone,
                "resource_name": f"hw_version_{group_name}_{suffix}",
                "quota": quota,
            }
