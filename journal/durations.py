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
PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s|us|µs|ns)")
WHOLE: Final = re.compile(rf"(?:{PART.pattern})+")


def duration_seconds(text: str) -> Decimal:
    """Return the seconds of a duration.

    Raises:
        ValueError: it is not one, or negative.

    Source: spec commitments, 21.
    """
    if WHOLE.fullmatch(text) is None:
        message = f"not a duration: {text!r}"
        raise ValueError(message)
    parts = (Decimal(amount) * SECONDS_PER_UNIT[unit] for amount, unit in PART.findall(text))
    return sum(parts, start=Decimal(0))
