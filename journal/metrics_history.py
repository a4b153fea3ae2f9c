"""Metrics of readers that follow changes, and of the servers they ask."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

from journal.metrics import metric_name

#: What is kept of the database, or stored as a position to go on from.
READERS: Final = (
    "placement",
    "host_table",
    "flavor_groups",
    "group_settings",
    "pipelines",
    "usage",
    "slots",
)
RELOAD_REASONS: Final = (
    "other_system",
    "other_timeline",
    "restarted",
    "other_database",
    "behind",
)
REFUSALS: Final = ("standby", "former_primary")

RELOADS = Counter(
    metric_name("database_history_reloads_total"),
    "Times that a reader of changes read everything anew, because the database had another past.",
    ("reader", "reason"),
)
REFUSED_SERVERS = Counter(
    metric_name("database_servers_refused_total"),
    "Sessions that led to a standby, or to a primary that another one took over from.",
    ("reason",),
)
for _reader in READERS:
    for _reason in RELOAD_REASONS:
        RELOADS.labels(reader=_reader, reason=_reason)
for _reason in REFUSALS:
    REFUSED_SERVERS.labels(reason=_reason)
