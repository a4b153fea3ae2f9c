"""The safety rules of failover reservations (spec failover, 7).

All five rules together say one thing: for each VM the list of its own host, the hosts of its
reservations and the hosts of everybody it shares one with names no host twice (7.3). This module is
the plain form, over values; :mod:`failover.domain.engine` answers the same questions for a zone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from failover.domain.graph import DependencyGraph
from failover.domain.slots import FailoverSlot
from hosts.domain.vm import VM


def listed_hosts(vm_uuid: str, own_host: str, slots: Iterable[FailoverSlot]) -> list[str]:
    """Return ``L(v)``: own host, hosts of its reservations, hosts of those it shares one with.

    Args:
        vm_uuid: The VM.
        own_host: Host it runs on.
        slots: Reservations; those without the VM are passed over.

    Source: spec failover, 7.3.
    """
    listed = [own_host]
    for slot in slots:
        if slot.host_of(vm_uuid) is not None:
            listed.append(slot.host)
            listed += [user.host for user in slot.users if user.vm_uuid != vm_uuid]
    return listed


def repeated_hosts(listed: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts that occur more than once, sorted; empty when the rules hold."""
    return tuple(sorted(host for host, count in Counter(listed).items() if count > 1))


def rules_hold(slots: Sequence[FailoverSlot]) -> bool:
    """Return whether every user of the reservations has an all-different ``L(v)``."""
    graph = DependencyGraph.build(slots)
    return all(graph.is_fine(vm_uuid) for vm_uuid in graph.vm_hosts)


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
    known = list(all_reservations)
    if all(slot.name != reservation.name for slot in known):
        known.append(reservation)
    graph = DependencyGraph.build(known)
    host = graph.slot_hosts[reservation.name]
    graph.add(vm.vm_uuid, vm.host, reservation.name, host)
    return graph.is_slot_fine(reservation.name)


def find_eligible_reservations(vm: VM, reservations: Sequence[FailoverSlot]) -> list[FailoverSlot]:
    """Return the reservations that a VM fits into and may join, each by itself, in input order.

    Source: spec failover, 7.6.
    """
    graph = DependencyGraph.build(reservations)
    eligible = []
    for slot in reservations:
        if not fits(vm, slot) or slot.host_of(vm.vm_uuid) is not None:
            continue
        before = graph.vm_hosts.get(vm.vm_uuid)
        graph.add(vm.vm_uuid, vm.host, slot.name, slot.host)
        if graph.is_slot_fine(slot.name):
            eligible.append(slot)
        graph.remove(vm.vm_uuid, slot.name, slot.host)
        if before is not None:
            graph.vm_hosts[vm.vm_uuid] = before
    return eligible


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
