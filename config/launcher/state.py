"""The state directory: files that processes share while they run, worth nothing afterwards.

Nothing is ever written into the directory of the code, which may be read-only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from config.launcher.places import own_directory
from config.launcher.processes import is_alive
from config.launcher.terminal import LauncherError

VARIABLE = "HEADROOM_STATE_DIRECTORY"


def usual_state_directory() -> Path:
    """Return this user's directory below that for temporary files; nothing is made."""
    return Path(tempfile.gettempdir()) / f"headroom-{os.geteuid()}"


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory that is set, or one of this user's below that for temporary files.

    Raises:
        LauncherError: it cannot be made, or one that nobody chose belongs to another.
    """
    given = environ.get(VARIABLE, "")
    if given:
        path = Path(given)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LauncherError(f"{VARIABLE}: {path}: {error.strerror}") from None
        return path
    path = usual_state_directory()
    if not own_directory(path, 0o700):
        raise LauncherError(f"{path} belongs to another: set {VARIABLE} to a directory")
    return path


def counters_directory(environ: Mapping[str, str], role: str) -> Path:
    """Return an empty directory for the counters of this process and those it starts.

    What processes that are gone have left is deleted.

    Raises:
        LauncherError: it cannot be made.
    """
    root = state_directory(environ) / "prometheus"
    root.mkdir(exist_ok=True)
    mine = root / f"{role}-{os.getpid()}"
    for left in root.iterdir():
        pid = left.name.rpartition("-")[2]
        if left == mine or (pid.isdecimal() and not is_alive(int(pid))):
            shutil.rmtree(left, ignore_errors=True)
    mine.mkdir()
    return mine
