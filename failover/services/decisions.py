"""Why VMs have fewer failover reservations than they need, kept until they have them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from failover.choices import EventReason, Uncovered
from failover.domain.covering import missing_counts
from failover.domain.plan import ZonePlan
from failover.domain.zone_columns import ZoneSnapshot
from failover.models import FailoverDecision, FailoverRun
from failover.services.events import EventWriter, Happening, record_events


def keep_decisions(
    snapshot: ZoneSnapshot | None,
    plan: ZonePlan,
    run: FailoverRun,
    *,
    spoiled: Collection[int],
    events: EventWriter = record_events,
) -> None:
    """Make the decisions of a zone agree with what a run could not do.

    A VM that had all its reservations before and lacks some now has lost coverage; one whose
    decision goes because it has all of them again, has it restored.

    Args:
        snapshot: The zone as the run saw it.
        plan: What the run planned.
        run: Row of the run.
        spoiled: VMs that others got in the way of.
        events: Writes events.
    """
    if snapshot is None:
        return
    wanted = {one.vm: (one.current, one.reason, dict(one.facts)) for one in plan.cover.shortfalls}
    for vm in spoiled:
        wanted.setdefault(vm, (0, Uncovered.SPOILED.value, {}))
    uuids = snapshot.vms.uuids
    known = {row.vm_uuid: row for row in FailoverDecision.objects.filter(zone=snapshot.zone)}
    rows = [
        FailoverDecision(
            vm_uuid=uuids[vm],
            zone=snapshot.zone,
            run=run,
            required_count=int(snapshot.vms.required[vm]),
            current_count=current,
            reason=reason,
            facts=facts,
            since=run.started_at,
            tried_at=run.started_at,
        )
        for vm, (current, reason, facts) in sorted(wanted.items())
    ]
    FailoverDecision.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["vm_uuid"],
        update_fields=[
            "zone",
            "run",
            "required_count",
            "current_count",
            "reason",
            "facts",
            "tried_at",
        ],
        batch_size=2000,
    )
    short = {uuids[vm] for vm in wanted}
    over = [uuid for uuid in known if uuid not in short]
    FailoverDecision.objects.filter(vm_uuid__in=over).delete()
    told = _happenings(snapshot, plan, lost=short - set(known), restored=over)
    events(told, request_id=run.request_id, now=run.started_at)


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
