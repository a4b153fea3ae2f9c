"""What scheduling asks of commitments: slots for VMs, reasons, quota facts (commitments, 17).

Reads the few rows of one project and group and leaves the judgement to
:mod:`commitments.domain.classify`. Booking goes through the ledger, in the transaction that places
the VM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import orjson
import structlog
from django.db.models import Q

from capacity.hooks import TrackedPlacement
from capacity.ledger.vms import Booking, expect_in_slots, forget_in_slots
from capacity.models import (
    AllocationState,
    HostCapacity,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from commitments.domain.classify import (
    SlotClass,
    TrackedSlot,
    TrackingFacts,
    classify_placement,
    classify_refusal,
    slots_to_record,
)
from commitments.domain.statuses import ACTIVE_STATUSES, ResourceType
from commitments.services.quota_usage import count_payg
from core.prepared import Row, fetch_prepared
from scheduling.quota import CommitmentFact, QuotaFacts

# As text: every call of the scheduler asks.
ACTIVE = "commitments_active(%(project_id)s, %(group)s, %(zone)s, %(resource_type)s, %(states)s)"
SELECT_ACTIVE = f"SELECT zone, state, amount, used_memory_bytes FROM {ACTIVE}"  # noqa: S608 - ours
SELECT_QUOTA = f"""
SELECT (SELECT quota_by_resource::text FROM capacity_projectquota
         WHERE project_id = %(project_id)s AND zone = %(zone)s),
       active.zone, active.state, active.amount, active.used_memory_bytes
  FROM (VALUES (1)) AS one LEFT JOIN {ACTIVE} AS active ON true
