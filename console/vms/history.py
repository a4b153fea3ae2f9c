"""What is recorded of a VM: decisions, moves, coverage and audit entries, newest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.http import HttpRequest
from django.urls import reverse

from capacity.models import SchedulingDecision
from capacity.nova.stored_decisions import history_of_vm
from commitments.models import AssignmentPeriod
from console.base import may_view
from console.links import find_url, row_url
from console.names import Names
from console.search import audit_entries
from hosts.models import Instance, ServerMigration
from journal.models import AuditEntry

SHOWN: Final = 30
READ_OF_EACH: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VMEvent:
    """Something that happened to a VM.

    Attributes:
        host: Host that it came to by this; empty where it came to none.
        url: The row that says so.
        who: Who did it, where that is recorded.
    """

    at: datetime
    what: str
    detail: str = ""
    host: str = ""
    url: str = ""
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When a VM came to its host, as far as is recorded; ``words`` say how that is known."""

    at: datetime | None
    words: str


def happenings(request: HttpRequest, vm_uuid: str) -> list[VMEvent]:
    """Return what the user may see of a VM's past, newest first; a statement for each source."""
    found: list[VMEvent] = []
    if may_view(request, SchedulingDecision):
        found += _decisions(vm_uuid)
    if may_view(request, AssignmentPeriod):
        found += _periods(vm_uuid)
    if may_view(request, ServerMigration):
        found += _migrations(vm_uuid)
    if may_view(request, AuditEntry):
        found += _audited(vm_uuid)
    return sorted(found, key=lambda one: one.at, reverse=True)[:SHOWN]


def last_arrival(vm: Instance, history: Sequence[VMEvent]) -> Arrival:
    """Return when a VM came to the host that it is on."""
    if vm.host is None:
        return Arrival(at=None, words="")
    came = next((one for one in history if one.host), None)
    if came is not None and came.host == vm.host.name:
        return Arrival(at=vm.arrived_at or came.at, words=f"by {came.what}")
    return Arrival(at=vm.arrived_at or vm.launched_at, words="")


def _decisions(vm_uuid: str) -> Iterator[VMEvent]:
    for row in history_of_vm(vm_uuid, limit=READ_OF_EACH):
        asked = (row.intent or "placement").replace("_", " ")
        yield VMEvent(
            at=row.created_at,
            what=f"a decision about {asked}",
            detail=f"{row.target_host_name} was chosen"
            if row.is_successful
            else "no host was chosen",
            host=row.target_host_name if row.is_successful else "",
            url=row_url(row),
        )


def _periods(vm_uuid: str) -> Iterator[VMEvent]:
    rows = list(AssignmentPeriod.objects.filter(vm_uuid=vm_uuid).order_by("-id")[:READ_OF_EACH])
    names = Names(row.commitment_uuid for row in rows)
    for row in rows:
        name = names.of("commitment", row.commitment_uuid) or row.commitment_uuid
        url = find_url("commitment", row.commitment_uuid)
        what = f"its {row.resource_type} came into a commitment"
        yield VMEvent(at=row.valid_from, what=what, detail=name, url=url)
        if row.valid_to is not None:
            what = f"its {row.resource_type} left a commitment"
            yield VMEvent(at=row.valid_to, what=what, detail=name, url=url)


def _migrations(vm_uuid: str) -> Iterator[VMEvent]:
    rows = ServerMigration.objects.filter(vm_uuid=vm_uuid, over_at__isnull=False)
    for row in rows.order_by("-over_at")[:READ_OF_EACH]:
        if row.over_at is not None:
            yield VMEvent(
                at=row.over_at,
                what=f"a {row.migration_type} that ended",
                detail=f"{row.source_name} to {row.target_name}: {row.status}",
                host=row.target_name if row.status == "completed" else "",
                url=row_url(row),
            )


def _audited(vm_uuid: str) -> Iterator[VMEvent]:
    for key, action, kind, _, actor, moment in audit_entries(vm_uuid, READ_OF_EACH):
        yield VMEvent(
            at=moment,
            what=action.replace("_", " "),
            detail=kind,
            url=reverse("admin:journal_auditentry_change", args=[key]),
            who=actor,
        )
