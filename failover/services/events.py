"""Events of failover reservations (spec failover, 14.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from failover.choices import EventReason
from failover.models import FailoverEvent

WARNINGS = frozenset(
    {
        EventReason.VALIDATION_FAILED,
        EventReason.SAFEGUARD_KEPT,
        EventReason.COVERAGE_LOST,
        EventReason.REMOVAL_HALTED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that happened to a reservation, a VM's coverage or a zone.

    Attributes:
        reason: What.
        zone: Where.
        message: For people.
        reservation_name: The reservation, if it is about one.
        host_name: Its host.
        vm_uuid: The VM, if it is about one.
        facts: Numbers and names behind it.
    """

    reason: EventReason
    zone: str
    message: str
    reservation_name: str = ""
    host_name: str = ""
    vm_uuid: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


class EventWriter(Protocol):
    """Writes events."""

    def __call__(self, events: Iterable[Happening], *, request_id: str, now: datetime) -> None:
        """Write events, inside the transaction of what they tell of."""
        ...


def record_events(events: Iterable[Happening], *, request_id: str, now: datetime) -> None:
    """Write events in bulk, inside the transaction of what they tell of."""
    FailoverEvent.objects.bulk_create(
        (
            FailoverEvent(
                happened_at=now,
                reason=event.reason,
                is_warning=event.reason in WARNINGS,
                zone=event.zone,
                reservation_name=event.reservation_name,
                host_name=event.host_name,
                vm_uuid=event.vm_uuid,
                message=event.message,
                facts=dict(event.facts),
                request_id=request_id,
            )
            for event in events
        ),
        batch_size=2000,
    )
