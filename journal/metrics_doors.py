"""Metrics of callers that were not let in."""

from __future__ import annotations

from prometheus_client import Counter

from journal.metrics import metric_name

REFUSED_TOKENS = Counter(
    metric_name("refused_tokens_total"),
    "Requests of an API without a token (missing) or with one that nobody knows (unknown).",
    ("reason",),
)
LOCKED_OUT_LOGINS = Counter(
    metric_name("admin_locked_out_logins_total"),
    "Logins to the admin that were refused for too many failures before.",
)
REASONS = ("missing", "unknown")
for _reason in REASONS:
    REFUSED_TOKENS.labels(reason=_reason)


def count_refused_token(token: str) -> None:
    """Count a request that was refused for its token, which may be empty."""
    REFUSED_TOKENS.labels(reason="unknown" if token else "missing").inc()
