"""``manage.py show_commitment``: what a commitment holds, on which hosts, and why."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError

from commitments.models import Commitment
from console.capacity.page_data import decision_sentences
from console.commitments.presentation import amount_text, change_lines, condition_title
from console.commitments.record import UnknownCommitment, known_commitment
from core.text import count_text, memory_text, moment_text, plural, time_text
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
        try:
            row, shown = known_commitment(options["commitment_uuid"])
        except UnknownCommitment as error:
            raise CommandError(error.message, returncode=EXIT_UNKNOWN) from error
        if options["json"]:
            self.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
            return
        for line in _lines(row, shown, database_now()):
            self.stdout.write(line)


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
