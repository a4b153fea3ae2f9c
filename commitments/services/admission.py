"""Reading what an admission is decided on (spec liquid, 11.6).

Everything here runs inside the transaction of its caller, which holds the zone locks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q, Sum

from capacity.figures.probe_pipelines import current_probes
from capacity.figures.zone_sums import running_vcpus_by_project
from capacity.groups.reading import load_group_definitions
from capacity.host_table import current_host_table
from capacity.ledger.vms import NO_VMS, SlotVMSums, slot_vm_sums
from capacity.models import FlavorGroup, GroupCapacity, Reservation
from capacity.nova.slot_requests import domain_hints, slot_pipelines
from commitments.domain.accounting import retry_delay_seconds
from commitments.domain.admission import (
    AdmissionPlan,
    AdmissionSnapshot,
    CommitmentDecision,
    CommitmentTarget,
    plan_admission,
)
from commitments.domain.cores_account import CoresLedger
from commitments.domain.planner import SlotView
from commitments.domain.renewal import are_up_to_date
from commitments.domain.slot_room import SlotRoom
from commitments.domain.statuses import UNFINISHED_STATUSES, CommitmentStatus, ResourceType, Ruling
from commitments.metrics.slots import SLOT_RENEWALS
from commitments.models import Commitment
from commitments.selectors.payg import payg_candidates
from scheduling.needs import Needs
from scheduling.resources import ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlots:
    """Slots of some commitments as the planner sees them.

    Attributes:
        by_commitment: Commitment primary key to its slots in slot order.
        rooms: Slot primary key to what it takes.
    """

    by_commitment: Mapping[int, tuple[SlotView, ...]]
    rooms: Mapping[int, SlotRoom]


def read_slots(commitments: Collection[Commitment]) -> StoredSlots:
    """Read the slots of commitments with their VMs, in two queries."""
    if not commitments:
        return StoredSlots(by_commitment={}, rooms={})
    uuid_of = {row.pk: row.commitment_uuid for row in commitments}
    slots = list(
        Reservation.objects.filter(commitment_id__in=uuid_of)
        .select_related("target_host")
        .order_by("commitment_id", "slot_index")
    )
    vms = slot_vm_sums([slot.pk for slot in slots])
    by_commitment: defaultdict[int, list[SlotView]] = defaultdict(list)
    rooms: dict[int, SlotRoom] = {}
    for slot in slots:
        assert slot.commitment_id is not None and slot.slot_index is not None  # noqa: S101, PT018 - constraint
        inside = vms.get(slot.pk, NO_VMS)
        by_commitment[slot.commitment_id].append(
            _slot_view(
                slot,
                uuid_of[slot.commitment_id],
                inside,
                is_resting=slot.pk not in vms and slot.target_host_id == slot.confirmed_host_id,
            )
        )
        rooms[slot.pk] = slot_room(slot, inside)
    return StoredSlots(
        by_commitment={key: tuple(views) for key, views in by_commitment.items()}, rooms=rooms
    )


def slot_room(slot: Reservation, inside: SlotVMSums) -> SlotRoom:
    """Return what a stored slot takes now, with the VMs in it."""
    return SlotRoom(
        host_ids=tuple(
            sorted({h for h in (slot.target_host_id, slot.confirmed_host_id) if h is not None})
        ),
        blocked=slot.blocked,
        confirmed=inside.confirmed,
        expected=inside.expected_unheld,
        listed=inside.confirmed + inside.expected,
        needs=Needs(slot.held_network_bps, slot.held_disk_io_bps, slot.held_gpus),
    )


def _slot_view(
    slot: Reservation, commitment_uuid: str, inside: SlotVMSums, *, is_resting: bool
) -> SlotView:
    held_by_vms = inside.confirmed + inside.expected
    return SlotView(
        slot_id=slot.pk,
        slot_index=slot.slot_index or 0,
        project_id=slot.project_id,
        domain_id=slot.domain_id,
        flavor_group_name=slot.flavor_group_name,
        zone=slot.zone,
        memory_bytes=slot.memory_bytes,
        vcpus=slot.vcpus,
        resource_name=slot.resource_name,
        target_host=slot.target_host.name if slot.target_host is not None else None,
        has_allocations=held_by_vms != ResourceVector(),
        allocated_memory_bytes=held_by_vms.memory_bytes,
        start_time=slot.start_time,
        end_time=slot.end_time,
        parent_generation=slot.parent_generation,
        commitment_uuid=commitment_uuid,
        is_resting=is_resting,
        is_divided=slot.is_divided,
    )


def read_cores(
    keys: Iterable[tuple[str, str]], *, outside: Collection[str], now: datetime
) -> dict[tuple[str, str], CoresLedger]:
    """Read the cores ledger of flavor groups and zones (spec commitments, 8.5; liquid, 20 (21)).

    Args:
        keys: (group, zone) pairs.
        outside: Uuids of the commitments in the plan, which do not count.
        now: What commitments hold that ended before it counts only as far as others of the same
            project take over, which the next repair sees to.
    """
    wanted = sorted(set(keys))
    if not wanted:
        return {}
    groups, zones = {group for group, _ in wanted}, {zone for _, zone in wanted}
    totals = {
        (group, zone): vcpus
        for group, zone, vcpus in GroupCapacity.objects.filter(
            group_name__in=groups, zone__in=zones
        ).values_list("group_name", "zone", "total_vcpus")
    }
    held = _held_cores(groups, zones, outside=outside, now=now)
    running = (
        running_vcpus_by_project(wanted)
        if settings.HEADROOM.liquid.subtract_uncommitted_cores
        else {}
    )
    return {
        key: CoresLedger(
            total_vcpus=totals.get(key),
            held_vcpus=sum(held[key].values()),
            held_by_project=held[key],
            running_by_project=running.get(key, {}),
        )
        for key in wanted
    }


def _held_cores(
    groups: Collection[str], zones: Collection[str], *, outside: Collection[str], now: datetime
) -> dict[tuple[str, str], dict[str, int]]:
    """Return (group, zone) to the cores that each project holds, or is about to inherit."""
    lasts = Q(end_time__isnull=True) | Q(end_time__gt=now)
    unfinished = Q(state__in=[state.value for state in UNFINISHED_STATUSES])
    holds = Q(accepted_amount__isnull=False)
    begins = Q(state=CommitmentStatus.PENDING) | Q(
        state=CommitmentStatus.PLANNED, confirm_by__lte=now
    )
    held: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for group, zone, project_id, held_vcpus, left_vcpus, awaited_vcpus in (
        Commitment.objects.filter(
            holds | (begins & lasts),
            flavor_group_name__in=groups,
            zone__in=zones,
            resource_type=ResourceType.CORES,
        )
        .exclude(commitment_uuid__in=outside)
        .order_by("flavor_group_name", "zone", "project_id")
        .values_list("flavor_group_name", "zone", "project_id")
        .annotate(
            held=Sum("accepted_amount", filter=unfinished & lasts, default=0),
            left=Sum("accepted_amount", filter=~(unfinished & lasts), default=0),
            awaited=Sum("requested_amount", filter=begins & lasts & ~holds, default=0),
        )
    ):
        held[group, zone][project_id] = int(held_vcpus) + int(min(left_vcpus, awaited_vcpus))
    return held


def read_snapshot(
    *,
    rooms: Mapping[int, SlotRoom],
    cores: Mapping[tuple[str, str], CoresLedger],
    max_slots: int = 0,
    targets: Sequence[CommitmentTarget] = (),
) -> AdmissionSnapshot:
    """Put together what an admission is decided on; the host table is of this moment.

    Commitments of vanished groups go on being served, by the last definition of those.

    Args:
        rooms: Stored slots in question.
        cores: Cores ledgers in question.
        max_slots: Most new slots of one commitment; 0 is no limit.
        targets: Commitments to plan, for the running VMs that they may cover.

    Raises:
        NotReady: flavor groups were not extracted yet.
    """
    groups = load_group_definitions(include_retired=True)
    return AdmissionSnapshot(
        hosts=current_host_table(),
        groups=groups,
        rooms=rooms,
        cores=cores,
        max_slots=max_slots,
        payg=payg_candidates(targets, groups),
        domains=domain_hints(t.desired.domain_id for t in targets if t.desired is not None),
        pipelines=slot_pipelines(groups),
        probes=current_probes(),
    )


log = structlog.get_logger(__name__)


def plan_renewing(
    snapshot: AdmissionSnapshot, target: CommitmentTarget, *, now: datetime
) -> AdmissionPlan:
    """Plan one commitment with outdated slots replaced; its ordinary plan if they cannot all be.

    Args:
        snapshot: What is decided on.
        target: A commitment that holds outdated slots.
    """
    renewing = replace(snapshot, renews_slots=True, payg={})
    plan = plan_admission(renewing, [target], may_reject=False, now=now)
    decision = plan.decisions[0]
    is_renewed = decision.slot_plan is not None and bool(decision.slot_plan.renew_ids)
    if is_renewed and decision.outcome is Ruling.ACCEPTED and _is_worth_it(snapshot, decision):
        _count("renewed")
        return plan
    if is_renewed:
        log.info("slots_not_renewed", commitment=target.commitment_uuid, message=decision.message)
    _count("waiting")
    plan = plan_admission(snapshot, [target], may_reject=False, now=now)
    waiting = replace(plan.decisions[0], retry_at=_next_try(target, now))
    return replace(plan, decisions=(waiting,))


def _is_worth_it(snapshot: AdmissionSnapshot, decision: CommitmentDecision) -> bool:
    """Return whether the new slots need no renewal themselves."""
    desired, plan = decision.target.desired, decision.slot_plan
    if desired is None or plan is None:
        return False
    return are_up_to_date(plan.creates, snapshot.groups[desired.flavor_group_name])


def _next_try(target: CommitmentTarget, now: datetime) -> datetime:
    """Return when to try again: the usual delay, counted from the change of the flavors."""
    name = target.desired.flavor_group_name if target.desired is not None else ""
    resized_at = FlavorGroup.objects.filter(name=name).values_list("resized_at", flat=True).first()
    elapsed = now - resized_at if resized_at is not None else timedelta(0)
    delay_seconds = retry_delay_seconds(
        elapsed_seconds=max(0, int(elapsed.total_seconds())),
        base_seconds=settings.HEADROOM.retry.base_seconds,
        cap_seconds=settings.HEADROOM.retry.cap_seconds,
    )
    return now + timedelta(seconds=delay_seconds)


def _count(result: str) -> None:
    transaction.on_commit(lambda: SLOT_RENEWALS.labels(result=result).inc(), robust=True)
