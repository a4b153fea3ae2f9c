"""Beat without a broker."""

from __future__ import annotations

import pytest

from journal.beat import LeasedScheduler

MOST_TICKS = 200


def send_due(scheduler: LeasedScheduler) -> None:
    """Tick until nothing is due."""
    for _ in range(MOST_TICKS):
        if scheduler.tick() > 0:
            return
    pytest.fail("something is due for ever")
