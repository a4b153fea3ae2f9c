"""Short builders of change requests for tests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from commitments.domain.changeset import (
    ChangeRequest,
    CommitmentChange,
    ProjectChanges,
    ResourceChangeset,
)
from commitments.domain.statuses import CommitmentStatus
from commitments.services.change import ChangeOutcome, change_commitments
from commitments.services.info import current_service_info
from journal.actors import Actor
from journal.errors import Busy

ACTOR = Actor(name="limes", roles=frozenset({"cloud_resource_admin"}))
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RAM = "hw_version_hana_1_ram"
CORES = "hw_version_hana_1_cores"


def change(
    uuid: str,
    amount_units: int,
    new: str | None = "confirmed",
    *,
    old: str | None = None,
    expires_at: datetime | None = None,
    confirm_by: datetime | None = None,
    old_expires_at: datetime | None = None,
) -> CommitmentChange:
    return CommitmentChange(
        uuid=uuid,
        old_status=CommitmentStatus(old) if old else None,
        new_status=CommitmentStatus(new) if new else None,
        amount_units=amount_units,
        expires_at=expires_at or NOW + timedelta(days=365),
        confirm_by=confirm_by,
        old_expires_at=old_expires_at,
    )


def _total(changes: Sequence[CommitmentChange], side: str, status: CommitmentStatus) -> int:
    return sum(c.amount_units for c in changes if getattr(c, side) is status)


def changeset(
    changes: Sequence[CommitmentChange], confirmed_before: int | None = None
) -> ResourceChangeset:
    """Make a changeset whose totals say what its commitments say, unless told otherwise."""
    if confirmed_before is None:
        confirmed_before = _total(changes, "old_status", CommitmentStatus.CONFIRMED)
    return ResourceChangeset(
        total_confirmed_before=confirmed_before,
        total_confirmed_after=_total(changes, "new_status", CommitmentStatus.CONFIRMED),
        total_guaranteed_before=_total(changes, "old_status", CommitmentStatus.GUARANTEED),
        total_guaranteed_after=_total(changes, "new_status", CommitmentStatus.GUARANTEED),
        commitments=tuple(changes),
    )


def request(
    by_project: Mapping[str, Mapping[str, Sequence[CommitmentChange]]],
    *,
    zone: str = "az-a",
    is_dry_run: bool = False,
    info_version: int | None = None,
    confirmed_before: int | None = None,
) -> ChangeRequest:
    return ChangeRequest(
        zone=zone,
        info_version=current_service_info().version if info_version is None else info_version,
        is_dry_run=is_dry_run,
        by_project={
            project: ProjectChanges(
                domain_id="domain-1",
                by_resource={
                    name: changeset(changes, confirmed_before)
                    for name, changes in resources.items()
                },
            )
            for project, resources in by_project.items()
        },
    )


def decide(
    by_project: Mapping[str, Mapping[str, Sequence[CommitmentChange]]], **options: Any
) -> ChangeOutcome:
    """Send one request to the service."""
    service_options = {key: options.pop(key) for key in ("now", "clock") if key in options}
    service_options.setdefault("now", NOW)
    return change_commitments(
        request(by_project, **options), actor=ACTOR, request_id="test-request-1", **service_options
    )


def decide_ram(project: str, *changes: CommitmentChange, **options: Any) -> ChangeOutcome:
    return decide({project: {RAM: changes}}, **options)


def change_some(number: int) -> str:
    """Ask for one of sixteen commitments, or for its end; return what came of it."""
    rng = random.Random(number)  # noqa: S311 - a reproducible load, nothing secret
    uuid = f"aaaaaaaa-0000-4000-8000-{rng.randint(0, 15):012d}"
    wanted = (
        change(uuid, 1, None, old="confirmed")
        if rng.random() < 0.4
        else change(uuid, rng.randint(1, 6))
    )
    try:
        outcome = decide({"alpha": {RAM: [wanted]}})
    except Busy:
        return "busy"
    return "rejected" if outcome.rejection_reason else "accepted"
