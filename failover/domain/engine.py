"""Which reservations a VM may join, and on which hosts it may get a new one (spec failover, 17.5).

Sets of reservations and of hosts are Python integers used as bit sets. A set is worked out from
users and hosts at the first question that needs it, and kept from then on: a question is a handful
of ORs instead of trial and error, a join touches only those who share the reservation, and of a
zone where a few VMs miss something only what is around them is ever looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from failover.domain.bits import bits_of

Int64Column = NDArray[np.int64]

_UNKNOWN = -1


class EligibilityEngine:
    """Reservations of a zone, their users, and whom they block; changed in place.

    Hosts, VMs and reservations are numbers from 0. The rules of failover 7.2 must hold for what it
    is given; every join that it allows keeps them.

    Attributes:
        vm_host: VM -> host it runs on.
        vm_slots: VM -> its reservations in the order of joining.
        slot_host: Reservation -> host that holds it.
        slot_users: Reservation -> its users in the order of joining.
        alive: Bit set of the reservations that may be joined at all.
    """

    def __init__(self, host_count: int, vm_host: Iterable[int] = ()) -> None:
        self.vm_host: list[int] = list(vm_host)
        self.vm_slots: list[list[int]] = [[] for _ in self.vm_host]
        self.slot_host: list[int] = []
        self.slot_users: list[list[int]] = []
        self.alive = 0
        # Per host: VMs that have reservations; reservations that are there.
        self._vms_on: list[list[int]] = [[] for _ in range(host_count)]
        self._slots_on: list[list[int]] = [[] for _ in range(host_count)]
        # Per host, where known: reservations with a user there or located there; those that VMs of
        # it may not join (K of 17.5) or that are located there. A join adds to dozens of the
        # latter, each asked for later or never: these are written in place.
        self._touching: dict[int, int] = {}
        self._closed: dict[int, bytearray] = {}
        # Per reservation: hosts of its users and its own; how many K has; K, where known.
        self._hosts: list[int] = []
        self._counts: Int64Column = np.zeros(64, dtype=np.int64)
        self._blocks: dict[int, bytearray] = {}
        self._host_bytes = (host_count + 7) >> 3

    @classmethod
    def from_columns(
        cls,
        host_count: int,
        vm_host: Sequence[int],
        slot_host: Int64Column,
        member_slot: Int64Column,
        member_vm: Int64Column,
    ) -> EligibilityEngine:
        """Return the engine of a whole zone.

        Args:
            host_count: Hosts of the zone.
            vm_host: VM -> host.
            slot_host: int64[R], reservation -> host.
            member_slot: int64[A], reservation of each membership, in the order of joining.
            member_vm: int64[A], VM of each membership.
        """
        engine = cls(host_count, vm_host)
        slots = len(slot_host)
        engine.slot_host = slot_host.tolist()
        engine.slot_users = [[] for _ in range(slots)]
        engine.alive = (1 << slots) - 1
        for slot, host in enumerate(engine.slot_host):
            engine._slots_on[host].append(slot)
        for slot, vm in zip(member_slot.tolist(), member_vm.tolist(), strict=True):
            engine.slot_users[slot].append(vm)
            engine._note_slot(vm, slot)
        engine._hosts = [_UNKNOWN] * slots
        engine._counts = np.full(max(slots, 64), _UNKNOWN, dtype=np.int64)
        return engine

    def add_slot(self, host: int) -> int:
        """Add a reservation without users; return its number."""
        slot = len(self.slot_host)
        bit = 1 << slot
        self.slot_host.append(host)
        self.slot_users.append([])
        self._slots_on[host].append(slot)
        self._hosts.append(1 << host)
        if slot == len(self._counts):
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._counts[slot] = 0
        if host in self._touching:
            self._touching[host] |= bit
        self._close((host,), (slot,))
        self.alive |= bit
        return slot

    def eligible_slots(self, vm: int) -> int:
        """Return the bit set of the reservations that a VM may join by the rules.

        Source: spec failover, 7.6 (without sizes), 17.5.
        """
        return self.alive & ~self.blocked_slots(vm)

    def blocked_slots(self, vm: int) -> int:
        """Return the bit set of the reservations that a VM may not join by the rules."""
        blocked = int.from_bytes(self._closed_to(self.vm_host[vm]), "little")
        for slot in self.vm_slots[vm]:
            blocked |= self._touching_on(self.slot_host[slot]) | (1 << slot)
            for user in self.slot_users[slot]:
                if user != vm:
                    blocked |= self._touching_on(self.vm_host[user])
        return blocked

    def closed_hosts(self, vm: int) -> int:
        """Return the bit set of the hosts on which a VM may not get a new reservation.

        Its own, those of its reservations, and those of everybody it shares one with.
        """
        closed = 1 << self.vm_host[vm]
        for slot in self.vm_slots[vm]:
            closed |= self._hosts_of(slot)
        return closed

    def block_counts(self, slots: Int64Column) -> Int64Column:
        """Return int64[K], on how many hosts some reservations are closed to a VM."""
        counts = self._counts[slots]
        for place in np.flatnonzero(counts < 0).tolist():
            counts[place] = self._count(int(slots[place]))
        return counts

    def join(self, vm: int, slot: int) -> None:
        """Let a VM join a reservation; the caller has asked :meth:`eligible_slots`."""
        host, users, own = self.vm_host[vm], self.slot_users[slot], self.vm_slots[vm]
        host_of, slot_host = self.vm_host, self.slot_host
        sharing = {slot}
        for user in users:
            sharing.update(self.vm_slots[user])
        self._close((host,), sharing)
        gained = (1 << host) | (1 << slot_host[slot])
        for other in own:
            self._block(other, self._hosts_of(slot))
            self._close(
                (slot_host[other], *[host_of[one] for one in self.slot_users[other]]), (slot,)
            )
            gained |= self._hosts_of(other)
        if own:
            self._close((slot_host[slot], *[host_of[one] for one in users]), own)
        self._block_host(sharing, host)
        self._block(slot, gained)
        if self._hosts[slot] >= 0:
            self._hosts[slot] |= 1 << host
        if host in self._touching:
            self._touching[host] |= 1 << slot
        users.append(vm)
        self._note_slot(vm, slot)

    def _close(self, hosts: Iterable[int], slots: Iterable[int]) -> None:
        """Note that VMs of some hosts may not join some reservations, on hosts asked about."""
        closed = self._closed
        places = [(slot >> 3, 1 << (slot & 7)) for slot in slots]
        for host in hosts:
            row = closed.get(host)
            if row is None:
                continue
            for byte, bit in places:
                if byte >= len(row):
                    row.extend(bytes(len(self.slot_host) // 64 + byte + 1 - len(row)))
                row[byte] |= bit

    def _block_host(self, slots: Iterable[int], host: int) -> None:
        """Note that some reservations are closed to a host's VMs."""
        blocks, counts, byte, bit = self._blocks, self._counts, host >> 3, 1 << (host & 7)
        for slot in slots:
            row = blocks.get(slot)
            if row is None:
                counts[slot] = _UNKNOWN
            elif not row[byte] & bit:
                row[byte] |= bit
                counts[slot] += 1

    def _block(self, slot: int, hosts: int) -> None:
        """Note that a reservation is closed to the VMs of more hosts."""
        row = self._blocks.get(slot)
        if row is None:
            self._counts[slot] = _UNKNOWN
            return
        hosts |= int.from_bytes(row, "little")
        row[:] = hosts.to_bytes(self._host_bytes, "little")
        self._counts[slot] = hosts.bit_count()

    def _count(self, slot: int) -> int:
        hosts = 0
        for other in {one for user in self.slot_users[slot] for one in self.vm_slots[user]}:
            hosts |= self._hosts_of(other)
        self._blocks[slot] = bytearray(hosts.to_bytes(self._host_bytes, "little"))
        count = self._counts[slot] = hosts.bit_count()
        return count

    def _note_slot(self, vm: int, slot: int) -> None:
        own = self.vm_slots[vm]
        if not own:
            self._vms_on[self.vm_host[vm]].append(vm)
        own.append(slot)

    def _touching_on(self, host: int) -> int:
        known = self._touching.get(host)
        if known is None:
            known = self._touching[host] = bits_of(self._slots_touching(host))
        return known

    def _closed_to(self, host: int) -> bytearray:
        known = self._closed.get(host)
        if known is None:
            users = {user for slot in self._slots_touching(host) for user in self.slot_users[slot]}
            slots = {slot for user in users for slot in self.vm_slots[user]}
            bits = bits_of(slots.union(self._slots_on[host]))
            known = self._closed[host] = bytearray(
                bits.to_bytes((len(self.slot_host) + 7) >> 3, "little")
            )
        return known

    def _slots_touching(self, host: int) -> set[int]:
        slots = {slot for vm in self._vms_on[host] for slot in self.vm_slots[vm]}
        return slots.union(self._slots_on[host])

    def _hosts_of(self, slot: int) -> int:
        known = self._hosts[slot]
        if known < 0:
            users = map(self.vm_host.__getitem__, self.slot_users[slot])
            known = self._hosts[slot] = bits_of((self.slot_host[slot], *users))
        return known
