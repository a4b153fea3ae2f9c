"""How amounts and times are written for people, on every page and in every command."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

BINARY_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
NOTHING = "—"
_STEP = 1024
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def memory_text(memory_bytes: int | None) -> str:
    """Write an amount of memory exactly, in the largest binary unit that divides it.

    Args:
        memory_bytes: Amount in bytes; may be negative in differences.

    Returns:
        Text such as ``64 GiB`` or ``1,536 MiB``; a dash for None.
    """
    if memory_bytes is None:
        return NOTHING
    if memory_bytes == 0:
        return "0 GiB"
    count, unit = memory_bytes, 0
    while count % _STEP == 0 and unit < len(BINARY_UNITS) - 1:
        count //= _STEP
        unit += 1
    return f"{count:,} {BINARY_UNITS[unit]}"


def memory_short(memory_bytes: int | None) -> str:
    """Write an amount of memory for a glance: at most one decimal, rounded towards zero.

    An amount that is whole in its unit has no decimal; others always show one, so that ``512.0``
    reads as rounded.
    """
    if memory_bytes is None:
        return NOTHING
    magnitude, unit = abs(memory_bytes), 0
    divisor = 1
    while magnitude >= divisor * _STEP * 10 and unit < len(BINARY_UNITS) - 1:
        divisor *= _STEP
        unit += 1
    if unit < 3 and magnitude and magnitude % (1 << 30) == 0:  # noqa: PLR2004 - 3 is GiB
        divisor, unit = 1 << 30, 3
    sign = "-" if memory_bytes < 0 else ""
    if memory_bytes == 0:
        return "0 GiB"
    whole, rest = divmod(magnitude, divisor)
    if rest == 0:
        return f"{sign}{whole:,} {BINARY_UNITS[unit]}"
    return f"{sign}{whole:,}.{rest * 10 // divisor} {BINARY_UNITS[unit]}"


def gib_text(memory_bytes: int | None) -> str:
    """Write an amount of memory in GiB: one unit for a whole column.

    Up to two decimals, rounded towards zero, where it is not a whole number of GiB.
    """
    return NOTHING if memory_bytes is None else f"{gib_number(memory_bytes)} GiB"


def gib_number(memory_bytes: int | None) -> str:
    """Write the GiB of an amount of memory under a heading that says the unit; a dash for None."""
    if memory_bytes is None:
        return NOTHING
    whole, hundredths = divmod(abs(memory_bytes) * 100 >> 30, 100)
    sign = "-" if memory_bytes < 0 and (whole or hundredths) else ""
    decimals = f".{hundredths:02}".rstrip("0") if hundredths else ""
    return f"{sign}{whole:,}{decimals}"


def count_text(count: int | None, unit: str = "") -> str:
    """Write a count with thousands separators and, when given, its unit; a dash for None."""
    if count is None:
        return NOTHING
    return f"{count:,} {unit}".rstrip()


def percent_text(part: int, whole: int) -> str:
    """Write ``part`` of ``whole`` in whole percent, rounded down; a dash when there is no whole."""
    return f"{part * 100 // whole} %" if whole > 0 else NOTHING


def duration_text(duration: timedelta) -> str:
    """Write a non-negative duration with two units: ``18s``, ``23m 5s``, ``4h 30m``, ``3d 2h``.

    Source: spec commitments, 8.10.
    """
    seconds = max(0, int(duration.total_seconds()))
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m {seconds % _MINUTE}s"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h {seconds % _HOUR // _MINUTE}m"
    return f"{seconds // _DAY}d {seconds % _DAY // _HOUR}h"


def relative_text(moment: datetime, now: datetime) -> str:
    """Write how far a moment is from now, in one unit, rounded down: ``3 h ago``, ``in 5 d``."""
    seconds = int((moment - now).total_seconds())
    distance = abs(seconds)
    if distance < _MINUTE:
        text = f"{distance} s"
    elif distance < _HOUR:
        text = f"{distance // _MINUTE} min"
    elif distance < _DAY:
        text = f"{distance // _HOUR} h"
    else:
        text = f"{distance // _DAY:,} d"
    return f"in {text}" if seconds > 0 else f"{text} ago"


def moment_text(moment: datetime) -> str:
    """Write a moment in UTC, to the minute."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def time_text(moment: datetime | None, now: datetime) -> str:
    """Write a moment in UTC with how far it is from now; a dash for None."""
    if moment is None:
        return NOTHING
    return f"{moment_text(moment)} ({relative_text(moment, now)})"


def plural(count: int, one: str, many: str = "") -> str:
    """Write a count with its noun: ``1 slot``, ``2 slots``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
