"""The one-line status of a commitment (spec commitments, 8.10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from commitments.domain.accounting import WAITING_FOR_PLACEMENT
from commitments.domain.statuses import ResourceType

SEPARATOR = " · "
ACCEPTED = "Accepted"
REJECTED = "Rejected"
RESERVING = "Reserving"
MAX_MESSAGE_CHARACTERS = 80
ELLIPSIS = "..."
BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 60 * SECONDS_PER_MINUTE
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryInput:
    """What the status line of one commitment is made of.

    Attributes:
        ready_reason: Reason of the Ready condition; empty when it is not set.
        ready_message: Its message.
        amount: Desired amount: bytes for memory, whole cores for cores.
        flavor_group_name: Desired flavor group.
        zone: Desired availability zone.
        resource_type: Desired resource type, ``memory`` or ``cores``.
        accepted_amount: Amount accepted last, in units of its type; None when never accepted.
        accepted_flavor_group_name: Flavor group accepted last.
        accepted_zone: Zone accepted last.
        accepted_resource_type: Resource type accepted last.
        assigned_vm_count: VMs covered by the commitment.
        end_time: When it ends; None is never.
    """

    ready_reason: str
    ready_message: str
    amount: int
    flavor_group_name: str
    zone: str
    resource_type: str
    accepted_amount: int | None
    accepted_flavor_group_name: str
    accepted_zone: str
    accepted_resource_type: str
    assigned_vm_count: int
    end_time: datetime | None


def status_summary(summary_input: SummaryInput, now: datetime) -> str:
    """Return the status line: reason, changes, message, VMs and what is left of the term.

    Empty when the Ready condition is not set.

    Source: spec commitments, 8.10.
    """
    reason = summary_input.ready_reason
    if not reason:
        return ""
    differences = _differences(summary_input)
    parts = [f"{reason} ({differences})" if differences else reason]
    message = summary_input.ready_message
    if message and (reason == REJECTED or (reason == RESERVING and not _is_generic(message))):
        parts.append(_shortened(message))
    if reason == ACCEPTED:
        count = summary_input.assigned_vm_count
        parts.append("1 VM" if count == 1 else f"{count} VMs")
    if reason != REJECTED:
        parts.append(_expiry(summary_input.end_time, now))
    return SEPARATOR.join(parts)


def quantity_text(amount: int, resource_type: str) -> str:
    """Return an amount as a Kubernetes quantity.

    Args:
        amount: Bytes for memory, printed with the largest binary suffix that divides them; cores,
            printed as they are.
        resource_type: ``memory`` or ``cores``.

    Source: spec commitments, 2 (quantities).
    """
    power = 0
    if resource_type == ResourceType.MEMORY and amount:
        while amount % 1024 == 0 and power < len(BINARY_SUFFIXES) - 1:
            amount //= 1024
            power += 1
    return f"{amount}{BINARY_SUFFIXES[power]}"


def remaining_text(remaining: timedelta) -> str:
    """Return a positive duration in its two largest units; below a minute only seconds (floor).

    Source: spec commitments, 8.10.
    """
    seconds = int(remaining.total_seconds())
    minutes, hours, days = (
        seconds // SECONDS_PER_MINUTE,
        seconds // SECONDS_PER_HOUR,
        seconds // SECONDS_PER_DAY,
    )
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60}m"
    if minutes:
        return f"{minutes}m {seconds % 60}s"
    return f"{seconds}s"


def _differences(wanted: SummaryInput) -> str:
    if wanted.accepted_amount is None:
        return ""
    pairs = (
        (
            "amount",
            quantity_text(wanted.accepted_amount, wanted.accepted_resource_type),
            quantity_text(wanted.amount, wanted.resource_type),
        ),
        ("fg", wanted.accepted_flavor_group_name, wanted.flavor_group_name),
        ("az", wanted.accepted_zone, wanted.zone),
        ("type", wanted.accepted_resource_type, wanted.resource_type),
    )
    return "; ".join(f"{label} {old}→{new}" for label, old, new in pairs if old != new)


def _is_generic(message: str) -> bool:
    return message == WAITING_FOR_PLACEMENT


def _shortened(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[: MAX_MESSAGE_CHARACTERS - len(ELLIPSIS)] + ELLIPSIS


def _expiry(end_time: datetime | None, now: datetime) -> str:
    if end_time is None:
        return "no expiry"
    if end_time <= now:
        return "expired"
    return f"exp in {remaining_text(end_time - now)}"
