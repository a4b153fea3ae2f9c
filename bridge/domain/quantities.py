"""How amounts and times are written in Kubernetes (spec commitments, 2)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_SUFFIXES: Final = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")


def memory_quantity(memory_bytes: int) -> str:
    """Return bytes with the largest binary suffix that divides them exactly; plain when none."""
    for power, suffix in zip(range(6, 0, -1), _SUFFIXES, strict=True):
        unit = 1 << (10 * power)
        if memory_bytes and memory_bytes % unit == 0:
            return f"{memory_bytes // unit}{suffix}"
    return str(memory_bytes)


def timestamp(moment: datetime | None) -> str | None:
    """Return a time as Kubernetes prints one: UTC, whole seconds."""
    if moment is None:
        return None
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
