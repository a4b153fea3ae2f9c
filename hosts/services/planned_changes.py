"""Hosts that operators know will come or go: written with an audit entry, never acted on.

The admin calls these inside its own transaction, so theirs need not be the outermost.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction

from hosts.models import PlannedHostChange
from journal.actors import Actor
from journal.services import Change, record_changes

OBJECT_TYPE = "planned_host_change"


def save_planned_change(
    row: PlannedHostChange, *, actor: Actor, request_id: str
) -> PlannedHostChange:
    """Store a planned change that was checked (``full_clean``), new or edited.

    Raises:
        django.db.IntegrityError: the row breaks a rule of the table.
    """
    with transaction.atomic():
        stored = PlannedHostChange.objects.select_for_update(of=("self",), no_key=True)
        before = stored.filter(pk=row.pk).select_related("host").first()
        row.save()
        change = Change(
            action="planned_host_change_saved",
            object_type=OBJECT_TYPE,
            object_id=str(row.pk),
            before=None if before is None else _record(before),
            after=_record(row),
        )
        record_changes([change], actor=actor, request_id=request_id)
    return row


def remove_planned_change(*, pk: int, actor: Actor, request_id: str) -> None:
    """Forget a planned change; one that is gone already is no error."""
    with transaction.atomic():
        rows = PlannedHostChange.objects.select_for_update(of=("self",))
        row = rows.filter(pk=pk).select_related("host").first()
        if row is None:
            return
        change = Change(
            action="planned_host_change_removed",
            object_type=OBJECT_TYPE,
            object_id=str(pk),
            before=_record(row),
        )
        row.delete()
        record_changes([change], actor=actor, request_id=request_id)


def _record(row: PlannedHostChange) -> dict[str, Any]:
    return {
        "edit": row.edit,
        "at": row.at.isoformat(),
        "host": row.host.name,
        "host_count": row.host_count,
        "note": row.note,
    }
