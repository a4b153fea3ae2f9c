"""Bodies of change requests as Limes writes them (spec liquid, 4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

CONFIRMED = "confirmed"
PENDING = "pending"
DOMAIN_ID = "00000000-0000-0000-0000-0000000000d0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happens to one commitment of a project.

    Attributes:
        uuid: Of the commitment.
        old_status: None when it appears in this project.
        new_status: None when it disappears from this project.
        amount_units: In the resource's declared unit.
    """

    uuid: str
    old_status: str | None
    new_status: str | None
    amount_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChanges:
    """The changes of one project and resource, with its confirmed totals in declared units."""

    project_id: str
    changes: tuple[Change, ...]
    confirmed_before_units: int
    confirmed_after_units: int


def change_body(
    by_project: Iterable[ProjectChanges],
    *,
    zone: str,
    resource: str,
    info_version: int,
    expires_at: datetime,
    is_dry_run: bool = False,
) -> dict[str, Any]:
    """Return a CommitmentChangeRequest about one resource in one zone."""
    return {
        "az": zone,
        "dryRun": is_dry_run,
        "infoVersion": info_version,
        "byProject": {
            project.project_id: {
                "projectMetadata": project_metadata(project.project_id),
                "byResource": {resource: _changeset(project, _time_text(expires_at))},
            }
            for project in by_project
        },
    }


def project_metadata(project_id: str) -> dict[str, Any]:
    """Return the metadata that Limes sends for a project."""
    return {
        "uuid": project_id,
        "name": "e2e",
        "domain": {"uuid": DOMAIN_ID, "name": "e2e"},
    }


def _changeset(project: ProjectChanges, expires_at: str) -> Mapping[str, Any]:
    return {
        "totalConfirmedBefore": project.confirmed_before_units,
        "totalConfirmedAfter": project.confirmed_after_units,
        "totalGuaranteedBefore": 0,
        "totalGuaranteedAfter": 0,
        "commitments": [
            {
                "uuid": change.uuid,
                "oldStatus": change.old_status,
                "newStatus": change.new_status,
                "amount": change.amount_units,
                "expiresAt": expires_at,
            }
            for change in project.changes
        ],
    }


def _time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
