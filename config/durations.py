"""Settings in seconds that are written as durations (spec commitments, 21)."""

from __future__ import annotations

import re
from typing import Final

from journal.durations import duration_seconds

NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


def parse_seconds(text: str) -> str | int | float:
    """Return a duration in seconds; a plain number as it came.

    Whole seconds come as a whole number, so that settings which are whole refuse ``500ms``.

    Raises:
        ValueError: it is neither a number nor a duration.

    Source: spec commitments, 21.
    """
    stripped = text.strip()
    if NUMBER.fullmatch(stripped):
        return stripped
    try:
        seconds = duration_seconds(stripped)
    except ValueError as error:
        message = f"must be seconds, or a duration such as 90s, 5m or 500ms, not {text!r}"
        raise ValueError(message) from error
    return int(seconds) if seconds == seconds.to_integral_value() else float(seconds)
