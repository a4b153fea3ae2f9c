"""Which reservations a VM may join, and on which hosts it may get a new one (spec failover, 17.5).

Sets of reservations and of hosts are Python integers used as bit sets. With the hosts of everybody
who shares something kept per reservation, a question is a handful of ORs instead of trial and
error, and a join touches only those who share the reservation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from failover.domain.bits import bit_rows, grouped_or, rows_as_ints, transposed_bits

Int64Column = NDArray[np.int64]


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
        # Per host: reservations with a user there or located there; those that VMs of it may not
        # join (K of 17.5) or that are located there.
        self._touching: list[int] = [0] * host_count
        self._closed: list[int] = [0] * host_count
        # Per reservation: hosts of its users and its own; K; reservations that share a user.
        self._hosts: list[int] = []
        self._blocks: list[int] = []
        self._shares: list[int] = []
        # Sizes of the sets in _blocks, and which of them have to be counted again.
        self._counts: Int64Column = np.zeros(64, dtype=np.int64)
        self._uncounted: set[int] = set()

    @classmethod
    def from_columns(
        cls,
        host_count: int,
        vm_host: Sequence[int],
        slot_host: Int64Column,
        member_slot: Int64Column,
        member_vm: Int64Column,
    ) -> EligibilityEngine:
        """Build the engine of a whole zone at once.

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
        for slot, vm in zip(member_slot.tolist(), member_vm.tolist(), strict=True):
            engine.slot_users[slot].append(vm)
            engine.vm_slots[vm].append(slot)
        hosts_of_vms = np.array(engine.vm_host, dtype=np.int64)
        user_host = hosts_of_vms[member_vm] if len(member_vm) else member_vm
        pair_slot = np.concatenate([member_slot, np.arange(slots)])
        pair_host = np.concatenate([user_host, slot_host])
        hosts = bit_rows(slots, host_count, pair_slot, pair_host)
        engine._hosts = rows_as_ints(hosts)
        engine._touching = rows_as_ints(bit_rows(host_count, slots, pair_host, pair_slot))
        listed = grouped_or(hosts, member_slot, member_vm, len(engine.vm_host))
        blocks = grouped_or(listed, member_vm, member_slot, slots)
        engine._blocks = rows_as_ints(blocks)
        blocks |= bit_rows(slots, host_count, np.arange(slots), slot_host)
        engine._closed = rows_as_ints(transposed_bits(blocks, host_count))
        engine._shares = rows_as_ints(_sharing_rows(slots, member_slot, member_vm))
        engine._counts = np.array([one.bit_count() for one in engine._blocks], dtype=np.int64)
        return engine

    def add_slot(self, host: int) -> int:
        """Add a reservation without users; return its number."""
        slot = len(self.slot_host)
        bit = 1 << slot
        self.slot_host.append(host)
        self.slot_users.append([])
        self._hosts.append(1 << host)
        self._blocks.append(0)
        self._shares.append(0)
        self._uncounted.add(slot)
        self._touching[host] |= bit
        self._closed[host] |= bit
        self.alive |= bit
        return slot

    def eligible_slots(self, vm: int) -> int:
        """Return the bit set of the reservations that a VM may join by the rules.

        Source: spec failover, 7.6 (without sizes), 17.5.
        """
        blocked = self._closed[self.vm_host[vm]]
        own_slots = self.vm_slots[vm]
        if own_slots:
            touching, vm_host, slot_host = self._touching, self.vm_host, self.slot_host
            for slot in own_slots:
                blocked |= touching[slot_host[slot]] | (1 << slot)
                for user in self.slot_users[slot]:
                    if user != vm:
                        blocked |= touching[vm_host[user]]
        return self.alive & ~blocked

    def closed_hosts(self, vm: int) -> int:
        """Return the bit set of the hosts on which a VM may not get a new reservation.

        Its own, those of its reservations, and those of everybody it shares one with.
        """
        closed = 1 << self.vm_host[vm]
        for slot in self.vm_slots[vm]:
            closed |= self._hosts[slot]
        return closed

    def block_counts(self, slots: Int64Column) -> Int64Column:
        """Return int64[K], on how many hosts some reservations are closed to a VM."""
        if len(self._counts) < len(self._blocks):
            fresh = np.zeros(2 * len(self._blocks), dtype=np.int64)
            fresh[: len(self._counts)] = self._counts
            self._counts = fresh
        for slot in self._uncounted:
            self._counts[slot] = self._blocks[slot].bit_count()
        self._uncounted.clear()
        return self._counts[slots]

    def join(self, vm: int, slot: int) -> None:
        """Let a VM join a reservation; the caller has asked :meth:`eligible_slots`."""
        host, slot_host, users = self.vm_host[vm], self.slot_host[slot], self.slot_users[slot]
        bit, host_bit = 1 << slot, 1 << host
        closed, blocks, shares = self._closed, self._blocks, self._shares
        sharing = shares[slot] | bit
        closed[host] |= sharing
        uncounted = self._uncounted
        uncounted.add(slot)
        for user in users:
            for other in self.vm_slots[user]:
                if other != slot:
                    blocks[other] |= host_bit
                    uncounted.add(other)
        gained = host_bit | (1 << slot_host)
        if self.vm_slots[vm]:
            sharing |= self._link(vm, slot)
            for other in self.vm_slots[vm]:
                gained |= self._hosts[other]
        blocks[slot] |= gained
        shares[slot] = sharing
        self._hosts[slot] |= host_bit
        self._touching[host] |= bit
        users.append(vm)
        self.vm_slots[vm].append(slot)

    def _link(self, vm: int, slot: int) -> int:
        """Let a VM's earlier reservations and a new one see each other's hosts."""
        bit, closed, vm_host = 1 << slot, self._closed, self.vm_host
        others = 0
        for other in self.vm_slots[vm]:
            others |= 1 << other
            self._shares[other] |= bit
            self._blocks[other] |= self._hosts[slot]
            self._uncounted.add(other)
            closed[self.slot_host[other]] |= bit
            for user in self.slot_users[other]:
                closed[vm_host[user]] |= bit
        closed[self.slot_host[slot]] |= others
        for user in self.slot_users[slot]:
            closed[vm_host[user]] |= others
        return others


def _sharing_rows(
    slots: int, member_slot: Int64Column, member_vm: Int64Column
) -> NDArray[np.uint8]:
    """Return uint8[R, R / 8]: for each reservation those that have a user in common with it."""
    order = np.argsort(member_vm, kind="stable")
    slot, vm = member_slot[order], member_vm[order]
    starts = np.flatnonzero(np.r_[True, vm[1:] != vm[:-1]]) if len(vm) else vm
    counts = np.diff(np.r_[starts, len(vm)])
    left, right = [slot], [slot]
    for distance in range(1, int(counts.max(initial=0))):
        same = vm[distance:] == vm[:-distance]
        one, other = slot[:-distance][same], slot[distance:][same]
        left += [one, other]
        right += [other, one]
    return bit_rows(slots, slots, np.concatenate(left), np.concatenate(right))