"""  # noqa: S608 - ours

log = structlog.get_logger(__name__)


class SlotTracker:
    """Answers for commitments; see :class:`capacity.hooks.CommitmentTracker`."""

    def placed(self, vm: TrackedPlacement, *, candidates: Sequence[str], now: datetime) -> str:
        """Book a VM into the best slots on its target host and return the placement's class.

        Where the VM was only expected elsewhere it is expected no more; slots in which it was seen
        keep it until it is seen in the new one.

        Source: spec scheduling, 12.1; spec commitments, 17.2, 17.3.
        """
        commitments = _commitments(vm)
        own = _slots(_of_group(vm), vm_uuid=vm.vm_uuid)
        facts = TrackingFacts(commitments=commitments, slots=own)
        outcome = classify_placement(vm, candidates, facts)
        target_host = candidates[0] if candidates else ""
        _leave_expected(vm.vm_uuid, target_host=target_host)
        if outcome is not SlotClass.SLOT_USED:
            return outcome.value
        slots = slots_to_record(vm, target_host, facts)
        if slots:
            chosen = [slot.slot_id for slot in slots]
            booking = expect_in_slots(
                chosen, vm.vm_uuid, vm.resources, now=now, project_id=vm.project_id
            )
            if booking is not Booking.BOOKED:
                names = [slot.name for slot in slots]
                log.info("vm_not_booked", vm_uuid=vm.vm_uuid, slots=names, reason=booking.value)
        return outcome.value

    def refused(self, vm: TrackedPlacement, *, input_hosts: Collection[str] | None) -> str:
        """Return why the commitments of a VM's project did not help.

        Source: spec scheduling, 12.3; spec commitments, 17.2.
        """
        commitments = _commitments(vm)
        if not commitments:
            return SlotClass.NO_CR.value
        own = _slots(_of_group(vm), vm_uuid=vm.vm_uuid)
        hosts = {slot.host_name for slot in own}
        facts = TrackingFacts(
            commitments=commitments,
            slots=_slots(Q(target_host__name__in=hosts), vm_uuid=vm.vm_uuid) if hosts else (),
            free_bytes=_free_bytes(hosts),
        )
        return classify_refusal(vm, input_hosts, facts).value

    def quota_facts(self, project_id: str, zone: str, group: str) -> QuotaFacts:
        """Return quota and active memory commitments (spec scheduling, 7.16 step 4)."""
        rows = _rows(SELECT_QUOTA, project_id, group, zone)
        quota = rows[0][0]
        active = (row[1:] for row in rows if row[1] is not None)
        return QuotaFacts(
            quota=None if quota is None else orjson.loads(quota),
            commitments=_as_commitments(active, project_id, group),
        )

    def payg_usage(self, project_id: str, zone: str) -> Mapping[str, int]:
        """Return what no commitment covers, counted now as the quota controller counts it."""
        return count_payg(project_id, zone)


def _commitments(vm: TrackedPlacement) -> tuple[CommitmentFact, ...]:
    rows = _rows(SELECT_ACTIVE, vm.project_id, vm.group, vm.zone)
    return _as_commitments(rows, vm.project_id, vm.group)


def _rows(sql: str, project_id: str, group: str, zone: str) -> list[Row]:
    return fetch_prepared(
        sql,
        {
            "project_id": project_id,
            "group": group,
            "zone": zone,
            "resource_type": ResourceType.MEMORY.value,
            "states": [status.value for status in ACTIVE_STATUSES],
        },
    )


def _as_commitments(rows: Iterable[Row], project_id: str, group: str) -> tuple[CommitmentFact, ...]:
    return tuple(
        CommitmentFact(
            project_id=project_id,
            group=group,
            zone=row_zone,
            state=state,
            amount_bytes=amount_bytes,
            used_bytes=used_bytes,
        )
        for row_zone, state, amount_bytes, used_bytes in rows
    )


def _of_group(vm: TrackedPlacement) -> Q:
    return Q(project_id=vm.project_id, flavor_group_name=vm.group)


def _slots(chosen: Q, *, vm_uuid: str) -> tuple[TrackedSlot, ...]:
    """Return ready slots with a target host, and what their VMs take.

    A VM's own place does not count against it, so that a repetition finds the same slot.
    """
    rows = (
        Reservation.objects.filter(
            chosen, kind=ReservationKind.COMMITTED, is_ready=True, target_host__isnull=False
        )
        .order_by("pk")
        .values_list(
            "pk", "uuid", "target_host__name", "project_id", "flavor_group_name", "memory_bytes"
        )
    )
    listed = list(rows)
    vms: dict[int, list[tuple[str, int]]] = {}
    allocations = ReservationAllocation.objects.filter(reservation_id__in=[r[0] for r in listed])
    for slot_id, listed_uuid, memory_bytes in allocations.values_list(
        "reservation_id", "vm_uuid", "memory_bytes"
    ):
        vms.setdefault(slot_id, []).append((listed_uuid, memory_bytes))
    return tuple(
        TrackedSlot(
            slot_id=slot_id,
            name=str(uuid),
            host_name=host_name,
            project_id=project_id,
            group=group,
            memory_bytes=memory_bytes,
            allocated_bytes=sum(
                taken for listed_uuid, taken in vms.get(slot_id, ()) if listed_uuid != vm_uuid
            ),
            vm_uuids=frozenset(listed_uuid for listed_uuid, _ in vms.get(slot_id, ())),
        )
        for slot_id, uuid, host_name, project_id, group, memory_bytes in listed
    )


def _free_bytes(host_names: Iterable[str]) -> dict[str, int]:
    rooms = HostCapacity.objects.filter(host__name__in=list(host_names)).values_list(
        "host__name", "effective_memory_bytes", "allocated_memory_bytes"
    )
    return {name: effective - allocated for name, effective, allocated in rooms}


def _leave_expected(vm_uuid: str, *, target_host: str) -> None:
    """Take a VM out of slots on other hosts in which it was expected but never seen."""
    elsewhere = ReservationAllocation.objects.filter(
        vm_uuid=vm_uuid,
        state=AllocationState.EXPECTED,
        reservation__kind=ReservationKind.COMMITTED,
    )
    if target_host:
        elsewhere = elsewhere.exclude(reservation__target_host__name=target_host)
    slots = list(elsewhere.values_list("reservation_id", flat=True))
    if slots:
        forget_in_slots([vm_uuid], reservation_ids=slots)
