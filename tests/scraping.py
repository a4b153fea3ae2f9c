"""What Prometheus would read from a web process, without HTTP and its token."""

from __future__ import annotations

from journal.metrics import metrics_page


def scrape() -> str:
    """Return the metrics page, computed now."""
    return metrics_page().decode()
