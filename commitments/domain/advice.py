"""Why not, and what would fit instead (spec liquid, 11.5; style 10: the most specific reason).

All answers come from the planner that refused: a smaller amount, another zone and a later date are
plans on the same snapshot, on the same snapshot with another zone, and on snapshots to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentDecision,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.first_fit import Fit, first_fit
from commitments.domain.planner import count_new_slots
from commitments.domain.statuses import Cause, ResourceType, Ruling
from commitments.domain.timeline import Timeline
from scheduling.decision import Decision, explain_removals
from scheduling.table import HostTable

MOST_ADVISED = 5
"""Refused commitments of one batch for which a smaller amount is looked for."""
MOST_SLOTS = 1_000
"""A batch of more slots, as cut, gets its causes alone: each further plan would cost as much."""
NO_ROOM = "no host has room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is known about a refused batch.

    Attributes:
        causes: Commitment uuid to the most specific cause with its numbers; uuids without one are
            left out.
        smaller_units: Commitment uuid to the largest amount, in declared units, that fits now if
            the rest of the batch stays as it is; uuids of which nothing fits are left out.
        zones: Other zones in which the whole batch fits now, sorted.
        fit: First known moment at which the batch fits; None when none is known.
    """

    causes: Mapping[str, str] = field(default_factory=dict)
    smaller_units: Mapping[str, int] = field(default_factory=dict)
    zones: tuple[str, ...] = ()
    fit: Fit | None = None


def advise(
    snapshot: AdmissionSnapshot,
    plan: AdmissionPlan,
    *,
    timeline: Timeline,
    unit_amounts: Mapping[str, int],
    now: datetime,
) -> Advice:
    """Return why a batch was refused and what would fit instead.

    Only a lack of capacity is advised on: structural problems have their own words.

    Args:
        snapshot: What the batch was refused on, with cores ledgers of every zone for its groups.
        plan: The refusal.
        timeline: What is known to come.
        unit_amounts: Commitment uuid to its declared unit, in bytes or vCPUs.
    """
    refused = [d for d in plan.rejections if d.cause is Cause.CAPACITY]
    targets = [decision.target for decision in plan.decisions]
    is_structural = len(refused) < len(plan.rejections)
    placements = sum(len(decision.placements) for decision in plan.decisions)
    if not refused or is_structural:
        return Advice(causes=_causes(refused))
    if max(placements, _new_slots(snapshot, targets)) > MOST_SLOTS:
        return Advice(causes=_causes(refused))
    smaller = {}
    for decision in refused[:MOST_ADVISED]:
        uuid = decision.target.commitment_uuid
        units = largest_fitting_units(
            snapshot, targets, decision, unit_amount=unit_amounts[uuid], now=now
        )
        if units:
            smaller[uuid] = units
    return Advice(
        causes=_causes(refused),
        smaller_units=smaller,
        zones=fitting_zones(snapshot, targets, now=now),
        fit=first_fit(snapshot, targets, timeline),
    )


def _new_slots(snapshot: AdmissionSnapshot, targets: Sequence[CommitmentTarget]) -> int:
    return sum(
        count_new_slots(
            snapshot.groups[t.desired.flavor_group_name],
            t.desired.requested_amount - sum(slot.memory_bytes for slot in t.slots),
        )
        for t in targets
        if t.desired is not None
        and t.is_holding
        and t.desired.resource_type is ResourceType.MEMORY
        and t.desired.flavor_group_name in snapshot.groups
    )


def _causes(refused: Sequence[CommitmentDecision]) -> dict[str, str]:
    causes = {}
    for decision in refused:
        text = cause_text(decision)
        if text:
            causes[decision.target.commitment_uuid] = text
    return causes


def cause_text(decision: CommitmentDecision) -> str:
    """Return why the first slot without a host has none, with the hosts lost at each filter.

    Precedence: want of room on hosts that pass everything else, then the filter that took the last
    host. Empty when no slot was asked for a host.
    """
    for placement in decision.placements:
        found = placement.decision
        if found is not None and found.host_id is None:
            return f"{_headline(found)}: {explain_removals(found)}"
    return ""


def _headline(found: Decision) -> str:
    if found.closest is not None:
        return NO_ROOM
    emptying = [r.step for r in found.removals if r.removed and not r.remaining]
    return f"no host passes {emptying[0]}" if emptying else NO_ROOM


def largest_fitting_units(
    snapshot: AdmissionSnapshot,
    targets: Sequence[CommitmentTarget],
    refused: CommitmentDecision,
    *,
    unit_amount: int,
    now: datetime,
) -> int:
    """Return the largest smaller amount of one commitment that fits now, in declared units.

    The rest of the batch stays as it is. Found by bisection: what is returned fits, one unit more
    does not.

    Args:
        snapshot: What the batch was refused on.
        refused: The decision on the commitment in question.
        unit_amount: Its declared unit, in bytes or vCPUs.

    Returns:
        0 when not even one unit fits.
    """
    uuid, desired = refused.target.commitment_uuid, refused.target.desired
    if desired is None:
        return 0

    def fits(units: int) -> bool:
        smaller = replace(desired, requested_amount=units * unit_amount)
        tried = [replace(t, desired=smaller) if t.commitment_uuid == uuid else t for t in targets]
        plan = plan_admission(snapshot, tried, may_reject=True, now=now)
        return all(
            d.outcome is not Ruling.REJECTED
            for d in plan.decisions
            if d.target.commitment_uuid == uuid
        )

    low, high = 0, -(-desired.requested_amount // unit_amount)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def fitting_zones(
    snapshot: AdmissionSnapshot, targets: Sequence[CommitmentTarget], *, now: datetime
) -> tuple[str, ...]:
    """Return the other zones in which the whole batch would be accepted now, sorted.

    Only a batch of new commitments can go elsewhere: what is held stays where it is.
    """
    own = {t.desired.zone for t in targets if t.desired is not None}
    is_movable = all(
        t.desired is not None and not t.slots and not t.previous_project_id for t in targets
    )
    if not is_movable or len(own) != 1:
        return ()
    fitting = []
    for zone in _zones_with_hosts(snapshot.hosts):
        if zone in own:
            continue
        moved = [
            replace(t, desired=replace(t.desired, zone=zone))
            for t in targets
            if t.desired is not None
        ]
        has_ledgers = all(
            (t.desired.flavor_group_name, zone) in snapshot.cores
            for t in moved
            if t.desired is not None and t.desired.resource_type is ResourceType.CORES
        )
        if has_ledgers and not plan_admission(snapshot, moved, may_reject=True, now=now).rejections:
            fitting.append(zone)
    return tuple(fitting)


def _zones_with_hosts(hosts: HostTable) -> list[str]:
    used = set(hosts.zone.tolist())
    return sorted(zone for code, zone in enumerate(hosts.zones) if zone and code in used)


def advice_lines(advice: Advice) -> Mapping[str, str]:
    """Return what to add to the reason of each refused commitment, for a person to read."""
    shared = []
    if advice.zones:
        shared.append(f"fits in {', '.join(advice.zones)}")
    if advice.fit is not None:
        shared.append(f"fits from {time_text(advice.fit.at)}")
    lines = {}
    for uuid in {*advice.causes, *advice.smaller_units}:
        parts = [advice.causes[uuid]] if uuid in advice.causes else []
        if uuid in advice.smaller_units:
            parts.append(f"fits now: {advice.smaller_units[uuid]} units")
        lines[uuid] = "; ".join([*parts, *shared])
    return lines


def time_text(moment: datetime) -> str:
    """Return a time as LIQUID writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
