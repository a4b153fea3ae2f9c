"""What scrapes read of the feed (docs/feed.md)."""

from __future__ import annotations

from typing import Final

from journal.readings import Reading, Scraped, gauge, total

PASSES: Final = """
SELECT kind, extract(epoch FROM clock_timestamp() - listed_at)::float8, passes, failures,
       (refusal <> '')::int
  FROM hosts_feedpass ORDER BY kind
"""

HINTS: Final = """
SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - seen_at)), 0)::float8
  FROM hosts_feedhint
"""
SIGNS: Final = """
SELECT name, extract(epoch FROM clock_timestamp() - beaten_at)::float8
  FROM journal_heartbeat WHERE name IN ('listener', 'notification') ORDER BY name
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
    Reading(
        HINTS,
        (),
        (
            gauge("feed_hints_waiting", "Hints of notifications that no pass has looked at."),
            gauge("feed_hint_age_seconds", "How long the oldest of them waits; 0 without one."),
        ),
    ),
    Reading(
        SIGNS,
        ("sign",),
        (
            gauge(
                "feed_listener_silence_seconds",
                "Time since the listener was last alive, and since it last heard a hint.",
            ),
        ),
    ),
)
