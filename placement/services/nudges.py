"""Telling the worker that hosts changed (style, 9)."""

from __future__ import annotations

from core.conf import headroom
from journal.nudges import hint_worker

RECONCILE_HOSTS = "placement.reconcile_hosts"


def reconcile_soon() -> None:
    """Ask the worker to look at hosts and their providers now; beat would come anyway."""
    placement = headroom().placement
    if placement.host_providers or placement.host_capacity:
        hint_worker(RECONCILE_HOSTS)
