"""What beat starts: periodic work has an end of its patience, and some begins at once."""

from __future__ import annotations

from datetime import timedelta

from journal.beat import AT_ONCE
from tests.schedule import beat_schedule


def test_entries_expire_with_their_interval() -> None:
    for name, entry in beat_schedule().items():
        # Those that have none are crontabs, once a day.
        interval = getattr(entry["schedule"], "run_every", timedelta(days=1))
        assert 0 < entry["options"]["expires"] <= interval.total_seconds(), name


def test_what_begins_at_once_is_in_the_schedule() -> None:
    assert AT_ONCE - {"sync"} <= beat_schedule().keys()
