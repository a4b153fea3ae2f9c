"""Events of failover reservations (spec failover, 14.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import orjson

from core.copying import copy_lines, copy_text, copy_time
from failover.choices import EventReason
from journal.statements import execute

COPY_EVENTS = """
COPY failover_failoverevent (happened_at, reason, is_warning, zone, reservation_name, host_name,
     vm_uuid, message, facts, request_id)
FROM STDIN
"""

INSERT_EVENTS = """
INSERT INTO failover_failoverevent (happened_at, reason, is_warning, zone, reservation_name,
       host_name, vm_uuid, message, facts, request_id)
SELECT %(now)s, fresh.reason, fresh.is_warning, fresh.zone, fresh.reservation_name, fresh.host_name,
       fresh.vm_uuid, fresh.message, fresh.facts, %(request_id)s
  FROM unnest(%(reasons)s::text[], %(warnings)s::boolean[], %(zones)s::text[], %(slots)s::text[],
              %(hosts)s::text[], %(vms)s::text[], %(messages)s::text[], %(facts)s::jsonb[])
           WITH ORDINALITY AS fresh(reason, is_warning, zone, reservation_name, host_name, vm_uuid,
                                    message, facts, place)
 ORDER BY fresh.place
"""

FEW_EVENTS = 20

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
        message: For people.
        reservation_name: The reservation, if it is about one.
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


def record_events(events: Iterable[Happening], *, request_id: str, now: datetime) -> None:
    """Write events in bulk, inside the transaction of what they tell of."""
    chosen = list(events)
    if 0 < len(chosen) <= FEW_EVENTS:
        _insert(chosen, request_id, now)
        return
    moment, operation = copy_time(now), copy_text(request_id)
    copy_lines(
        COPY_EVENTS,
        (
            "\t".join(
                (
                    moment,
                    event.reason.value,
                    "t" if event.reason in WARNINGS else "f",
                    copy_text(event.zone),
                    copy_text(event.reservation_name),
                    copy_text(event.host_name),
                    copy_text(event.vm_uuid),
                    copy_text(event.message),
                    copy_text(orjson.dumps(event.facts).decode()),
                    operation,
                )
            )
            for event in chosen
        ),
    )


def _insert(events: Sequence[Happening], request_id: str, now: datetime) -> None:
    """Write a few events in one round trip, where COPY takes three."""
    execute(
        INSERT_EVENTS,
        {
            "now": now,
            "request_id": request_id,
            "reasons": [event.reason.value for event in events],
            "warnings": [event.reason in WARNINGS for event in events],
            "zones": [event.zone for event in events],
            "slots": [event.reservation_name for event in events],
            "hosts": [event.host_name for event in events],
            "vms": [event.vm_uuid for event in events],
            "messages": [event.message for event in events],
            "facts": [orjson.dumps(event.facts).decode() for event in events],
        },
    )
