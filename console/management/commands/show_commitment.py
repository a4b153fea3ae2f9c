"""``manage.py show_commitment``: what a commitment holds, on which hosts, and why."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError

from capacity.models import Reservation, ReservationAllocation
from commitments.models import Commitment, CommitmentEvent
from console.capacity.page_data import decision_sentences
from console.commitments.presentation import amount_text, change_lines, condition_title, why_text
from core.text import count_text, memory_text, moment_text, plural, time_text
from hosts.models import Project
from journal.clock import database_now

EXIT_UNKNOWN = 1


class Command(BaseCommand):
    """Print one commitment: facts, condition, slots with hosts, events."""

    help = "Show a commitment: its slots and their hosts, its events, and why it is in its state."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare options."""
        parser.add_argument("commitment_uuid", metavar="UUID", help="uuid of the commitment")
        parser.add_argument("--json", action="store_true", help="print it as JSON")

    def handle(self, *_: object, **options: Any) -> None:  # Any: Django's own signature
        """Read, then print.

        Raises:
            CommandError: Nobody knows the uuid.
        """
        uuid = options["commitment_uuid"]
        row = Commitment.objects.filter(commitment_uuid=uuid).first()
        events = list(CommitmentEvent.objects.filter(commitment_uuid=uuid).order_by("id"))
        if row is None:
            message = f"no commitment {uuid}"
            if events:
                last = events[-1]
                message += f": {last.action} at {moment_text(last.created_at)} by {last.actor}"
            raise CommandError(message, returncode=EXIT_UNKNOWN)
        shown = commitment_record(row, events, database_now())
        if options["json"]:
            self.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
            return
        for line in _lines(row, shown, database_now()):
            self.stdout.write(line)


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


def _lines(row: Commitment, shown: Mapping[str, Any], now: datetime) -> list[str]:
    slots = shown["slots"]
    amount = amount_text(row.resource_type, row.requested_amount)
    head = f"commitment {row.commitment_uuid}"
    project = shown["project_name"] or row.project_id
    ready = sum(1 for slot in slots if slot["is_ready"])
    lines = [
        f"{head}: {amount} of {row.flavor_group_name} in {row.zone} for project {project}",
        f"state {row.state}, {condition_title(row).lower()}: {shown['why']}",
        f"start {time_text(row.start_time, now)}, end {time_text(row.end_time, now)}",
        f"{plural(len(slots), 'slot')}, {ready:,} placed",
    ]
    lines += [line for slot in slots for line in _slot_lines(slot)]
    lines.append(plural(len(shown["events"]), "event"))
    lines += [line for event in shown["events"] for line in _event_lines(event)]
    return lines


def _slot_lines(slot: Mapping[str, Any]) -> list[str]:
    size = f"{memory_text(slot['memory_bytes'])}, {count_text(slot['vcpus'], 'vCPUs')}"
    where = f"on {slot['host']}" if slot["host"] else f"not placed: {slot['message']}"
    lines = [f"  slot {slot['slot_index']}: {slot['flavor']}, {size}, {where}"]
    sentences = decision_sentences(slot["decision"])
    if slot["host"] and sentences:
        lines.append(f"    {'; '.join(sentences)}")
    lines += [f"    VM {vm['vm_uuid']} {vm['state']}" for vm in slot["vms"]]
    return lines


def _event_lines(event: Mapping[str, Any]) -> list[str]:
    when = moment_text(event["created_at"])
    lines = [f"  {when}  {event['action'].replace('_', ' ')} by {event['actor']}"]
    if event["request_id"]:
        lines[0] += f" ({event['request_id']})"
    lines += [f"    {line}" for line in change_lines(event["before"], event["after"])]
    if event["reason"]:
        lines.append(f"    {event['reason']}")
    return lines
