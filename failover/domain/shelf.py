"""Reservations of a zone by what their choice depends on (spec failover, 11.1, 17.4)."""

from __future__ import annotations

from bisect import insort

import numpy as np

from failover.domain.bits import bits_as_rows, mask_as_bits
from failover.domain.engine import EligibilityEngine
from failover.domain.plan import BoolColumn, ReuseOrder
from failover.domain.zone_columns import Int64Column

Size = tuple[int, int]
"""(memory in bytes, vCPUs)."""


class SlotShelf:
    """Sizes and user counts of reservations as bit sets; changed in place.

    A reservation with as many users as the limit allows, or more, is full and cannot be joined.
    """

    def __init__(
        self,
        engine: EligibilityEngine,
        *,
        limit: int,
        order: ReuseOrder,
        host_free_memory_bytes: Int64Column,
    ) -> None:
        self._engine = engine
        self._limit = limit
        self._order = order
        self._free = host_free_memory_bytes
        self._sizes: list[Size] = []
        self._of_size: dict[Size, int] = {}
        self._with_users: list[int] = [0] * limit
        self._joinable = 0
        # Of each class of hosts: the reservations there, out of how many; those of them that are
        # joinable, out of which.
        self._class_slots: dict[int, tuple[int, int]] = {}
        self._open: dict[int, tuple[int, int]] = {}

    def fill(self, sizes: Int64Column, is_usable: BoolColumn) -> None:
        """Put the engine's reservations on the shelf.

        Args:
            sizes: int64[R, 2], memory in bytes and vCPUs of each.
            is_usable: bool[R].
        """
        found, codes = np.unique(sizes, axis=0, return_inverse=True)
        codes = codes.reshape(-1)
        for code, (memory_bytes, vcpus) in enumerate(found.tolist()):
            self._sizes.append((memory_bytes, vcpus))
            self._of_size[memory_bytes, vcpus] = mask_as_bits(codes == code)
        users = np.fromiter(map(len, self._engine.slot_users), dtype=np.int64, count=len(codes))
        is_joinable = is_usable & (users < self._limit)
        self._joinable = mask_as_bits(is_joinable) & self._engine.alive
        for count in np.unique(users[is_joinable]).tolist():
            self._with_users[count] = mask_as_bits(is_joinable & (users == count))

    def add(self, slot: int, size: Size) -> None:
        """Put a new reservation without users on the shelf."""
        bit = 1 << slot
        if size not in self._of_size:
            insort(self._sizes, size)
            self._of_size[size] = 0
        self._of_size[size] |= bit
        self._joinable |= bit
        self._with_users[0] |= bit

    def count_user(self, slot: int) -> None:
        """Note that a reservation has one user more."""
        bit = 1 << slot
        before = len(self._engine.slot_users[slot]) - 1
        self._with_users[before] ^= bit
        if before + 1 < self._limit:
            self._with_users[before + 1] |= bit
        else:
            self._joinable ^= bit

    def choose(self, vm: int, size: Size, class_key: int, hosts: BoolColumn, barred: int) -> int:
        """Return the reservation that a VM joins, -1 if there is none.

        Args:
            size: What it needs.
            class_key: Identifies ``hosts``.
            hosts: bool[H], hosts that the VM may run on.
            barred: Bit set of hosts that are not to be proposed to it.
        """
        candidates = self._open_on(class_key, hosts) & ~self._engine.blocked_slots(vm)
        if candidates and barred:
            candidates = self._without_hosts(candidates, barred)
        if not candidates:
            return -1
        fitting = [one for one in self._sizes if one[0] >= size[0] and one[1] >= size[1]]
        if self._order is ReuseOrder.MOST_USERS:
            return self._most_users(candidates, fitting)
        for one in fitting:
            tight = candidates & self._of_size[one]
            if tight and self._order is ReuseOrder.OLDEST:
                return (tight & -tight).bit_length() - 1
            if tight:
                return self._fewest_users(tight)
        return -1

    def _most_users(self, candidates: int, fitting: list[Size]) -> int:
        any_size = 0
        for one in fitting:
            any_size |= self._of_size[one]
        candidates &= any_size
        for users in reversed(self._with_users):
            crowded = candidates & users
            if crowded:
                return (crowded & -crowded).bit_length() - 1
        return -1

    def _fewest_users(self, candidates: int) -> int:
        for users in self._with_users:
            best = candidates & users
            if best:
                break
        if not best & (best - 1):
            return best.bit_length() - 1
        rows = bits_as_rows(best)
        counts = self._engine.block_counts(rows)
        rows = rows[counts == counts.min()]
        if len(rows) > 1:
            slot_host = self._engine.slot_host
            free = self._free[[slot_host[row] for row in rows.tolist()]]
            return int(rows[int(free.argmax())])
        return int(rows[0])

    def _open_on(self, class_key: int, hosts: BoolColumn) -> int:
        """Return the bit set of the reservations on some hosts that may be joined."""
        joinable, found = self._open.get(class_key, (-1, 0))
        if joinable is not self._joinable:
            found = self._joinable & self._slots_on(class_key, hosts)
            self._open[class_key] = self._joinable, found
        return found

    def _slots_on(self, class_key: int, hosts: BoolColumn) -> int:
        """Return the bit set of the reservations on some hosts; kept per key and extended."""
        known, seen = self._class_slots.get(class_key, (0, 0))
        slot_host = self._engine.slot_host
        if seen < len(slot_host):
            known |= mask_as_bits(hosts[slot_host[seen:]]) << seen
            self._class_slots[class_key] = (known, len(slot_host))
        return known

    def _without_hosts(self, candidates: int, barred: int) -> int:
        for slot in bits_as_rows(candidates).tolist():
            if barred >> self._engine.slot_host[slot] & 1:
                candidates ^= 1 << slot
        return candidates


def share_limit(max_users: int, host_count: int, most_required: int) -> int:
    """Return how many VMs may share a reservation.

    Without the bound by hosts, the first reservations of all VMs would use up the hosts that
    their second ones need.

    Source: spec failover, 17.4.
    """
    if most_required <= 0:
        return max_users
    return max(1, min(max_users, (host_count - 1) // most_required))
