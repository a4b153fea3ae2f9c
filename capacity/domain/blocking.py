"""What a reservation still takes from its host (spec commitments, 10.1)."""

from __future__ import annotations

from scheduling.resources import ResourceVector


def blocked_resources(
    *, slot: ResourceVector, confirmed: ResourceVector, expected: ResourceVector
) -> ResourceVector:
    """Return what a reservation blocks beyond its VMs, per component.

    ``max(max(0, slot - confirmed), expected)``.

    Source: spec commitments, 10.1.
    """
    return (slot - confirmed).clamped().maximum(expected)
