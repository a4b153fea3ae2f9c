"""Plug-ins that installed packages offer.

``importlib.metadata`` takes megabytes that an agent without plug-ins need not have, so it is loaded
only where the text of an installed package names the group.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def entry_points_of(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group, none where no package has any."""
    if not any(_may_offer(Path(place or "."), group) for place in sys.path):
        return ()
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    return entry_points(group=group)


def _may_offer(place: Path, group: str) -> bool:
    """Return whether packages in a place name a group; a place that is no folder may."""
    if not place.is_dir():
        return place.exists()
    listed = place.glob("*.*-info/entry_points.txt")
    return any(
        f"[{group}]" in path.read_text(encoding="utf-8", errors="replace") for path in listed
    )
