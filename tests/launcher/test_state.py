from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from config.launcher.state import VARIABLE, counters_directory
from config.launcher.terminal import LauncherError


def ended_process() -> int:
    process = subprocess.Popen(["true"])  # noqa: S607 - of every machine
    process.wait()
    return process.pid


def test_counters_of_processes_that_are_gone_are_deleted_and_others_left(tmp_path: Path) -> None:
    environ = {VARIABLE: str(tmp_path / "state")}
    mine = counters_directory(environ, "web")
    (mine / "counter_1.db").touch()
    of_others = [mine.with_name(f"worker-{os.getppid()}"), mine.with_name("unrelated")]
    of_the_dead = mine.with_name(f"web-{ended_process()}")
    for directory in (*of_others, of_the_dead):
        directory.mkdir()
    assert counters_directory(environ, "web") == mine
    assert not list(mine.iterdir())  # what an earlier one of the same number left is gone
    assert not of_the_dead.exists()
    assert all(directory.exists() for directory in of_others)


def test_state_directory_that_another_has_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / f"headroom-{os.geteuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    with pytest.raises(LauncherError, match=VARIABLE):
        counters_directory({}, "web")


def test_state_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LauncherError, match=f"^{VARIABLE}: "):
        counters_directory({VARIABLE: str(tmp_path / "file" / "below")}, "web")
