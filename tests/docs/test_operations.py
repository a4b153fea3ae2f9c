"""The tables of ``docs/operations.md`` against the code: tasks, metrics, events of errors."""

from __future__ import annotations

import re

import pytest
from celery.schedules import crontab
from django.conf import settings
from django.test import Client

from config.celery_app import app
from tests.docs.test_errors import APPS
from tests.docs.tour import ROOT
from tests.schedule import beat_schedule
from tests.scraping import scrape

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


LIMITS = re.compile(r"^\| (`[^|]+`) \| (\d+) s \| (\d+) s \|", re.MULTILINE)
ORDINARY_SECONDS = 60


def test_time_limits_of_long_tasks_are_documented_and_no_others() -> None:
    app.loader.import_default_modules()
    limits = {
        name: (int(task.soft_time_limit or 0), int(task.time_limit or 0))
        for name, task in app.tasks.items()
        if name.partition(".")[0] in APPS
    }
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("### Time limits")[2].partition("\n## ")[0]
    documented = {
        name: (int(stopped), int(killed))
        for names, stopped, killed in LIMITS.findall(section)
        for name in re.findall(r"`([\w.]+)`", names)
    }
    assert all(stopped for stopped, _ in limits.values())
    assert documented == {name: one for name, one in limits.items() if one[1] > ORDINARY_SECONDS}
    assert max(one[0] for name, one in limits.items() if name not in documented) == 55


#: A name that is not the beginning of several (``P_usage_...``).
METRIC = re.compile(r"\b(?:P|cortex)_\w+\b(?!\.\.\.)")


@pytest.mark.django_db
def test_every_metric_of_the_page_is_told(client: Client) -> None:
    client.get("/statusz")  # the first request makes those of requests
    told = set(re.findall(r"^# TYPE (\w+) ", scrape(), re.MULTILINE))
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## Metrics and alerts")[2].partition("### Who tells what")[0]
    rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    named = {
        re.sub(r"_bucket$", "", name).replace("P_", "cortex_committed_resource_", 1)
        for name in METRIC.findall(rows)
    }
    assert len(named) > 100
    assert sorted(named - told) == []


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
