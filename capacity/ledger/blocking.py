"""What a reservation still takes from its host (spec commitments, 10.1).

The rule stands twice and nowhere else: here, for what is planned, and in SQL, where rows are
written (``sql/capacity_wanted_blocks.sql``). A property test holds them equal.
"""

from __future__ import annotations

from scheduling.resources import ZERO, ResourceVector


def blocked_resources(
    *,
    slot: ResourceVector,
    confirmed: ResourceVector,
    expected: ResourceVector = ZERO,
    is_moving: bool = False,
) -> ResourceVector:
    """Return what a slot blocks beyond its VMs on each of its hosts, per component.

    ``max(max(0, slot - confirmed), expected)``: a VM that outgrew its slot never yields a negative
    block. While a slot moves, its VMs may be on either host and none of them counts as seen.

    Args:
        slot: Size of the reservation.
        confirmed: Sum over VMs seen on the host; the host's allocation has them already.
        expected: Sum over VMs placed, not yet seen and not held by an in-flight reservation.
        is_moving: Whether its target is not the host it is on.

    Source: spec commitments, 10.1.
    """
    seen = ZERO if is_moving else confirmed
    return (slot - seen).clamped().maximum(expected)
