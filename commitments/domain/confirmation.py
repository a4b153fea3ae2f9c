"""Whether a change request asks for a yes or no (spec liquid, 4.6)."""

from __future__ import annotations

from commitments.domain.changeset import ChangeRequest, CommitmentChange, ResourceChangeset
from commitments.domain.statuses import CommitmentStatus


def requires_confirmation(request: ChangeRequest) -> bool:
    """Return whether the answer may carry a rejection that the caller honours.

    Source: spec liquid, 4.6.
    """
    return any(
        _asks_for_confirmation(changeset)
        for project in request.by_project.values()
        for changeset in project.by_resource.values()
    )


def _asks_for_confirmation(changeset: ResourceChangeset) -> bool:
    if any(_is_expiry_change(change) for change in changeset.commitments):
        return True
    confirmed_lost = guaranteed_lost = confirmed_gained = 0
    for change in changeset.commitments:
        is_gone = change.new_status in {None, CommitmentStatus.EXPIRED}
        if change.old_status is CommitmentStatus.CONFIRMED and is_gone:
            confirmed_lost += change.amount_units
        elif change.old_status is CommitmentStatus.GUARANTEED and is_gone:
            guaranteed_lost += change.amount_units
        elif (
            change.old_status is CommitmentStatus.GUARANTEED
            and change.new_status is CommitmentStatus.CONFIRMED
        ):
            guaranteed_lost += change.amount_units
            confirmed_gained += change.amount_units
    if (
        changeset.total_confirmed_before == changeset.total_confirmed_after
        and changeset.total_guaranteed_before == changeset.total_guaranteed_after
    ):
        return False
    return (
        changeset.total_confirmed_before + confirmed_gained
        != changeset.total_confirmed_after + confirmed_lost
        or changeset.total_guaranteed_before != changeset.total_guaranteed_after + guaranteed_lost
    )


def _is_expiry_change(change: CommitmentChange) -> bool:
    return (
        change.old_expires_at is not None
        and change.new_status is not None
        and change.new_status.is_active
    )
