"""Counters of callers that were not let in, of readers that follow changes, and of forgetting."""

from __future__ import annotations

from typing import Final

from journal.readings import counter

#: What is kept of the database, or stored as a position to go on from.
READERS: Final = (
    "placement",
    "host_table",
    "flavor_groups",
    "group_settings",
    "pipelines",
    "usage",
    "slots",
    "bridge",
    "hypervisors",
    "webhooks",
)
RELOAD_REASONS: Final = (
    "other_system",
    "other_timeline",
    "restarted",
    "other_database",
    "behind",
)

REFUSED_TOKENS = counter(
    "refused_tokens_total",
    "Requests of an API without a token (missing) or with one that nobody knows (unknown).",
    reason=("missing", "unknown"),
)
LOCKED_OUT_LOGINS = counter(
    "admin_locked_out_logins_total",
    "Logins to the admin that were refused for too many failures before.",
)
RELOADS = counter(
    "database_history_reloads_total",
    "Times that a reader of changes read everything anew, because the database had another past.",
    reader=READERS,
    reason=RELOAD_REASONS,
)
REFUSED_SERVERS = counter(
    "database_servers_refused_total",
    "Sessions that led to a standby, or to a primary that another one took over from.",
    reason=("standby", "former_primary"),
)
READS = counter(
    "standby_reads_total",
    "What only reads, where there are standbys: answered by one, by the primary because none was "
    "fresh enough or the view needs it, or by the primary after a standby failed.",
    reader=("pages", "metrics", "sums", "providers", "candidates"),
    answered_by=("standby", "primary", "primary_again"),
)
PRUNED_ROWS = counter(
    "journal_pruned_rows_total",
    "Entries of a log that were forgotten past their retention.",
    log=("deletions", "outbox"),
)


def count_refused_token(token: str) -> None:
    """Count a request that was refused for its token, which may be empty."""
    REFUSED_TOKENS.labels(reason="unknown" if token else "missing").inc()
