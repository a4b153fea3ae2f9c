"""Section ``headroom.failover_policies`` of region files (spec region-file)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest

from failover.domain.patterns import pattern_problem
from failover.models import FailoverPolicy, FailoverZone
from failover.services.orders import run_soon
from hosts.region.node import Json, Node
from hosts.region.registry import DumpOptions, GoneVMs, Phase, RegionSection, Step, registry
from hosts.region.run import ImportRun, Unique
from hosts.region.servers import sums_by_zone

POLICIES: Final = "headroom.failover_policies"
MAX_COUNT: Final = 100


def register() -> None:
    """Register the section and its writer."""
    registry.add(
        RegionSection(path=POLICIES, reader=_read, dumper=_dump),
        Step(Phase.WRITE, 70, "failover policies", _write, after=frozenset({POLICIES})),
        Step(Phase.FINISH, 90, "failover runs", _run_soon),
    )
    registry.expectations["failover"] = _expect_fewer


def _read(run: ImportRun) -> Callable[[Node], None]:
    policies: dict[str, int] = {}
    run.stash[POLICIES] = policies
    unique = Unique("failover policy")

    def read(node: Node) -> None:
        pattern = node.text("flavor")
        problem = pattern_problem(pattern)
        if problem:
            raise node.error("flavor", problem)
        unique.check(node, pattern, "flavor")
        policies[pattern] = node.integer("count", high=MAX_COUNT)

    return read


def _write(run: ImportRun) -> None:
    policies: dict[str, int] = run.stash[POLICIES]
    counts = run.report.of(POLICIES)
    known = {row.flavor_pattern: row for row in FailoverPolicy.objects.select_for_update()}
    for position, (pattern, required) in enumerate(policies.items()):
        row = known.pop(pattern, None)
        if row is None:
            FailoverPolicy.objects.create(
                flavor_pattern=pattern, required_count=required, position=position
            )
            counts.created += 1
        elif (row.required_count, row.position) != (required, position):
            row.required_count, row.position = required, position
            row.save()
            counts.updated += 1
        else:
            counts.unchanged += 1
    if run.prunes(POLICIES) and known:
        FailoverPolicy.objects.filter(flavor_pattern__in=list(known)).delete()
        counts.removed += len(known)


def _expect_fewer(gone: GoneVMs) -> None:
    """Expect fewer VMs where a live cloud said itself that they are gone (spec failover, 17.9)."""
    lost: Counter[int] = Counter()
    for (host_id, _), count in gone.items():
        lost[host_id] += count
    for zone, count in sums_by_zone(lost).items():
        FailoverZone.objects.filter(zone=zone).update(vm_count=Greatest(F("vm_count") - count, 0))


def _run_soon(run: ImportRun) -> None:
    """Let the loop look at what was imported at once, not after its interval."""
    if run.is_still:
        return
    transaction.on_commit(run_soon, robust=True)


def _dump(_: DumpOptions) -> Iterator[Json]:
    for policy in FailoverPolicy.objects.order_by("position", "id"):
        yield {"flavor": policy.flavor_pattern, "count": policy.required_count}
