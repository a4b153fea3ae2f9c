"""The rounds of the exclusive split between groups that share hosts (spec liquid, 13.7).

The result is that of the literal loop, in far fewer steps. A host is better for a group the less it
would waste and the less it has left, so a group mostly stays on its host. Three things follow:

- Each group keeps a heap of hosts nobody is taking from; the few hosts in use ("warm") are compared
  directly.
- When two rounds can be the same, as many rounds as stay the same are found at once (``_leap``).
- A group left with hosts that only it can use is counted without taking turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduling.columns import Int64Column

MIN_LEAP_ROUNDS = 4
MAX_LEAP_CELLS = 1 << 18
MAX_LEAP_PAUSE = 64


class RoundNeed(NamedTuple):
    """What one group takes per turn, and where it may.

    Attributes:
        memory_bytes: Memory of one slot, positive.
        vcpus: vCPUs of one slot.
        eligible: int64[K], hosts on which one slot fits, ascending.
    """

    memory_bytes: int
    vcpus: int
    eligible: Int64Column


class _Key(NamedTuple):
    """How good a host is for a group: smaller is better."""

    waste_bytes: int
    memory_bytes: int
    vcpus: int
    host: int


class RoundRobin:
    """Groups of one component taking turns; hosts and groups are numbered in name order."""

    def __init__(
        self, *, memory: Int64Column, vcpus: Int64Column, needs: Sequence[RoundNeed]
    ) -> None:
        """Start with what the hosts have left (int64[H] each) and the groups' needs."""
        self.memory: list[int] = memory.tolist()
        self.vcpus: list[int] = vcpus.tolist()
        self._needs = needs
        self._given = [[0] * len(self.memory) for _ in needs]
        self._groups_of: list[set[int]] = [set() for _ in self.memory]
        self._heaps: list[list[_Key]] = []
        for group, need in enumerate(needs):
            for host in need.eligible.tolist():
                self._groups_of[host].add(group)
            self._heaps.append(_sorted_keys(memory, vcpus, need))
        self._eligible_counts = [len(need.eligible) for need in needs]
        self._shared_counts = [
            sum(len(self._groups_of[host]) > 1 for host in need.eligible.tolist()) for need in needs
        ]
        self._most_memory_bytes = max((need.memory_bytes for need in needs), default=0)
        self._most_vcpus = max((need.vcpus for need in needs), default=0)
        self._warm: dict[int, int] = {}
        self._round_number = 0
        self._has_dropped = True

    def run(self) -> list[list[int]]:
        """Take turns until nothing fits; return the slots of each group on each host."""
        order: list[int] = []
        pause = skipped = 0
        while True:
            if self._has_dropped:
                self._count_unshared()
                order = self._order()
                self._has_dropped = False
            if not order:
                return self._given
            turns = self._round(order)
            if self._has_dropped or skipped < pause:
                skipped += 1
                continue
            skipped = 0
            pause = 0 if self._leap(turns) else min(2 * pause + 1, MAX_LEAP_PAUSE)

    def _order(self) -> list[int]:
        groups = (group for group, count in enumerate(self._eligible_counts) if count)
        return sorted(
            groups,
            key=lambda group: (
                self._eligible_counts[group],
                -self._needs[group].memory_bytes,
                -self._needs[group].vcpus,
                group,
            ),
        )

    def _round(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """Let every group take one slot; return the (group, host) pairs in order."""
        self._round_number += 1
        turns = []
        for group in order:
            if not self._eligible_counts[group]:
                continue
            host = self._best_host(group)
            self._take(group, host)
            turns.append((group, host))
        for host in [host for host, last in self._warm.items() if last != self._round_number]:
            del self._warm[host]
            for group in self._groups_of[host]:
                heapq.heappush(self._heaps[group], self._key(group, host))
        return turns

    def _key(self, group: int, host: int) -> _Key:
        memory_bytes = self.memory[host]
        waste_bytes = memory_bytes % self._needs[group].memory_bytes
        return _Key(waste_bytes, memory_bytes, self.vcpus[host], host)

    def _best_cold(self, group: int) -> _Key | None:
        """Return the best host nobody takes from; entries of hosts that changed are dropped."""
        heap = self._heaps[group]
        while heap and heap[0].memory_bytes != self.memory[heap[0].host]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _best_host(self, group: int) -> int:
        best: tuple[int, int, int, int] | None = self._best_cold(group)
        need_bytes = self._needs[group].memory_bytes
        for host in self._warm:  # the hot loop: plain tuples, compared as keys are
            if group not in self._groups_of[host]:
                continue
            memory_bytes = self.memory[host]
            key = (memory_bytes % need_bytes, memory_bytes, self.vcpus[host], host)
            if best is None or key < best:
                best = key
        if best is None:
            raise RuntimeError("a group with eligible hosts has none")
        return best[3]

    def _take(self, group: int, host: int) -> None:
        need = self._needs[group]
        memory_bytes = self.memory[host] = self.memory[host] - need.memory_bytes
        vcpus = self.vcpus[host] = self.vcpus[host] - need.vcpus
        self._given[group][host] += 1
        self._warm[host] = self._round_number
        if memory_bytes >= self._most_memory_bytes and vcpus >= self._most_vcpus:
            return
        leaving = [
            other
            for other in self._groups_of[host]
            if self._needs[other].memory_bytes > memory_bytes or self._needs[other].vcpus > vcpus
        ]
        for other in leaving:
            self._drop(other, host)

    def _drop(self, group: int, host: int) -> None:
        """Note that a host has no room for a group any more."""
        sharing = self._groups_of[host]
        if len(sharing) > 1:
            self._shared_counts[group] -= 1
        sharing.remove(group)
        self._eligible_counts[group] -= 1
        if len(sharing) == 1:
            (last,) = sharing
            self._shared_counts[last] -= 1
        self._has_dropped = True

    def _count_unshared(self) -> None:
        """Give groups whose hosts nobody shares all that fits."""
        for group, need in enumerate(self._needs):
            if self._shared_counts[group] or not self._eligible_counts[group]:
                continue
            self._eligible_counts[group] = 0
            for host in need.eligible.tolist():
                if group not in self._groups_of[host]:
                    continue
                self._groups_of[host].clear()
                slots = self.memory[host] // need.memory_bytes
                if need.vcpus:
                    slots = min(slots, self.vcpus[host] // need.vcpus)
                self.memory[host] -= slots * need.memory_bytes
                self.vcpus[host] -= slots * need.vcpus
                self._given[group][host] += slots

    def _leap(self, turns: Sequence[tuple[int, int]]) -> bool:
        """Repeat a round in which no host dropped out as often as it stays the same.

        Returns:
            Whether it could be repeated at all.
        """
        hosts = list(self._warm)
        columns = {host: column for column, host in enumerate(hosts)}
        memory_used = np.zeros((len(turns) + 1, len(hosts) + 1), dtype=np.int64)
        vcpus_used = np.zeros_like(memory_used)
        for turn, (group, host) in enumerate(turns):
            memory_used[turn + 1 :, columns[host]] += self._needs[group].memory_bytes
            vcpus_used[turn + 1 :, columns[host]] += self._needs[group].vcpus
        memory_step, vcpus_step = memory_used[-1], vcpus_used[-1]
        limit = min(
            self._rounds_without_drop(host, int(memory_step[column]), int(vcpus_step[column]))
            for host, column in columns.items()
        )
        limit = min(limit, MAX_LEAP_CELLS // memory_used.size)
        if limit < MIN_LEAP_ROUNDS:
            return False
        memory, vcpus, is_open = self._compared_hosts(turns, hosts)
        steps = np.arange(limit, dtype=np.int64)
        first_change = _first_change(
            memory=(memory - memory_used[:-1])[:, :, None] - memory_step[None, :, None] * steps,
            vcpus=(vcpus - vcpus_used[:-1])[:, :, None] - vcpus_step[None, :, None] * steps,
            ranks=np.array([[*hosts, self._cold_rank(group)] for group, _ in turns]),
            is_open=is_open,
            memory_needs=np.array([self._needs[group].memory_bytes for group, _ in turns]),
            chosen=np.array([columns[host] for _, host in turns]),
        )
        for host, column in columns.items():
            self.memory[host] -= first_change * int(memory_step[column])
            self.vcpus[host] -= first_change * int(vcpus_step[column])
        for group, host in turns:
            self._given[group][host] += first_change
        return first_change > 0

    def _rounds_without_drop(self, host: int, memory_step: int, vcpus_step: int) -> int:
        """Return how often a host can give its part of a round and still fit all its groups."""
        sharing = self._groups_of[host]
        most_memory = max(self._needs[group].memory_bytes for group in sharing)
        rounds = (self.memory[host] - most_memory) // memory_step
        if vcpus_step:
            most_vcpus = max(self._needs[group].vcpus for group in sharing)
            rounds = min(rounds, (self.vcpus[host] - most_vcpus) // vcpus_step)
        return rounds

    def _cold_rank(self, group: int) -> int:
        cold = self._best_cold(group)
        return cold.host if cold else 0

    def _compared_hosts(
        self, turns: Sequence[tuple[int, int]], hosts: Sequence[int]
    ) -> tuple[Int64Column, Int64Column, npt.NDArray[np.bool_]]:
        """Return memory, vCPUs and openness of the warm hosts and each group's best cold one.

        All are arrays [turns, hosts + 1]; the last column is the cold host.
        """
        memory_rows, vcpus_rows, open_rows = [], [], []
        warm_memory = [self.memory[host] for host in hosts]
        warm_vcpus = [self.vcpus[host] for host in hosts]
        for group, _ in turns:
            cold = self._best_cold(group)
            memory_rows.append([*warm_memory, cold.memory_bytes if cold else 0])
            vcpus_rows.append([*warm_vcpus, cold.vcpus if cold else 0])
            is_shared = [group in self._groups_of[host] for host in hosts]
            open_rows.append([*is_shared, cold is not None])
        return (
            np.array(memory_rows, dtype=np.int64),
            np.array(vcpus_rows, dtype=np.int64),
            np.array(open_rows, dtype=np.bool_),
        )


def _sorted_keys(memory: Int64Column, vcpus: Int64Column, need: RoundNeed) -> list[_Key]:
    """Return the keys of a group's hosts, best first (a sorted list is a heap)."""
    hosts = need.eligible
    waste = memory[hosts] % need.memory_bytes
    order = np.lexsort((hosts, vcpus[hosts], memory[hosts], waste))
    columns = (waste, memory[hosts], vcpus[hosts], hosts)
    return [_Key(*key) for key in zip(*(column[order].tolist() for column in columns), strict=True)]


def _first_change(
    *,
    memory: npt.NDArray[np.int64],
    vcpus: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    is_open: npt.NDArray[np.bool_],
    memory_needs: Int64Column,
    chosen: Int64Column,
) -> int:
    """Return the first round in which some turn would choose another host.

    Args:
        memory: int64[turns, hosts, rounds], bytes left just before the turn.
        vcpus: int64[turns, hosts, rounds], vCPUs left just before the turn.
        ranks: int64[turns, hosts], the last tie-break.
        is_open: bool[turns, hosts], hosts the group of the turn may use.
        memory_needs: int64[turns], bytes per slot.
        chosen: int64[turns], columns of the hosts chosen so far.

    Returns:
        A round, or the number of rounds if nothing changes.
    """
    own = chosen[:, None, None]
    waste = memory % memory_needs[:, None, None]
    is_better = ranks[:, :, None] < np.take_along_axis(ranks, chosen[:, None], axis=1)[:, :, None]
    for component in (vcpus, memory, waste):
        reference = np.take_along_axis(component, own, axis=1)
        is_better = (component < reference) | ((component == reference) & is_better)
    changes = np.flatnonzero((is_better & is_open[:, :, None]).any(axis=(0, 1)))
    return int(changes[0]) if len(changes) else memory.shape[2]
