"""Metrics of the mirror (docs/bridge.md)."""

from __future__ import annotations

from typing import Final

from bridge.domain.kinds import ObjectKind
from journal.readings import Reading, Scraped, counter, gauge

_KINDS: Final = tuple(kind.value for kind in ObjectKind)
WRITES = counter(
    "bridge_writes_total",
    "Requests that changed objects of a cluster.",
    kind=_KINDS,
    what=("applied", "deleted"),
)
ERRORS = counter(
    "bridge_errors_total",
    "Times that a cluster was away, an object was refused, or orphans were too many to delete.",
    kind=("cluster", "object", "orphans"),
)
DRIFTS = counter(
    "bridge_drifts_total", "Objects that others changed or deleted, when it was found.", kind=_KINDS
)
_STATES: Final = """
SELECT kind, count(*), count(*) FILTER (WHERE is_due), count(*) FILTER (WHERE error <> ''),
       count(*) FILTER (WHERE drifted_at IS NOT NULL),
       coalesce(extract(epoch FROM statement_timestamp() - min(due_at)
                                   FILTER (WHERE is_due AND due_at < statement_timestamp())), 0),
       (SELECT extract(epoch FROM statement_timestamp() - moved_at) FROM journal_logconsumer
         WHERE name = 'bridge')
  FROM bridge_mirrorstate GROUP BY kind
"""
MIRROR: Final = Scraped(
    "bridge",
    Reading(
        _STATES,
        ("kind",),
        (
            gauge("bridge_objects", "Rows that are mirrored."),
            gauge("bridge_queue_objects", "Objects that wait to be written."),
            gauge("bridge_failed_objects", "Objects that could not be written at the last try."),
            gauge(
                "bridge_drifted_objects",
                "Objects that are left, or a part of them, as others changed them.",
            ),
            gauge("bridge_lag_seconds", "For how long the oldest waiting object could be written."),
            gauge(
                "bridge_position_age_seconds",
                "Since when the bridge looked at no changes, the same for every kind.",
            ),
        ),
    ),
    is_of_primary=True,
)
