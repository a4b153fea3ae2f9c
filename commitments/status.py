"""What ``/statusz`` tells of where our data come from: region imports and Limes."""

from __future__ import annotations

from django.conf import settings

from commitments.services import import_runs, sync_runs
from hosts.feed.state import is_fed, late_kinds
from journal.clock import database_now
from journal.health import ReadinessCheck, status_checks

LATE_INTERVALS = 3
SHRANK = "docs/operations.md, A VM list that shrank"
LOOK = "./run manage sync_commitments --dry-run says why (docs/limes.md)"


def check_feed() -> ReadinessCheck:
    """Tell how late the lists of the live cloud are, or the age of the last good region import.

    How old an import may be only an operator knows.
    """
    if is_fed():
        late = late_kinds(database_now())
        told = [
            f"{kind} never read" if seconds is None else f"{kind} {seconds} s old"
            for kind, seconds in late.items()
        ]
        return ReadinessCheck(name="feed", is_ok=not late, detail=", ".join(told) or "up to date")
    last = import_runs.last_import()
    if last is not None and last.error_code:
        detail = f"the last import: {last.error_code}, {last.message}"
        return ReadinessCheck(name="feed", is_ok=False, detail=detail, todo=SHRANK)
    imported_at = sync_runs.last_success_at(import_runs.SOURCE)
    if imported_at is None:
        return ReadinessCheck(name="feed", is_ok=True, detail="no region was imported yet")
    seconds = int((database_now() - imported_at).total_seconds())
    return ReadinessCheck(name="feed", is_ok=True, detail=f"last good import {seconds} s ago")


def check_limes() -> ReadinessCheck:
    """Compare the age of the last good sync with three times its interval."""
    sync = settings.HEADROOM.sync
    if not (sync.enabled and settings.HEADROOM.keystone.is_complete):
        return ReadinessCheck(name="limes", is_ok=True, detail="not synced periodically")
    synced_at = sync_runs.last_success_at(sync_runs.SOURCE)
    if synced_at is None:
        return ReadinessCheck(name="limes", is_ok=False, detail="no sync was good yet", todo=LOOK)
    seconds = int((database_now() - synced_at).total_seconds())
    limit = LATE_INTERVALS * sync.interval_seconds
    detail = f"last good sync {seconds} s ago, limit {limit} s"
    return ReadinessCheck(name="limes", is_ok=seconds <= limit, detail=detail, todo=LOOK)


def register() -> None:
    """Tell them on the page."""
    status_checks.extend((check_feed, check_limes))
