"""What a page says of the room that a group could still take: how much, where, what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from capacity.figures.zone_capacity import GroupRoom
from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.groups.group_settings import GroupSettings, settings_for_group
from capacity.models import GroupCapacity
from console.base import PageData
from console.links import find_url
from core.text import count_text, gib_text, percent_text, plural
from scheduling.columns import BoolColumn
from scheduling.resources import MIB

HOSTS_SHOWN: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Hosts whose room the group cannot take, or not all of it, for one reason.

    Attributes:
        reason: Why.
        lost_memory_bytes: Free there, and of no use to the group.
        hosts: Rows of the room, most lost first.
    """

    reason: str
    lost_memory_bytes: int
    hosts: tuple[int, ...]


def limits(room: GroupRoom, group: FlavorGroupDef) -> tuple[Limit, ...]:
    """Return what keeps free memory of a zone from being sold as this group, most first.

    Each host with such memory counts for one reason.
    """
    left, usable = room.left_memory_bytes, room.usable_memory_bytes
    smallest_bytes = min(flavor.memory_bytes for flavor in group.flavors if flavor.memory_bytes)
    fewest_vcpus = min(flavor.vcpus for flavor in group.flavors)
    lost = np.where(room.is_admitted, left - usable, left)
    is_small = left < smallest_bytes
    is_dry = (room.left_vcpus < fewest_vcpus) & ~is_small
    is_short = (lost >= smallest_bytes) & ~is_small & ~is_dry
    smallest = group.smallest.name
    reasons: tuple[tuple[str, BoolColumn], ...] = (
        (
            "hosts that do not take this group now: other hardware, down or closed",
            ~room.is_admitted,
        ),
        ("no vCPUs are left", room.is_admitted & is_dry),
        ("vCPUs run out before memory does", room.is_admitted & is_short),
        (f"the hole is smaller than a slot of {smallest}", room.is_admitted & is_small),
        (
            "a rest that no flavor of the group fills",
            room.is_admitted & ~is_small & ~is_dry & ~is_short,
        ),
    )
    found = []
    for reason, mask in reasons:
        rows = np.flatnonzero(mask & (lost > 0))
        if len(rows):
            order = rows[np.argsort(-lost[rows], kind="stable")]
            found.append(
                Limit(
                    reason=reason,
                    lost_memory_bytes=int(lost[rows].sum()),
                    hosts=tuple(order.tolist()),
                )
            )
    return tuple(sorted(found, key=lambda one: -one.lost_memory_bytes))


def sellable_bytes_of(row: GroupCapacity, configured: Mapping[str, GroupSettings]) -> int:
    """Return what one request got when a row was computed, in whole declared units."""
    unit_bytes = settings_for_group(configured, row.group_name).ram_unit_mib * MIB
    return row.free_memory_bytes // unit_bytes * unit_bytes


def sellable_bytes(room: GroupRoom) -> int:
    """Return the memory that one request for the group gets."""
    return int(room.usable_memory_bytes.sum())


def room_page(room: GroupRoom, group: FlavorGroupDef, *, unit_bytes: int) -> PageData:
    """Return what a page shows of a group's room in a zone.

    Args:
        unit_bytes: The declared unit of memory, in which requests are made.
    """
    sellable = sellable_bytes(room)
    units = sellable // unit_bytes
    order = np.argsort(-room.usable_memory_bytes, kind="stable")
    with_room = [int(row) for row in order if room.usable_memory_bytes[row] > 0]
    left = int(room.left_memory_bytes.sum())
    return PageData(
        sellable_bytes=units * unit_bytes,
        sellable=gib_text(units * unit_bytes),
        units=f"{plural(units, 'unit')} of {gib_text(unit_bytes)}",
        hosts=len(room.names),
        admitted=count_text(int(room.is_admitted.sum())),
        with_room=count_text(len(with_room)),
        largest=_host(room, with_room[0]) if with_room else None,
        free=gib_text(left),
        lost=gib_text(left - sellable),
        lost_share=percent_text(left - sellable, left),
        limits=[
            PageData(
                reason=one.reason,
                lost=gib_text(one.lost_memory_bytes),
                hosts=[_host(room, row) for row in one.hosts[:HOSTS_SHOWN]],
                count=count_text(len(one.hosts)),
                hidden=max(0, len(one.hosts) - HOSTS_SHOWN),
            )
            for one in limits(room, group)
        ],
        best=[_host(room, row) for row in with_room[:HOSTS_SHOWN]],
        hidden=max(0, len(with_room) - HOSTS_SHOWN),
    )


def _host(room: GroupRoom, row: int) -> PageData:
    usable, left = int(room.usable_memory_bytes[row]), int(room.left_memory_bytes[row])
    return PageData(
        name=room.names[row],
        url=find_url("host", room.names[row]),
        usable=gib_text(usable),
        left=gib_text(left),
        lost=gib_text(left - usable if room.is_admitted[row] else left),
        vcpus=count_text(int(room.left_vcpus[row])),
    )
