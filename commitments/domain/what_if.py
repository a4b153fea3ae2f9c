"""What if: a batch decided on an edited region, at any time, with nothing written (style, 5).

What-if is a plan on an edited snapshot: commitments end, hosts come and go, others commit first,
known changes up to the asked time happen, then the batch is planned as any request is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from capacity.ledger.placing import table_with_released
from capacity.ledger.slot_request import SlotAsk
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.advice import Advice, advise
from commitments.domain.statuses import ResourceType, Ruling
from commitments.domain.timeline import (
    HostChange,
    Sweep,
    Timeline,
    later_part,
    with_host_changes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEdit:
    """How the region differs from what is stored.

    Attributes:
        expired: Commitments that are over, as targets without a desired state.
        hosts: Hosts that come and go.
        added: Commitments that others make before the batch.
    """

    expired: tuple[CommitmentTarget, ...] = ()
    hosts: tuple[HostChange, ...] = ()
    added: tuple[CommitmentTarget, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """The outcome of a batch on the edited region.

    Attributes:
        plan: Decisions about the batch.
        added: Decisions about the commitments that others make before; refused ones hold nothing.
        unplaced: Slots and VMs of hosts that go for which no other host has room.
        advice: Why not and what would fit; empty when everything is accepted.
        before: The region that the batch was decided on.
        after: That region with what was accepted of the batch.
    """

    plan: AdmissionPlan
    added: AdmissionPlan
    unplaced: tuple[SlotAsk, ...]
    advice: Advice
    before: AdmissionSnapshot
    after: AdmissionSnapshot


def what_if(
    snapshot: AdmissionSnapshot,
    targets: Sequence[CommitmentTarget],
    *,
    edit: RegionEdit,
    timeline: Timeline,
    unit_amounts: Mapping[str, int],
    at: datetime,
) -> WhatIfAnswer:
    """Decide a batch on an edited region.

    Args:
        snapshot: The present, with a cores ledger for every group and zone asked about in which
            the expired commitments do not count.
        edit: How the region differs.
        timeline: What is known to come after the present.
        unit_amounts: Commitment uuid to its declared unit, in bytes or vCPUs.
        at: When the batch is asked for; known changes up to then have happened.
    """
    released = plan_admission(snapshot, edit.expired, may_reject=True, now=at)
    changed = with_host_changes(_after(snapshot, released), _without_expired(edit))
    from_now = replace(timeline, aftermath=changed.aftermath)
    passed = sum(moment <= at for moment in timeline.moments)
    present = Sweep(changed.snapshot, from_now).state_at(passed - 1)
    added = plan_admission(present.snapshot, edit.added, may_reject=True, now=at)
    asked = _after(present.snapshot, added)
    plan = plan_admission(asked, targets, may_reject=True, now=at)
    advice = Advice()
    if plan.rejections:
        later = replace(later_part(timeline, at), aftermath=present.aftermath)
        advice = advise(asked, plan, timeline=later, unit_amounts=unit_amounts, now=at)
    unplaced = tuple(displaced.ask for displaced in changed.aftermath.waiting)
    return WhatIfAnswer(
        plan=plan,
        added=added,
        unplaced=unplaced,
        advice=advice,
        before=asked,
        after=_after(asked, plan),
    )


def _without_expired(edit: RegionEdit) -> tuple[HostChange, ...]:
    """Return the changes of hosts; what a commitment that is over held needs no other host."""
    over = {slot.slot_id for target in edit.expired for slot in target.slots}
    return tuple(
        replace(
            change,
            displaced=tuple(one for one in change.displaced if one.ask.slot_id not in over),
        )
        for change in edit.hosts
    )


def _after(snapshot: AdmissionSnapshot, plan: AdmissionPlan) -> AdmissionSnapshot:
    """Return the snapshot after a plan was applied; cores that it released are not given back."""
    cores = dict(snapshot.cores)
    for decision in plan.decisions:
        desired = decision.target.desired
        if desired is None or decision.outcome is not Ruling.ACCEPTED:
            continue
        key = (desired.flavor_group_name, desired.zone)
        if desired.resource_type is ResourceType.CORES and key in cores:
            cores[key] = cores[key].with_held(desired.project_id, desired.requested_amount)
    hosts = table_with_released(snapshot.hosts, plan.block_deltas, plan.need_deltas)
    return replace(snapshot, hosts=hosts, cores=cores)
