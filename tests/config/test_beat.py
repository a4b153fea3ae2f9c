"""What beat starts: periodic work has an end of its patience, and some begins at once."""

from __future__ import annotations

from typing import Any

import pytest

from config.celery_app import app, beat_at_once


def test_entries_expire_with_their_interval() -> None:
    for name, entry in app.conf.beat_schedule.items():
        assert entry["options"]["expires"], name


@pytest.mark.django_db
@pytest.mark.parametrize("is_synced", [True, False], ids=["with a login", "without a login"])
def test_syncer_runs_once_at_the_start(monkeypatch: pytest.MonkeyPatch, *, is_synced: bool) -> None:
    """Spec commitments, 1.4: every interval, plus once at start."""
    sent: list[str] = []

    def send(name: str, **_: Any) -> None:
        sent.append(name)

    monkeypatch.setattr(app, "send_task", send)
    schedule = app.conf.beat_schedule
    monkeypatch.delitem(schedule, "sync", raising=False)
    if is_synced:
        entry = {"task": "commitments.sync", "options": {"expires": 3600}}
        monkeypatch.setitem(schedule, "sync", entry)
    beat_at_once()
    assert ("commitments.sync" in sent) is is_synced
    assert "journal.beat" in sent
