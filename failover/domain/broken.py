"""Which of the five rules a VM breaks, for people (spec failover, 7.2, 7.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from failover.domain.slots import FailoverSlot

OWN, SLOT, SHARER = "own", "slot", "sharer"
_RULES = {
    (OWN, SLOT): ("C1", "a reservation is on the VM's own host"),
    (SLOT, SLOT): ("C2", "two of its reservations are on this host"),
    (OWN, SHARER): ("C3", "a VM that it shares a reservation with runs on its own host"),
    (SLOT, SHARER): ("C4", "a VM that it shares with runs where one of its reservations is"),
    (SHARER, SHARER): ("C5", "two VMs that it shares with run on this host"),
}
_SHARED_TWICE = ("C5", "it shares two reservations with the same VM")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """A host that a VM's list names twice.

    Attributes:
        rule: ``C1`` to ``C5``.
        words: What is wrong.
        reservations: Reservations that take part, sorted.
    """

    vm_uuid: str
    rule: str
    host: str
    words: str
    reservations: tuple[str, ...]


def broken_rules(vm_uuid: str, slots: Iterable[FailoverSlot]) -> tuple[BrokenRule, ...]:
    """Return what is wrong with a VM's list of hosts, once for each pair of entries.

    Args:
        slots: Its reservations; others are passed over.
    """
    own_slots = [slot for slot in slots if slot.host_of(vm_uuid) is not None]
    if not own_slots:
        return ()
    entries: list[tuple[str, str, str, str]] = [(OWN, str(own_slots[0].host_of(vm_uuid)), "", "")]
    for slot in own_slots:
        entries.append((SLOT, slot.host, slot.name, ""))
        entries += [
            (SHARER, user.host, slot.name, user.vm_uuid)
            for user in slot.users
            if user.vm_uuid != vm_uuid
        ]
    found = []
    for one, other in combinations(entries, 2):
        if one[1] != other[1]:
            continue
        is_same = one[0] == other[0] == SHARER and one[3] == other[3]
        rule, words = _SHARED_TWICE if is_same else _RULES[_pair(one[0], other[0])]
        names = tuple(sorted({name for name in (one[2], other[2]) if name}))
        found.append(
            BrokenRule(vm_uuid=vm_uuid, rule=rule, host=one[1], words=words, reservations=names)
        )
    return tuple(found)


def _pair(one: str, other: str) -> tuple[str, str]:
    order = (OWN, SLOT, SHARER)
    first, second = sorted((one, other), key=order.index)
    return first, second
