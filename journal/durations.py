"""Durations as Go writes them: ``5m``, ``90s``, ``1h30m``, ``500ms`` (spec commitments, 21)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

SECONDS_PER_UNIT: Final = {
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ns": Decimal("1e-9"),
}
NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s|us|µs|ns)")
WHOLE: Final = re.compile(rf"(?:{PART.pattern})+")


def duration_seconds(text: str) -> Decimal:
    """Return the seconds of a duration.

    Raises:
        ValueError: it is not one, or negative.

    Source: spec commitments, 21.
    """
    if WHOLE.fullmatch(text) is None:
        raise ValueError(f"not a duration: {text!r}")
    parts = (Decimal(amount) * SECONDS_PER_UNIT[unit] for amount, unit in PART.findall(text))
    return sum(parts, start=Decimal(0))


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
        raise ValueError(
            f"must be seconds, or a duration such as 90s, 5m or 500ms, not {text!r}"
        ) from error
    return int(seconds) if seconds == seconds.to_integral_value() else float(seconds)
