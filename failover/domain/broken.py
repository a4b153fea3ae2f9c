"""Which of the five rules a VM breaks, for people (spec failover, 7.2, 7.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

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


class Entry(NamedTuple):
    """One element of ``L(v)``: the VM's own host, or what a reservation adds to it.

    Attributes:
        kind: What it is.
        host: The host.
        slot: Reservation; empty for the own host.
        user: Who runs there; the VM itself for hosts of reservations.
    """

    kind: str
    host: str
    slot: str
    user: str


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
    hosts = {user.vm_uuid: user.host for slot in own_slots for user in slot.users}
    found = []
    for one, other in repetitions(vm_uuid, hosts, own_slots):
        is_same = one.kind == other.kind == SHARER and one.user == other.user
        kinds = sorted((one.kind, other.kind), key=(OWN, SLOT, SHARER).index)
        rule, words = _SHARED_TWICE if is_same else _RULES[kinds[0], kinds[1]]
        names = tuple(sorted({one.slot, other.slot} - {""}))
        found.append(
            BrokenRule(vm_uuid=vm_uuid, rule=rule, host=one.host, words=words, reservations=names)
        )
    return tuple(found)


def repetitions(
    vm_uuid: str, hosts: Mapping[str, str], slots: Iterable[FailoverSlot]
) -> Iterator[tuple[Entry, Entry]]:
    """Yield the pairs of entries of a VM's list that name the same host.

    Args:
        hosts: VM -> host, of all users.
        slots: The VM's reservations.
    """
    entries = [Entry(OWN, hosts[vm_uuid], "", vm_uuid)] if vm_uuid in hosts else []
    for slot in slots:
        entries.append(Entry(SLOT, slot.host, slot.name, vm_uuid))
        entries += [
            Entry(SHARER, hosts[user.vm_uuid], slot.name, user.vm_uuid)
            for user in slot.users
            if user.vm_uuid != vm_uuid
        ]
    counts = Counter(entry.host for entry in entries)
    repeated = [entry for entry in entries if counts[entry.host] > 1]
    return (pair for pair in combinations(repeated, 2) if pair[0].host == pair[1].host)
