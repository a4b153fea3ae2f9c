"""What a VM on its way between two hosts needs on each beyond what is counted there already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduling.resources import ZERO, ResourceVector

INTENTS = {
    "live-migration": "live_migration",
    "migration": "resize",
    "resize": "resize",
    "evacuation": "evacuate",
}
"""Nova's type of migration to the intent of its rows; a cold migration goes like a resize."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """What one migration needs on one of its hosts.

    Attributes:
        migration: Which; on its source and its target a VM that is resized in place needs both.
        size: What the VM takes there.
    """

    migration: str
    host_id: int
    size: ResourceVector


def needed_holds(
    stays: Iterable[Stay], counted: Mapping[int, ResourceVector]
) -> dict[int, ResourceVector]:
    """Return what has to be held for a VM, by key of each host that needs something.

    Args:
        stays: Of all migrations of the VM. It is moved once at a time: of several the largest
            counts.
        counted: What is counted for the VM as taken, by key of the host.
    """
    sums: dict[tuple[int, str], ResourceVector] = {}
    for stay in stays:
        key = (stay.host_id, stay.migration)
        sums[key] = sums.get(key, ZERO) + stay.size
    needs: dict[int, ResourceVector] = {}
    for (host_id, _), size in sums.items():
        needs[host_id] = needs.get(host_id, ZERO).maximum(size)
    held = {
        host_id: (size - counted.get(host_id, ZERO)).clamped()
        for host_id, size in sorted(needs.items())
    }
    return {host_id: size for host_id, size in held.items() if size != ZERO}
