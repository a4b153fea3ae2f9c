from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from config.launcher.places import this_checkout

BARS = """
from journal.progress import progress_bar
with progress_bar("counting", 4, done=1) as advance:
    advance(1)
print("over")
"""


def written_to_a_terminal(program: str) -> tuple[str, str]:
    """Run a program with a terminal as standard error; return what it wrote there and printed."""
    ours, terminal = pty.openpty()
    with subprocess.Popen(  # noqa: S603 - a program of this file
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        cwd=this_checkout().root,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # how Linux says that the other side is closed
                break
            if not part:
                break
            shown += part
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(ours)
    return shown.decode(), printed


def test_a_bar_is_shown_on_a_terminal_and_nothing_of_it_is_printed() -> None:
    shown, printed = written_to_a_terminal(BARS)
    assert "counting" in shown
    assert "50%" in shown
    assert printed == "over\n"


def test_nothing_is_shown_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run(  # noqa: S603 - a program of this file
        [sys.executable, "-c", BARS], check=True, cwd=this_checkout().root
    )
    assert capfd.readouterr() == ("over\n", "")
