"""Beat without a broker: what a scheduler sends when it ticks."""

from __future__ import annotations

from typing import Any

import pytest
from celery.beat import ScheduleEntry

from journal.beat import LeasedScheduler


@pytest.fixture
def sent_entries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entries that are sent, instead of messages to a broker."""
    sent: list[str] = []

    def take(_: LeasedScheduler, entry: ScheduleEntry, **__: Any) -> None:
        sent.append(str(entry.name))

    monkeypatch.setattr(LeasedScheduler, "producer", None)
    monkeypatch.setattr(LeasedScheduler, "apply_async", take)
    return sent
