"""Time limits of tasks (spec commitments, 19): as it says, or with a reason in the manual."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.celery_app import app

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
SOFT_SECONDS, HARD_SECONDS, SYNC_SECONDS = 60, 90, 900
OURS = ("commitments.", "capacity.")


def limits() -> dict[str, tuple[int, int]]:
    """Task -> seconds until it is stopped and killed; 0 where it sets none."""
    app.loader.import_default_modules()
    return {
        name: (int(task.soft_time_limit or 0), int(task.time_limit or 0))
        for name, task in app.tasks.items()
        if not name.startswith("celery.")
    }


def documented() -> dict[str, tuple[int, int]]:
    """Task -> seconds until it is stopped and killed, from the table of the manual."""
    section = (
        MANUAL.read_text(encoding="utf-8").partition("### Time limits")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| (`.*`) \| (\d+) s \| (\d+) s \|", section, re.MULTILINE)
    return {
        name: (int(soft), int(hard))
        for names, soft, hard in rows
        for name in re.findall(r"`([^`]+)`", names)
    }


def test_limits_hold_for_tasks_that_set_none() -> None:
    assert (app.conf.task_soft_time_limit, app.conf.task_time_limit) == (SOFT_SECONDS, HARD_SECONDS)
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost


def test_every_task_is_stopped_before_it_is_killed() -> None:
    found = limits()
    assert len(found) > 20
    assert {name: both for name, both in found.items() if not 0 < both[0] < both[1]} == {}


def test_syncer_has_a_quarter_of_an_hour() -> None:
    assert limits()["commitments.sync"][1] == SYNC_SECONDS


@pytest.mark.parametrize("prefix", OURS)
def test_longer_limits_are_those_of_the_manual(prefix: str) -> None:
    longer = {
        name: both
        for name, both in limits().items()
        if name.startswith(prefix) and both[1] > HARD_SECONDS
    }
    assert longer == {name: both for name, both in documented().items() if name.startswith(prefix)}
