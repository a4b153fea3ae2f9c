"""States and resource types of commitments (spec commitments, 1.2, 1.3)."""

from __future__ import annotations

from enum import StrEnum


class ResourceType(StrEnum):
    """What a commitment promises: memory in bytes, or whole cores."""

    MEMORY = "memory"
    CORES = "cores"


class CommitmentStatus(StrEnum):
    """The six states of a commitment in Limes."""

    PLANNED = "planned"
    PENDING = "pending"
    GUARANTEED = "guaranteed"
    CONFIRMED = "confirmed"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"

    @property
    def is_active(self) -> bool:
        """Whether the commitment is promised: guaranteed or confirmed."""
        return self in ACTIVE_STATUSES

    @property
    def is_live(self) -> bool:
        """Whether capacity is held or wanted now: pending, guaranteed or confirmed."""
        return self in LIVE_STATUSES

    @property
    def is_final(self) -> bool:
        """Whether no other state follows: superseded or expired."""
        return self in FINAL_STATUSES


class Ruling(StrEnum):
    """What a plan rules about one commitment."""

    ACCEPTED = "accepted"
    PLANNED = "planned"
    RELEASED = "released"
    DELETED = "deleted"
    RESERVING = "reserving"
    REJECTED = "rejected"


class Cause(StrEnum):
    """Why a commitment was not accepted; decides when to try again (spec liquid, 11.5)."""

    CAPACITY = "capacity"
    TRANSIENT = "transient"
    STRUCTURAL = "structural"


ACTIVE_STATUSES = frozenset({CommitmentStatus.GUARANTEED, CommitmentStatus.CONFIRMED})
LIVE_STATUSES = ACTIVE_STATUSES | {CommitmentStatus.PENDING}
UNFINISHED_STATUSES = LIVE_STATUSES | {CommitmentStatus.PLANNED}
FINAL_STATUSES = frozenset({CommitmentStatus.SUPERSEDED, CommitmentStatus.EXPIRED})
