"""Why VMs have fewer failover reservations than they need, kept until they have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

import numpy as np

from failover.choices import EventReason, Uncovered
from failover.domain.covering import missing_counts
from failover.domain.plan import ZonePlan
from failover.domain.zone_columns import ZoneSnapshot
from failover.models import FailoverDecision, FailoverRun
from failover.services.events import EventWriter, Happening, record_events


def keep_decisions(
    snapshot: ZoneSnapshot,
    plan: ZonePlan,
    *,
    known: Iterable[str],
    run: FailoverRun | None,
    request_id: str,
    now: datetime,
    spoiled: Collection[int] = (),
    events: EventWriter = record_events,
) -> None:
    """Make decisions agree with what a plan could not do.

    A VM that had all its reservations before and lacks some now has lost coverage; one whose
    decision goes because it has all of them again, has it restored.

    Args:
        snapshot: What was planned on.
        plan: The plan.
        known: VMs of it that there are decisions about.
        run: Row of the run; None where a single VM was planned.
        spoiled: VMs that others got in the way of.
    """
    wanted = {one.vm: (one.current, one.reason, dict(one.facts)) for one in plan.cover.shortfalls}
    for vm in spoiled:
        wanted.setdefault(vm, (0, Uncovered.SPOILED.value, {}))
    uuids = snapshot.vms.uuids
    before = set(known)
    rows = [
        FailoverDecision(
            vm_uuid=uuids[vm],
            zone=snapshot.zone,
            run=run,
            required_count=int(snapshot.vms.required[vm]),
            current_count=current,
            reason=reason,
            facts=facts,
            since=now,
            tried_at=now,
        )
        for vm, (current, reason, facts) in sorted(wanted.items())
    ]
    FailoverDecision.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["vm_uuid"],
        update_fields=[
            *(() if run is None else ("run",)),
            "zone",
            "required_count",
            "current_count",
            "reason",
            "facts",
            "tried_at",
        ],
        batch_size=2000,
    )
    short = {uuids[vm] for vm in wanted}
    over = before - short
    FailoverDecision.objects.filter(vm_uuid__in=over).delete()
    told = _happenings(snapshot, plan, lost=short - before, restored=over)
    events(told, request_id=request_id, now=now)


def _happenings(
    snapshot: ZoneSnapshot,
    plan: ZonePlan,
    *,
    lost: Collection[str],
    restored: Collection[str],
) -> list[Happening]:
    members = snapshot.members
    left = np.ones(len(members), dtype=np.bool_)
    had = missing_counts(snapshot, left) == 0
    removed = {int(members.vm[one.member]) for one in plan.cleaning.removals}
    events = [
        Happening(
            reason=EventReason.COVERAGE_LOST,
            zone=snapshot.zone,
            vm_uuid=uuid,
            message="the VM has fewer failover reservations than it needs",
        )
        for uuid in sorted(lost)
        if had[snapshot.vm_row[uuid]] and snapshot.vm_row[uuid] in removed
    ]
    events += [
        Happening(
            reason=EventReason.COVERAGE_RESTORED,
            zone=snapshot.zone,
            vm_uuid=uuid,
            message="the VM has all its failover reservations",
        )
        for uuid in sorted(restored)
        if uuid in snapshot.vm_row and snapshot.vms.required[snapshot.vm_row[uuid]] > 0
    ]
    return events
