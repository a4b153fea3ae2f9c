"""Advice on a refused change request: why not, and when, where and how much would fit.

Everything here runs after the refusal was rolled back: it holds no lock and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.conf import settings

from capacity.groups.group_settings import settings_for_group
from capacity.groups.reading import load_group_settings
from commitments.domain.admission import (
    AdmissionSnapshot,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.advice import Advice, advise
from commitments.domain.first_fit import Fit
from commitments.domain.slot_room import SlotRoom
from commitments.domain.statuses import ResourceType
from commitments.domain.timeline import counted_cores
from commitments.selectors.timeline import known_timeline
from commitments.services.admission import read_cores, read_snapshot
from hosts.models import Host
from scheduling.resources import MIB

LAST_SECOND = datetime.max.replace(microsecond=0, tzinfo=UTC)


def advise_rejection(
    targets: Sequence[CommitmentTarget],
    *,
    zone: str,
    rooms: Mapping[int, SlotRoom],
    now: datetime,
) -> Advice:
    """Return advice on a batch that was just refused, planned again on what is stored now.

    Args:
        zone: Zone of the request.
        rooms: Stored slots of the batch's commitments.

    Source: spec liquid, 11.5.
    """
    outside = [target.commitment_uuid for target in targets]
    snapshot = advice_snapshot(targets, rooms=rooms, outside=outside, now=now)
    plan = plan_admission(snapshot, targets, may_reject=True, now=now)
    if not plan.rejections:
        return Advice(fit=Fit(at=now, plan=plan))
    return advise(
        snapshot,
        plan,
        timeline=known_timeline(zone, outside=outside, now=now),
        unit_amounts=unit_amounts(targets),
        now=now,
    )


def advice_snapshot(
    targets: Sequence[CommitmentTarget],
    *,
    rooms: Mapping[int, SlotRoom],
    outside: Collection[str],
    now: datetime,
) -> AdmissionSnapshot:
    """Return the present with the cores of the targets' groups in every zone that has hosts.

    Cores that nobody counted yet are counted here alone: advice writes nothing.
    """
    groups = {
        target.desired.flavor_group_name
        for target in targets
        if target.desired is not None and target.desired.resource_type is ResourceType.CORES
    }
    zones = Host.objects.order_by("zone").values_list("zone", flat=True).distinct()
    own = {target.desired.zone for target in targets if target.desired is not None}
    keys = {(group, zone) for group in groups for zone in {*zones, *own}} if groups else set()
    snapshot = read_snapshot(
        rooms=rooms,
        cores=read_cores(keys, outside=outside, now=now),
        max_slots=settings.HEADROOM.liquid.max_slots_per_commitment,
        targets=targets,
    )
    return replace(snapshot, cores=counted_cores(snapshot, only_unknown=True))


def unit_amounts(targets: Sequence[CommitmentTarget]) -> dict[str, int]:
    """Return commitment uuid to its declared unit: bytes for memory, one vCPU for cores."""
    configured = load_group_settings()
    units = {}
    for target in targets:
        if target.desired is None:
            continue
        group = settings_for_group(configured, target.desired.flavor_group_name)
        is_memory = target.desired.resource_type is ResourceType.MEMORY
        units[target.commitment_uuid] = group.ram_unit_mib * MIB if is_memory else 1
    return units


def whole_second_at_or_after(moment: datetime) -> datetime:
    """Return a time in UTC rounded up to whole seconds: a retry must not come too early.

    The last second of all is the last to be told.
    """
    floored = moment.astimezone(UTC).replace(microsecond=0)
    return floored if floored in {moment, LAST_SECOND} else floored + timedelta(seconds=1)
