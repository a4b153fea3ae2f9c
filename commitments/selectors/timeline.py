"""Reading what is known about future room: ends of commitments, planned host changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from django.db.models import F, Q, QuerySet, Sum

from capacity.models import Reservation, ReservationKind
from capacity.nova.slot_requests import SlotBook, held_slot
from capacity.nova.vm_requests import VMBook
from commitments.domain.statuses import LIVE_STATUSES, CommitmentStatus, ResourceType
from commitments.domain.timeline import (
    CoresRelease,
    Displaced,
    HostChange,
    HostEdit,
    Releases,
    Timeline,
)
from commitments.models import Commitment
from hosts.models import Instance, PlannedHostChange, PlannedHostEdit
from scheduling.intents import Intent


@dataclass(frozen=True, slots=True)
class _Release:
    at: datetime
    host_id: int
    memory_bytes: int
    vcpus: int


def known_timeline(zone: str, *, outside: Collection[str], now: datetime) -> Timeline:
    """Return every known change of room in a zone after ``now``.

    Four statements, whatever the size of the zone; the rows read are (end, host) pairs.

    Args:
        outside: Uuids of commitments whose end does not count: those that are being decided.
    """
    slots = _ending_slots(zone, now).exclude(commitment__commitment_uuid__in=outside)
    moving = slots.filter(confirmed_host__isnull=False).exclude(confirmed_host=F("target_host"))
    releases = sorted(
        [*_releases(slots, "target_host_id"), *_releases(moving, "confirmed_host_id")],
        key=lambda release: (release.at, release.host_id),
    )
    cores = list(
        Commitment.objects.filter(
            zone=zone,
            state__in=LIVE_STATUSES,
            end_time__gt=now,
            resource_type=ResourceType.CORES,
            accepted_amount__gt=0,
        )
        .exclude(commitment_uuid__in=outside)
        .order_by("end_time", "flavor_group_name", "project_id")
        .values_list("end_time", "flavor_group_name", "project_id")
        .annotate(vcpus=Sum("accepted_amount"))
    )
    planned = list(
        PlannedHostChange.objects.filter(host__zone=zone, at__gt=now)
        .select_related("host")
        .order_by("at", "pk")
    )
    moments = sorted(
        {*(r.at for r in releases), *(row[0] for row in cores), *(row.at for row in planned)}
    )
    index = {moment: number for number, moment in enumerate(moments)}
    return Timeline(
        moments=tuple(moments),
        releases=Releases(
            moment=_column(index[r.at] for r in releases),
            host_ids=_column(r.host_id for r in releases),
            memory_bytes=_column(r.memory_bytes for r in releases),
            vcpus=_column(r.vcpus for r in releases),
        ),
        cores=tuple(
            CoresRelease(
                moment=index[end],
                flavor_group_name=group,
                zone=zone,
                vcpus=int(vcpus),
                project_id=project_id,
            )
            for end, group, project_id, vcpus in cores
        ),
        hosts=tuple((index[row.at], change) for row in planned for change in _planned_changes(row)),
    )


def known_memory_changes(
    zone: str, group_name: str, *, now: datetime
) -> list[tuple[datetime, int]]:
    """Return what commitments of a group are known to give back or to take of a zone's memory.

    What slots hold beyond their VMs comes back when their commitment ends; VMs stay. A planned
    commitment takes its amount when it is to be confirmed. Two statements.

    Returns:
        Moments after ``now`` in order, with bytes; negative ones are taken.
    """
    ends = (
        _ending_slots(zone, now)
        .filter(flavor_group_name=group_name, target_host__isnull=False)
        .filter(blocked_memory_bytes__gt=0)
        .order_by()
        .values_list("commitment__end_time")
        .annotate(memory_bytes=Sum("blocked_memory_bytes"))
    )
    starts = (
        Commitment.objects.filter(
            zone=zone,
            flavor_group_name=group_name,
            state=CommitmentStatus.PLANNED,
            resource_type=ResourceType.MEMORY,
            confirm_by__gt=now,
        )
        .order_by()
        .values_list("confirm_by")
        .annotate(memory_bytes=Sum("requested_amount"))
    )
    returned = [(at, int(amount)) for at, amount in ends if at is not None]
    taken = [(at, -int(amount)) for at, amount in starts if at is not None]
    return sorted([*returned, *taken])


def _ending_slots(zone: str, now: datetime) -> QuerySet[Reservation]:
    return Reservation.objects.filter(
        commitment__zone=zone, commitment__state__in=LIVE_STATUSES, commitment__end_time__gt=now
    )


def _releases(slots: QuerySet[Reservation], host_column: str) -> list[_Release]:
    rows = (
        slots.filter(
            Q(blocked_memory_bytes__gt=0) | Q(blocked_vcpus__gt=0),
            **{f"{host_column}__isnull": False},
        )
        .order_by("commitment__end_time", host_column)
        .values_list("commitment__end_time", host_column)
        .annotate(memory_bytes=Sum("blocked_memory_bytes"), vcpus=Sum("blocked_vcpus"))
    )
    return [
        _Release(at, host_id, int(memory_bytes), int(vcpus))
        for at, host_id, memory_bytes, vcpus in rows
        if at is not None
    ]


def _column(numbers: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(numbers, dtype=np.int64)


def _planned_changes(row: PlannedHostChange) -> list[HostChange]:
    if row.edit == PlannedHostEdit.DRAIN:
        return [
            HostChange(
                edit=HostEdit.DRAINED, host_id=row.host_id, displaced=displaced_by([row.host_id])
            )
        ]
    return added_hosts(row.host_id, row.host_count, prefix=f"planned {row.pk}")


def added_hosts(like_host_id: int, count: int, *, prefix: str) -> list[HostChange]:
    """Return ``count`` new hosts like an existing one; ``prefix`` makes their names unique."""
    return [
        HostChange(edit=HostEdit.ADDED, host_id=like_host_id, name=f"{prefix}.{number}")
        for number in range(1, count + 1)
    ]


def displaced_by(host_ids: Sequence[int], *, failed: Collection[int] = ()) -> tuple[Displaced, ...]:
    """Return what needs another host when hosts go: slots by what they block, then VMs.

    The largest come first within each kind, which wastes the least room. Slots say when their
    commitment ends, since they need no room from then on.

    Args:
        host_ids: The hosts.
        failed: Those of them that die: their VMs are evacuated, the others' migrated.

    Raises:
        NotReady: there are slots, and flavor groups have not been extracted yet.
    """
    slots = _displaced_slots(host_ids)
    vms = list(
        Instance.objects.filter(host__in=host_ids)
        .select_related("host")
        .order_by("-memory_bytes", "pk")
    )
    book = VMBook(vms)
    return (
        *slots,
        *(
            Displaced(
                ask=book.ask_for(
                    vm, Intent.EVACUATE if vm.host_id in failed else Intent.LIVE_MIGRATION
                )
            )
            for vm in vms
        ),
    )


def _displaced_slots(host_ids: Sequence[int]) -> list[Displaced]:
    rows = list(
        _slots_on(host_ids).select_related("commitment").order_by("-blocked_memory_bytes", "pk")
    )
    if not rows:
        return []
    held = [held_slot(row) for row in rows]
    book = SlotBook(held)
    return [
        Displaced(
            ask=book.ask_for(
                slot,
                takes=row.blocked,
            ),
            ends_at=row.commitment.end_time if row.commitment is not None else None,
        )
        for slot, row in zip(held, rows, strict=True)
    ]


def _slots_on(host_ids: Sequence[int]) -> QuerySet[Reservation]:
    return Reservation.objects.filter(
        kind=ReservationKind.COMMITTED, target_host__in=host_ids, blocked_memory_bytes__gt=0
    )
