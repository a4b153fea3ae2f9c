"""What the launcher says, and how it fails: one line each."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LauncherError(Exception):
    """Something the person at the terminal has to fix; the message is one line that says what."""


def say(text: str) -> None:
    """Write one line to the terminal at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def step(title: str) -> Iterator[None]:
    """Say the title of a step and how long it took, once it is done; to a terminal before, too.

    What is said next takes the place of what stands there until then.
    """
    if sys.stdout.isatty():
        sys.stdout.write(f"{title} ...\r")
        sys.stdout.flush()
    started = time.monotonic()
    yield
    say(f"{title:.<48} {time.monotonic() - started:5.1f} s")


def last_lines(log: Path, count: int = 12) -> str:
    """Return the last lines of a log file, each indented; a remark when there are none.

    Args:
        log: The file; it may be missing.
        count: Most lines to return.
    """
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            kept = deque((line.rstrip() for line in lines if line.strip()), maxlen=count)
    except OSError:
        kept = deque()
    return "\n".join(f"    {line}" for line in kept) if kept else "    (nothing was logged)"
