"""What stored slots take, and take once they are smaller or cut (spec commitments, 10.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.ledger.blocking import blocked_resources
from capacity.ledger.sharing import InsideVM, divide_vms
from scheduling.needs import NO_NEEDS, Needs
from scheduling.resources import ZERO, ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRoom:
    """What a stored slot takes now.

    Attributes:
        host_ids: Hosts it blocks: target and, in migration, the one it sits on.
        blocked: What it blocks on each of them.
        confirmed: Sum over VMs seen in it.
        expected: Sum over VMs placed in it, not yet seen and held by no in-flight row.
        listed: Sum over all VMs in it, seen or not.
        needs: What it holds of network, disk I/O and GPUs of each of them.
    """

    host_ids: tuple[int, ...] = ()
    blocked: ResourceVector = ZERO
    confirmed: ResourceVector = ZERO
    expected: ResourceVector = ZERO
    listed: ResourceVector = ZERO
    needs: Needs = NO_NEEDS


def shrunk_block(room: SlotRoom, smaller: ResourceVector) -> ResourceVector:
    """Return what a slot blocks once it is ``smaller``; a slot in migration blocks more."""
    return blocked_resources(
        slot=smaller,
        confirmed=room.confirmed,
        expected=room.expected,
        is_moving=len(room.host_ids) > 1,
    )


def divided_rooms(room: SlotRoom, pieces: Sequence[ResourceVector]) -> tuple[SlotRoom, ...]:
    """Return what the pieces of a slot take; what they block adds up to what it blocks.

    Of what it needs besides they are said to give back nothing, as each rounds up its part.
    """
    is_moving = len(room.host_ids) > 1
    inside = (
        InsideVM(resources=room.confirmed, is_confirmed=True),
        InsideVM(resources=room.expected),
        InsideVM(resources=room.listed - room.confirmed - room.expected, is_held=True),
    )
    parts = zip(*divide_vms(inside, pieces, is_moving=is_moving), strict=True)
    rooms = []
    for piece, (confirmed, expected, held) in zip(pieces, parts, strict=True):
        part = replace(
            room,
            confirmed=confirmed,
            expected=expected,
            listed=confirmed + expected + held,
            needs=NO_NEEDS,
        )
        rooms.append(replace(part, blocked=shrunk_block(part, piece) if room.host_ids else ZERO))
    return tuple(rooms)
