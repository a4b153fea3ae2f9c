"""Hosts that operators know will come or go: written with an audit entry, never acted on.

The admin calls these inside its own transaction, so theirs need not be the outermost.
"""

from __future__ import annotations

from typing import Any, Final

from core.audited_rows import AuditedRows
from hosts.models import PlannedHostChange
from journal.actors import Actor

OBJECT_TYPE: Final = "planned_host_change"


def save_planned_change(
    row: PlannedHostChange, *, actor: Actor, request_id: str
) -> PlannedHostChange:
    """Store a planned change that was checked (``full_clean``), new or edited.

    Raises:
        django.db.IntegrityError: the row breaks a rule of the table.
    """
    ROWS.save(row, actor=actor, request_id=request_id)
    return row


def remove_planned_change(*, pk: int, actor: Actor, request_id: str) -> None:
    """Forget a planned change; one that is gone already is no error."""
    ROWS.remove(pk, actor=actor, request_id=request_id)


def _record(row: PlannedHostChange) -> dict[str, Any]:
    return {
        "edit": row.edit,
        "at": row.at.isoformat(),
        "host": row.host.name,
        "host_count": row.host_count,
        "note": row.note,
    }


ROWS: Final = AuditedRows(model=PlannedHostChange, object_type=OBJECT_TYPE, fields=_record)
