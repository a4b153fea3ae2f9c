"""The tables of ``docs/operations.md`` against the code: tasks of beat, events of errors."""

from __future__ import annotations

import re

import pytest
from celery.schedules import crontab
from django.conf import settings

from tests.docs.test_errors import APPS
from tests.docs.tour import ROOT
from tests.schedule import beat_schedule

#: Started where Keystone or a cloud is configured; tests have none.
CONDITIONAL = {"commitments.sync", "hosts.feed_changes", "hosts.feed_pass"}
SECONDS = {"s": 1, "min": 60, "h": 3600}
ROW = re.compile(r"^\| `(\w+\.\w+)` \| (.+?) \|", re.MULTILINE)
DURATION = re.compile(r"(?<!\w)(\d+) (s|min|h)\b")
SETTING = re.compile(r"`(HEADROOM_[A-Z_]+)`")


def documented() -> dict[str, str]:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## What runs")[2].partition("\n##")[0]
    return dict(ROW.findall(section))


def scheduled() -> dict[str, object]:
    return {entry["task"]: entry["schedule"] for entry in beat_schedule().values()}


def test_every_task_that_beat_starts_is_documented_and_no_other() -> None:
    assert set(documented()) | CONDITIONAL == set(scheduled()) | CONDITIONAL


@pytest.mark.parametrize("task", sorted(scheduled()))
def test_documented_interval_is_that_of_the_schedule(task: str) -> None:
    words, schedule = documented()[task], scheduled()[task]
    if isinstance(schedule, crontab):
        (hour,), (minute,) = schedule.hour, schedule.minute  # type: ignore[attr-defined]
        assert words.startswith(f"{hour:02}:{minute:02} UTC")
        return
    seconds = schedule.run_every.total_seconds()  # type: ignore[attr-defined]  # no stubs
    number, unit = DURATION.findall(words)[0]
    assert seconds == int(number) * SECONDS[unit]
    for name in SETTING.findall(words.partition(", or ")[0]):
        value = settings.HEADROOM
        for part in name.removeprefix("HEADROOM_").lower().split("__"):
            value = getattr(value, part)
        assert value == seconds


ERROR = re.compile(r"\blog\.(?:error|exception)\(\s*\"(\w+)\"")


def logged_errors() -> set[str]:
    sources = [path for app in APPS for path in (ROOT / app).rglob("*.py")]
    return {event for path in sources for event in ERROR.findall(path.read_text(encoding="utf-8"))}


def test_every_event_that_asks_for_a_person_is_documented_and_no_other() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## Logs and the audit trail")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    documented = {event for cell in cells for event in re.findall(r"`(\w+)`", cell)}
    assert documented == logged_errors()
