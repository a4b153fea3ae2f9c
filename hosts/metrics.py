"""What scrapes read of the feed (docs/feed.md)."""

from __future__ import annotations

from typing import Final

from journal.readings import Reading, Scraped, gauge, total

PASSES: Final = """
SELECT kind, extract(epoch FROM clock_timestamp() - listed_at)::float8, passes, failures,
       (refusal <> '')::int
  FROM hosts_feedpass ORDER BY kind
"""

FEED: Final = Scraped(
    "feed",
    Reading(
        PASSES,
        ("kind",),
        (
            gauge(
                "feed_list_age_seconds",
                "Since when changes of the cloud are unknown, by kind of lists.",
            ),
            total("feed_passes", "Passes of the feed that were completed."),
            gauge("feed_failures", "Passes in a row that were not completed."),
            gauge("feed_refused", "1 when the last completed pass did not believe a list."),
        ),
    ),
)
