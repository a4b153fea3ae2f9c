"""The safety rules of failover reservations (spec failover, 7).

All five rules together say one thing: for each VM the list of its own host, the hosts of its
reservations and the hosts of everybody it shares one with names no host twice (7.3). This module is
the form over values, with hosts as sets; :mod:`failover.domain.engine` answers the same questions
for a zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from failover.domain.slots import FailoverSlot, SlotUser
from hosts.domain.vm import VM


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSets:
    """Reservations as sets of hosts: the own one and those of the users.

    The rules hold for a VM if no two of its sets have a host in common but its own, and none was
    named twice.

    Attributes:
        of_vm: VM -> the set of each of its reservations.
        breakers: Users whose list of hosts (7.3) names one twice.
    """

    of_vm: Mapping[str, Sequence[frozenset[str]]]
    breakers: frozenset[str]

    @classmethod
    def build(cls, slots: Iterable[FailoverSlot], hosts: Mapping[str, str]) -> HostSets:
        """Return the sets of some reservations.

        Args:
            slots: Reservations.
            hosts: VM -> host it runs on, for all users.
        """
        of_vm: dict[str, list[frozenset[str]]] = {}
        breakers: set[str] = set()
        for slot in slots:
            users = [user.vm_uuid for user in slot.users]
            named = frozenset([slot.host, *map(hosts.__getitem__, users)])
            if len(named) <= len(users):
                breakers.update(users)
            for vm_uuid in users:
                of_vm.setdefault(vm_uuid, []).append(named)
        for vm_uuid, sets in of_vm.items():
            if len(sets) > 1:
                different = sum(map(len, sets)) - len(sets) + 1
                if len(frozenset().union(*sets)) != different:
                    breakers.add(vm_uuid)
        return cls(of_vm=of_vm, breakers=frozenset(breakers))


def _hosts_of(slots: Iterable[FailoverSlot]) -> dict[str, str]:
    """Return where the users run; of a VM's recorded hosts the last one read wins."""
    return {user.vm_uuid: user.host for slot in slots for user in slot.users}


def rule_breakers(slots: Sequence[FailoverSlot]) -> frozenset[str]:
    """Return the users whose ``L(v)`` names a host twice."""
    return HostSets.build(slots, _hosts_of(slots)).breakers


def fits(vm: VM, slot: FailoverSlot) -> bool:
    """Return whether a VM fits into a reservation.

    A resource the VM lacks is not checked; one that only the reservation lacks is too small.

    Source: spec failover, 7.6.
    """
    return _covers(slot.memory_bytes, vm.memory_bytes) and _covers(slot.vcpus, vm.vcpus)


def _covers(given: int | None, asked: int | None) -> bool:
    return not asked or (given is not None and given >= asked)


def is_vm_eligible_for_reservation(
    vm: VM, reservation: FailoverSlot, all_reservations: Iterable[FailoverSlot]
) -> bool:
    """Return whether a VM may join a reservation by the rules; its size is not looked at.

    A reservation without name and users stands for a new one on its host. Where
    ``all_reservations`` has one of the same name, that version counts.

    Source: spec failover, 7.5.
    """
    if reservation.host_of(vm.vm_uuid) is not None:
        return False
    known = {slot.name: slot for slot in all_reservations}
    target = known.get(reservation.name, reservation)
    newcomer = SlotUser(vm_uuid=vm.vm_uuid, host=vm.host)
    known[target.name] = target = target.left([vm.vm_uuid]).joined(newcomer)
    hosts = _hosts_of(known.values()) | {vm.vm_uuid: vm.host}
    judged = {user.vm_uuid for user in target.users}
    near = [
        slot
        for slot in known.values()
        if not judged.isdisjoint([user.vm_uuid for user in slot.users])
    ]
    return judged.isdisjoint(HostSets.build(near, hosts).breakers)


def find_eligible_reservations(vm: VM, reservations: Sequence[FailoverSlot]) -> list[FailoverSlot]:
    """Return the reservations that a VM fits into and may join, each by itself, in input order.

    Source: spec failover, 7.6.
    """
    hosts = _hosts_of(reservations) | {vm.vm_uuid: vm.host}
    sets = HostSets.build(reservations, hosts)
    if vm.vm_uuid in sets.breakers:
        return []
    listed = frozenset([vm.host]).union(*sets.of_vm.get(vm.vm_uuid, ()))

    def may_join(slot: FailoverSlot) -> bool:
        users = [user.vm_uuid for user in slot.users]
        return (
            vm.vm_uuid not in users
            and slot.host not in listed
            and sets.breakers.isdisjoint(users)
            and listed.isdisjoint([hosts[user] for user in users])
            and not any(vm.host in named for user in users for named in sets.of_vm[user])
        )

    return [slot for slot in reservations if fits(vm, slot) and may_join(slot)]


def check_vms_still_eligible(
    vms: Iterable[VM], reservations: Sequence[FailoverSlot]
) -> dict[str, list[str]]:
    """Return whom to remove so that the rules hold: reservation -> VM uuids, sorted.

    A VM is removed only for a part in a conflict, and never needlessly. VMs that are not in
    ``vms`` are not judged.

    Source: spec failover, 7.7 (product rule).
    """
    from failover.domain.blame import memberships_to_remove  # noqa: PLC0415 - it needs this module

    removed: dict[str, list[str]] = {}
    for name, vm_uuid in memberships_to_remove({vm.vm_uuid: vm.host for vm in vms}, reservations):
        removed.setdefault(name, []).append(vm_uuid)
    return {name: sorted(removed[name]) for name in sorted(removed)}
