"""What a process keeps of rows, as tests and benchmarks handle it: forgotten, or built anew."""

from __future__ import annotations

import math

from capacity.host_table import HostTableCache, cache
from capacity.host_table.position import load_position
from journal.history import read_moment
from placement.domain.snapshot import Snapshot
from placement.selectors.snapshot import cache as snapshots
from scheduling.table import HostTable


def reset_host_table() -> None:
    """Forget this process's host table, as after a truncation."""
    cache._cache._position = None


def load_host_table() -> HostTable:
    """Return a table built from every row anew: the oracle of the incremental one."""
    return load_position(read_moment()).table


def reset_snapshot() -> None:
    """Forget this process's snapshots of providers, as after a truncation."""
    snapshots._cache.reset()
    snapshots._cache_with_copies.reset()


def load_snapshot() -> Snapshot:
    """Return a snapshot built from every row anew: the oracle of the incremental one."""
    return snapshots.load_state().snapshot


def expire_check(kept: HostTableCache | snapshots.SnapshotCache) -> None:
    """Let the next use of what is kept start a comparison in the background."""
    kept._check._done_at = -math.inf
