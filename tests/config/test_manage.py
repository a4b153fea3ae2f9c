"""``manage.py`` as people type it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MANAGE = Path(__file__).parents[2] / "manage.py"


def test_a_reader_that_has_read_enough_leaves_no_traceback() -> None:
    """As in ``manage.py show_commitment UUID | head -2``."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(  # noqa: S603 - ours
        [sys.executable, str(MANAGE), "help"],
        env={**os.environ, "HEADROOM_DEBUG": "true"},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
