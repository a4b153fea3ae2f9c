"""What clients of the API asked of the region's hosts (spec placement, 8.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from journal.statements import fetch_rows
from placement.models import Origin

_REQUESTED: Final = """
SELECT name, requested_traits, requested_aggregates FROM placement_provider
 WHERE origin = %s AND (requested_traits IS NOT NULL OR requested_aggregates IS NOT NULL)
"""


def requested_groups() -> Iterator[tuple[str, list[str] | None, dict[str, str] | None]]:
    """Yield host, traits, and aggregates (UUID -> name, may be empty); None: never asked for."""
    yield from fetch_rows(_REQUESTED, [Origin.HOST])
