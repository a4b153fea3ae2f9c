"""The provider snapshot of this process (spec placement, 9.4)."""

from __future__ import annotations

from placement.selectors.snapshot.cache import (
    SnapshotCache,
    current_snapshot,
    kept_snapshot,
    snapshot_with_copies,
)

__all__ = [
    "SnapshotCache",
    "current_snapshot",
    "kept_snapshot",
    "snapshot_with_copies",
]
