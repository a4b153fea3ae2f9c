"""Which rules are broken, and whom that costs its reservation (spec failover, 7.2, 7.3, 7.7).

A membership goes only if it takes part in a conflict, and comes back if all rules hold with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from failover.domain.graph import DependencyGraph
from failover.domain.rules import rule_breakers
from failover.domain.slots import FailoverSlot, SlotUser

Membership = tuple[str, str]
"""(name of the reservation, VM uuid)."""


def memberships_to_remove(
    vm_hosts: Mapping[str, str], slots: Sequence[FailoverSlot]
) -> tuple[Membership, ...]:
    """Return the memberships to remove so that all rules hold, stale ones first.

    Args:
        vm_hosts: VM uuid -> host it runs on now; users that are missing here are not judged, but
            stand where they were recorded.
        slots: Reservations.

    Returns:
        (reservation, VM) in the order of removal.

    Source: spec failover, 7.7.
    """
    stale = [
        (slot.name, user.vm_uuid)
        for slot in slots
        for user in slot.users
        if vm_hosts.get(user.vm_uuid, user.host) != user.host
    ]
    left = _without(slots, stale)
    removed = _resolve(left, frozenset(vm_hosts))
    return (*stale, *_needed(left, removed))


def _without(
    slots: Iterable[FailoverSlot], memberships: Iterable[Membership]
) -> tuple[FailoverSlot, ...]:
    gone: dict[str, set[str]] = {}
    for name, vm_uuid in memberships:
        gone.setdefault(name, set()).add(vm_uuid)
    return tuple(slot.left(gone[slot.name]) if slot.name in gone else slot for slot in slots)


def _resolve(slots: Sequence[FailoverSlot], judged: frozenset[str]) -> list[Membership]:
    conflicts = [
        suspects
        for everybody in _conflicts(slots)
        if (suspects := frozenset(one for one in everybody if one[1] in judged))
    ]
    if not conflicts:
        return []
    users = {(slot.name, user.vm_uuid): user for slot in slots for user in slot.users}
    removed: list[Membership] = []
    while conflicts:
        counts = Counter(membership for suspects in conflicts for membership in suspects)
        guilty = max(counts, key=lambda one: (counts[one], *_youth(one, users)))
        removed.append(guilty)
        conflicts = [suspects for suspects in conflicts if guilty not in suspects]
    return removed


def _youth(membership: Membership, users: Mapping[Membership, SlotUser]) -> tuple[float, str, str]:
    """Return what breaks ties: the later, then the larger uuid, then the larger name goes."""
    name, vm_uuid = membership
    return users[membership].joined_at, vm_uuid, name


def _conflicts(slots: Sequence[FailoverSlot]) -> list[frozenset[Membership]]:
    """Return the suspects of every repetition in any ``L(v)``, each of which resolves it."""
    breakers = rule_breakers(slots)
    if not breakers:
        return []
    by_vm: dict[str, list[FailoverSlot]] = {}
    hosts: dict[str, str] = {}
    for slot in slots:
        for user in slot.users:
            by_vm.setdefault(user.vm_uuid, []).append(slot)
            hosts[user.vm_uuid] = user.host
    return [
        frozenset(
            (entry.slot, uuid) for entry in pair if entry.slot for uuid in (vm_uuid, entry.user)
        )
        for vm_uuid in sorted(breakers)
        for pair in repetitions(vm_uuid, hosts, by_vm[vm_uuid])
    ]


def _needed(slots: Sequence[FailoverSlot], removed: Sequence[Membership]) -> list[Membership]:
    """Return the removals that are needed: in reverse order each is undone if the rules allow."""
    if not removed:
        return []
    graph = DependencyGraph.build(_without(slots, removed))
    slot_hosts = {slot.name: slot.host for slot in slots}
    hosts = {(slot.name, user.vm_uuid): user.host for slot in slots for user in slot.users}
    kept_out = []
    for membership in reversed(removed):
        name, vm_uuid = membership
        if not graph.joined(vm_uuid, hosts[membership], name, slot_hosts[name]):
            kept_out.append(membership)
    return kept_out[::-1]


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
