"""A commitment with its slots, hosts and events as plain values, and why it is in its state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from capacity.models import Reservation, ReservationAllocation
from commitments.models import Commitment, CommitmentEvent
from console.commitments.presentation import why_text
from core.text import moment_text
from hosts.models import Project
from journal.clock import database_now
from journal.errors import HeadroomError


class UnknownCommitment(HeadroomError):  # noqa: N818 - names the caller's mistake
    """Nobody knows the uuid, or nobody any more: then the message says since when."""

    code = "unknown_commitment"
    status = 404


def known_commitment(commitment_uuid: str) -> tuple[Commitment, dict[str, Any]]:
    """Return a commitment, and everything about it as plain values.

    Raises:
        UnknownCommitment: There is none of this uuid.
    """
    row = Commitment.objects.filter(commitment_uuid=commitment_uuid).first()
    events = list(CommitmentEvent.objects.filter(commitment_uuid=commitment_uuid).order_by("id"))
    if row is None:
        message = f"no commitment {commitment_uuid}"
        if events:
            last = events[-1]
            message += f": {last.action} at {moment_text(last.created_at)} by {last.actor}"
        raise UnknownCommitment(message)
    return row, commitment_record(row, events, database_now())


def commitment_record(
    row: Commitment, events: Sequence[CommitmentEvent], now: datetime
) -> dict[str, Any]:
    """Return everything about a commitment as plain values, amounts in bytes and vCPUs.

    Args:
        events: Its events, oldest first.
        now: Time of the answer.
    """
    project = Project.objects.filter(openstack_id=row.project_id).first()
    return {
        "commitment_uuid": row.commitment_uuid,
        "state": row.state,
        "condition": row.ready_reason,
        "why": why_text(row, now),
        "message": row.ready_message,
        "project_id": row.project_id,
        "project_name": project.name if project else "",
        "zone": row.zone,
        "flavor_group": row.flavor_group_name,
        "resource_type": row.resource_type,
        "requested_amount": row.requested_amount,
        "accepted_amount": row.accepted_amount,
        "start_time": row.start_time,
        "end_time": row.end_time,
        "next_reconcile_at": row.next_reconcile_at,
        "generation": row.generation,
        "slots": _slots(row),
        "events": [_event(event) for event in events],
    }


def _slots(row: Commitment) -> list[dict[str, Any]]:
    slots = list(
        Reservation.objects.filter(commitment=row)
        .select_related("target_host", "confirmed_host")
        .order_by("slot_index")
    )
    vms: dict[int, list[dict[str, str | int]]] = {}
    for allocation in ReservationAllocation.objects.filter(reservation__in=slots).order_by(
        "vm_uuid"
    ):
        vms.setdefault(allocation.reservation_id, []).append(
            {
                "vm_uuid": allocation.vm_uuid,
                "state": allocation.state,
                "memory_bytes": allocation.memory_bytes,
                "vcpus": allocation.vcpus,
            }
        )
    return [
        {
            "slot_index": slot.slot_index,
            "uuid": str(slot.uuid),
            "flavor": slot.resource_name,
            "memory_bytes": slot.memory_bytes,
            "vcpus": slot.vcpus,
            "blocked_memory_bytes": slot.blocked_memory_bytes,
            "blocked_vcpus": slot.blocked_vcpus,
            "host": _host_name(slot),
            "is_ready": slot.is_ready,
            "message": slot.ready_message,
            "vms": vms.get(slot.pk, []),
            "decision": slot.decision,
        }
        for slot in slots
    ]


def _host_name(slot: Reservation) -> str | None:
    host = slot.confirmed_host or slot.target_host
    return host.name if host is not None else None


def _event(event: CommitmentEvent) -> dict[str, Any]:
    return {
        "created_at": event.created_at,
        "actor": event.actor,
        "request_id": event.request_id,
        "action": event.action,
        "before": event.before,
        "after": event.after,
        "reason": event.reason,
    }
