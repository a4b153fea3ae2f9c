"""Files below /proc and /sys, or below a copy of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

SYSTEM = Path("/")
_LONGEST_BYTES = 4 * 1024**2


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(_LONGEST_BYTES).decode("utf-8", "replace")


def read_or_none(path: Path) -> str | None:
    """Return the text of a file without space around it, None when it cannot be read."""
    try:
        return read_text(path).strip()
    except OSError:
        return None


def read_integer(path: Path) -> int | None:
    """Return the integer that a file holds, None when it holds none or cannot be read."""
    text = read_or_none(path)
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,19}", text) else None


def names_below(directory: Path) -> tuple[str, ...]:
    """Return the sorted names of a directory; empty when there is none."""
    try:
        return tuple(sorted(os.listdir(directory)))  # noqa: PTH208  # names, not paths
    except OSError:
        return ()


def parse_list(text: str) -> frozenset[int]:
    """Return the numbers of a list like ``0-15,17``.

    Raises:
        ValueError: It is no such list, or longer than any machine's.
    """
    return frozenset(_numbers(text.strip()))


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(",") if text else ():
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f"no list of numbers: {text!r}")
        start, end = int(first), int(last or first)
        if end < start or end >= 2**20:
            raise ValueError(f"no range of numbers: {part!r}")
        yield from range(start, end + 1)
