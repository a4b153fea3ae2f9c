"""Who shares what with whom (spec failover, 7.4).

Slot hosts are counted, not kept as sets: a VM with two reservations on one host keeps that host
when one of them goes (8.5, G10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from failover.domain.slots import FailoverSlot


@dataclass(slots=True)
class DependencyGraph:
    """Indexes over reservations and their users, kept up to date as users join and leave.

    Attributes:
        vm_slots: VM -> names of its reservations.
        vm_hosts: VM -> host it runs on.
        vm_slot_hosts: VM -> host -> how many of its reservations are there.
        slot_vms: Reservation -> its users.
        slot_hosts: Reservation -> host that holds it.
    """

    vm_slots: dict[str, set[str]] = field(default_factory=dict)
    vm_hosts: dict[str, str] = field(default_factory=dict)
    vm_slot_hosts: dict[str, Counter[str]] = field(default_factory=dict)
    slot_vms: dict[str, set[str]] = field(default_factory=dict)
    slot_hosts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def build(cls, slots: Iterable[FailoverSlot]) -> DependencyGraph:
        """Return the graph of some reservations; of a VM's recorded hosts the last one read wins.

        Source: spec failover, 7.4.
        """
        graph = cls()
        for slot in slots:
            graph.slot_hosts[slot.name] = slot.host
            graph.slot_vms.setdefault(slot.name, set())
            for user in slot.users:
                graph.add(user.vm_uuid, user.host, slot.name, slot.host)
        return graph

    def add(self, vm_uuid: str, vm_host: str, slot_name: str, slot_host: str) -> None:
        """Let a VM join a reservation; joining twice changes nothing but its host."""
        self.vm_hosts[vm_uuid] = vm_host
        self.slot_hosts[slot_name] = slot_host
        self.slot_vms.setdefault(slot_name, set()).add(vm_uuid)
        slots = self.vm_slots.setdefault(vm_uuid, set())
        if slot_name not in slots:
            slots.add(slot_name)
            self.vm_slot_hosts.setdefault(vm_uuid, Counter())[slot_host] += 1

    def remove(self, vm_uuid: str, slot_name: str, slot_host: str) -> None:
        """Let a VM leave a reservation; without any left it is forgotten."""
        slots = self.vm_slots.get(vm_uuid, set())
        if slot_name not in slots:
            return
        slots.discard(slot_name)
        self.slot_vms[slot_name].discard(vm_uuid)
        hosts = self.vm_slot_hosts[vm_uuid]
        hosts[slot_host] -= 1
        if not hosts[slot_host]:
            del hosts[slot_host]
        if not slots:
            del self.vm_slots[vm_uuid], self.vm_slot_hosts[vm_uuid], self.vm_hosts[vm_uuid]

    def joined(self, vm_uuid: str, vm_host: str, slot_name: str, slot_host: str) -> bool:
        """Let a VM join a reservation if the rules then hold for all its users; say whether."""
        self.add(vm_uuid, vm_host, slot_name, slot_host)
        if self.is_slot_fine(slot_name):
            return True
        self.remove(vm_uuid, slot_name, slot_host)
        return False

    def partners(self, vm_uuid: str) -> Counter[str]:
        """Return ``N(v)``: everybody the VM shares with -> how many reservations they share."""
        shared = Counter(
            other for name in self.vm_slots.get(vm_uuid, ()) for other in self.slot_vms[name]
        )
        del shared[vm_uuid]
        return shared

    def is_fine(self, vm_uuid: str) -> bool:
        """Return whether rules C1, C2, C4 and C5 hold for a VM; C3 follows for its reservations.

        Source: spec failover, 7.2, 7.4.
        """
        own_host = self.vm_hosts.get(vm_uuid)
        slot_hosts: Mapping[str, int] = self.vm_slot_hosts.get(vm_uuid, Counter())
        if own_host in slot_hosts or any(count > 1 for count in slot_hosts.values()):
            return False
        seen = {own_host, *slot_hosts}
        for partner, shared in self.partners(vm_uuid).items():
            host = self.vm_hosts[partner]
            if shared > 1 or host in seen:
                return False
            seen.add(host)
        return True

    def is_slot_fine(self, slot_name: str) -> bool:
        """Return whether the rules hold for every user of a reservation."""
        return all(self.is_fine(vm_uuid) for vm_uuid in self.slot_vms.get(slot_name, ()))
