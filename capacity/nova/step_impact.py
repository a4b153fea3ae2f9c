"""How a weigher changed an order of hosts (spec scheduling, 11)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

PLACES = 5

_Host = TypeVar("_Host", bound=Hashable)


def shift_origins(before: Sequence[_Host], after: Sequence[_Host]) -> tuple[int, ...]:
    """Return where the hosts on the first places of the new order were in the old one.

    Hosts that the old order does not have are left out.
    """
    place_of = {host: place for place, host in enumerate(before)}
    return tuple(place_of[host] for host in after[:PLACES] if host in place_of)


def step_impact(
    before: Sequence[_Host], after: Sequence[_Host], stat_of: Mapping[_Host, float]
) -> float:
    """Return how much a new order matters for a statistic of the hosts.

    Sum over the first five places of the new order: how far the host moved, times how much its
    statistic differs from that of the host that was on this place before.

    Args:
        before: Hosts in the old order.
        after: Hosts in the new order; no host is new in it.
        stat_of: Host -> statistic; a missing host counts 0.

    Source: spec scheduling, 11.
    """
    place_of = {host: place for place, host in enumerate(before)}
    impact = 0.0
    for place, host in enumerate(after[:PLACES]):
        moved = abs(place_of[host] - place)
        if moved:
            formerly = stat_of.get(before[place], 0.0)
            impact += moved * abs(formerly - stat_of.get(host, 0.0))
    return impact
