"""Loading the providers of a new web process before its first request (spec placement, 9.4)."""

from __future__ import annotations

import threading

import numpy as np
import structlog
from django.db import connections

from core.conf import headroom
from placement.domain.summaries import ShownTrees, summary_pieces
from placement.selectors.snapshot import current_snapshot

log = structlog.get_logger(__name__)

THREAD = "placement-warm-up"


def warm_up() -> threading.Thread | None:
    """Load the snapshot and encode its summaries in a thread of its own, where that is wanted.

    A failure is no more than a line in the log: the first request tries again.
    """
    placement = headroom().placement
    if not placement.warm_up or placement.snapshot == "off":
        return None
    thread = threading.Thread(target=_load, name=THREAD, daemon=True)
    thread.start()
    return thread


def _load() -> None:
    try:
        snapshot = current_snapshot()
        if snapshot.tree_count:
            every = np.ones(snapshot.tree_count, dtype=np.bool_)
            summary_pieces(snapshot, ShownTrees.among(every))
        log.info("placement_warmed_up", providers=len(snapshot))
    except Exception as error:  # noqa: BLE001 - whatever it is, the process serves all the same
        log.warning("placement_warm_up_failed", error=str(error))
    finally:
        connections.close_all()
