"""Freeing whole hosts by moving empty slots (spec commitments, 25 item 9).

A host that holds nothing but empty slots is free when all of them find room on hosts that are in
use anyway; then the largest flavors fit again. This is consolidation by vector bin packing, which
is NP-hard, and solved greedily: sources with few slots come first, as many of them at once as fit
(bisection over how many; their slots are packed together, largest first), then each one that is
left for itself. Each slot goes where it leaves the least room (the squared length of what is left,
memory and vCPUs as shares of a mean host), so equal slots fill host after host.

Every release makes one more host free and none less, so runs end and nothing is moved to and fro.
Plans go on until neither way finds anything: a plan for the outcome of a plan is empty.

With N hosts, S of them sources, and K kinds of slots, packing a kind costs O(N log N) in NumPy; the
bisection O(K N log N log S); the single attempts O(S N) for each kind on a host, less those that a
count of possible hosts for each kind rules out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from scheduling.columns import BoolColumn, FloatColumn, Int64Column

Filling: TypeAlias = tuple[int, Int64Column, Int64Column]
"""A kind of slot, the hosts that get some, and how many each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotKind:
    """Slots that are alike for every host.

    Attributes:
        memory_bytes: What one takes, above 0.
        vcpus: Likewise.
        passing: bool[N], hosts that every filter lets pass.
        preference: float[N], what the weighers say; decides between hosts that are equally tight.
    """

    memory_bytes: int
    vcpus: int
    passing: BoolColumn
    preference: FloatColumn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompactionState:
    """The hosts of a zone as columns, and the slots that may move.

    Attributes:
        free_memory_bytes: int64[N], negative where a host is over-used; likewise ``free_vcpus``.
        total_memory_bytes: int64[N], effective capacity; likewise ``total_vcpus``.
        is_closed: bool[N], hosts that get no slots: free ones, and those out of service.
        is_source: bool[N], hosts that hold nothing but slots that may move.
        slot_host: int64[M], the host of each slot; only slots of sources matter.
        slot_kind: int64[M], index into ``kinds``.
        kinds: Kinds of slots.
    """

    free_memory_bytes: Int64Column
    free_vcpus: Int64Column
    total_memory_bytes: Int64Column
    total_vcpus: Int64Column
    is_closed: BoolColumn
    is_source: BoolColumn
    slot_host: Int64Column
    slot_kind: Int64Column
    kinds: tuple[SlotKind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRelease:
    """One host that becomes free.

    Attributes:
        host: Its number.
        moves: Number of each of its slots, and of the host that it goes to.
    """

    host: int
    moves: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """Releases that can be carried out in any order, or some of them only.

    No slot moves twice, and none goes to a host that is free or becomes so.

    Attributes:
        releases: In the order in which they were found.
        not_tried: Sources for whose slots the limit had no moves left.
        no_room: Sources whose slots do not all fit elsewhere.
    """

    releases: tuple[HostRelease, ...] = ()
    not_tried: int = 0
    no_room: int = 0

    @property
    def moves(self) -> int:
        """How many slots move."""
        return sum(len(release.moves) for release in self.releases)


def plan_compaction(state: CompactionState, *, most_moves: int) -> CompactionPlan:
    """Return which hosts can be freed, and where their slots go.

    Args:
        most_moves: How many slots may move at most; a host is released as a whole or not at all.

    Source: spec commitments, 25 item 9.
    """
    work = _Compaction(state, most_moves)
    while True:
        found_many = work.release_many()
        if not work.release_each() and not found_many:
            return work.plan()


class _Compaction:
    """The zone while releases are planned."""

    def __init__(self, state: CompactionState, most_moves: int) -> None:
        self._state = state
        self._moves_left = most_moves
        self._memory_bytes = state.free_memory_bytes.copy()
        self._vcpus = state.free_vcpus.copy()
        self._is_open = ~state.is_closed
        self._mean_memory_bytes = max(1.0, float(state.total_memory_bytes.sum()) / _count(state))
        self._mean_vcpus = max(1.0, float(state.total_vcpus.sum()) / _count(state))
        self._slots_on: dict[int, list[int]] = {
            host: [] for host in np.flatnonzero(state.is_source).tolist()
        }
        for slot, host in enumerate(state.slot_host.tolist()):
            if host in self._slots_on:
                self._slots_on[host].append(slot)
        self._target: dict[int, int] = {}
        self._released: list[int] = []
        self._turn = self._order_of_kinds()
        self._not_tried: set[int] = set()

    def plan(self) -> CompactionPlan:
        """Return what was found."""
        own: dict[int, list[int]] = {host: [] for host in self._released}
        for slot, host in enumerate(self._state.slot_host.tolist()):
            if host in own:
                own[host].append(slot)
        left = len(self._sources())
        return CompactionPlan(
            releases=tuple(
                HostRelease(
                    host=host, moves=tuple((slot, self._target[slot]) for slot in own[host])
                )
                for host in self._released
            ),
            not_tried=len(self._not_tried),
            no_room=left - len(self._not_tried),
        )

    def release_many(self) -> bool:
        """Release as many sources at once as fit, the cheapest first; whether any did."""
        sources = self._hopeful(self._sources())
        low, high = 1, self._most_at_once(sources)
        best: list[Filling] | None = None
        while low < high:
            middle = (low + high + 1) // 2
            packed = self._packed(sources[:middle])
            if packed is None:
                high = middle - 1
            else:
                low, best = middle, packed
        if best is None:
            return False
        self._release(sources[:low], best)
        return True

    def release_each(self) -> bool:
        """Release sources one after the other, each if it can be; whether any could."""
        found = False
        self._not_tried.clear()
        for host in self._hopeful(self._sources()):
            if self._new_moves(host) > self._moves_left:
                self._not_tried.add(host)
                continue
            packed = self._packed([host])
            if packed is not None:
                self._release([host], packed)
                found = True
        return found

    def _order_of_kinds(self) -> list[int]:
        """Return the turn of each kind: large ones first, then those that few hosts can take."""
        kinds = self._state.kinds
        order = sorted(
            range(len(kinds)),
            key=lambda number: (
                -self._share(kinds[number].memory_bytes, kinds[number].vcpus),
                int(np.count_nonzero(kinds[number].passing)),
                number,
            ),
        )
        turn = [0] * len(order)
        for position, number in enumerate(order):
            turn[number] = position
        return turn

    def _share(self, memory_bytes: int, vcpus: int) -> float:
        """Return the larger share of a mean host that something takes."""
        return max(memory_bytes / self._mean_memory_bytes, vcpus / self._mean_vcpus)

    def _sources(self) -> list[int]:
        """Return the hosts that may be released, those with fewest slots first, then least load.

        Of zones with hosts of several loads as many are freed in the end as with the least load
        first, with an eighth fewer moves, and twice as many by the first hundred moves.
        """
        total_memory, total_vcpus = self._state.total_memory_bytes, self._state.total_vcpus
        return sorted(
            (host for host, slots in self._slots_on.items() if slots and self._is_open[host]),
            key=lambda host: (
                len(self._slots_on[host]),
                self._share(
                    int(total_memory[host] - self._memory_bytes[host]),
                    int(total_vcpus[host] - self._vcpus[host]),
                ),
                host,
            ),
        )

    def _hopeful(self, sources: Sequence[int]) -> list[int]:
        """Return the sources each of whose slots has some other host at present.

        Room elsewhere only shrinks while releases are found, so the others cannot be released.
        """
        possible: dict[int, BoolColumn] = {}
        counts: dict[int, int] = {}
        hopeful = []
        for host in sources:
            kinds = {int(self._state.slot_kind[slot]) for slot in self._slots_on[host]}
            for number in kinds - possible.keys():
                possible[number] = self._fitting(self._state.kinds[number])
                counts[number] = int(np.count_nonzero(possible[number]))
            if all(counts[number] > bool(possible[number][host]) for number in kinds):
                hopeful.append(host)
        return hopeful

    def _most_at_once(self, sources: Sequence[int]) -> int:
        """Return how many of the first sources can be released at most, by sums and the limit."""
        if not sources:
            return 0
        rows = np.array(sources, dtype=np.int64)
        may = np.cumsum([self._new_moves(host) for host in sources]) <= self._moves_left
        for free, total in (
            (self._memory_bytes, self._state.total_memory_bytes),
            (self._vcpus, self._state.total_vcpus),
        ):
            room = np.maximum(free, 0)
            left = int(room[self._is_open].sum()) - np.cumsum(room[rows])
            may &= np.cumsum(total[rows] - free[rows]) <= left
        possible = np.flatnonzero(may)
        return int(possible[-1]) + 1 if len(possible) else 0

    def _new_moves(self, host: int) -> int:
        """Return how many slots on a host the plan has not moved yet."""
        return sum(slot not in self._target for slot in self._slots_on[host])

    def _fitting(self, kind: SlotKind) -> BoolColumn:
        fits: BoolColumn = (
            self._is_open
            & kind.passing
            & (self._memory_bytes >= kind.memory_bytes)
            & (self._vcpus >= kind.vcpus)
        )
        return fits

    def _packed(self, hosts: Sequence[int]) -> list[Filling] | None:
        """Return where the slots of some hosts fit on the others; None if not all do."""
        counts = Counter(
            int(self._state.slot_kind[slot]) for host in hosts for slot in self._slots_on[host]
        )
        self._is_open[hosts] = False
        done: list[Filling] = []
        for number in sorted(counts, key=self._turn.__getitem__):
            filling = self._filling(number, counts[number])
            if filling is None:
                break
            self._take(filling, 1)
            done.append(filling)
        for filling in done:
            self._take(filling, -1)
        self._is_open[hosts] = True
        return done if len(done) == len(counts) else None

    def _take(self, filling: Filling, sign: int) -> None:
        number, rows, each = filling
        kind = self._state.kinds[number]
        self._memory_bytes[rows] -= sign * each * kind.memory_bytes
        self._vcpus[rows] -= sign * each * kind.vcpus

    def _filling(self, number: int, count: int) -> Filling | None:
        """Return which hosts take slots of a kind, the tightest first; None without room.

        A host that took one is still the tightest for the next, so each is filled in one go.
        """
        kind = self._state.kinds[number]
        rows: Int64Column = np.flatnonzero(self._fitting(kind))
        memory_bytes, vcpus = self._memory_bytes[rows], self._vcpus[rows]
        room = np.minimum(memory_bytes // kind.memory_bytes, vcpus // kind.vcpus)
        if int(room.sum()) < count:
            return None
        left = ((memory_bytes - kind.memory_bytes) / self._mean_memory_bytes) ** 2
        left += ((vcpus - kind.vcpus) / self._mean_vcpus) ** 2
        order = _tightest(left, kind.preference[rows], count)
        taken = np.cumsum(room[order])
        last = int(np.searchsorted(taken, count))
        each = room[order[: last + 1]].copy()
        each[-1] -= int(taken[last]) - count
        return number, rows[order[: last + 1]], each

    def _release(self, hosts: Sequence[int], packed: Sequence[Filling]) -> None:
        """Move the slots of some hosts, which are free then."""
        waiting: dict[int, list[int]] = {}
        for host in hosts:
            for slot in self._slots_on[host]:
                waiting.setdefault(int(self._state.slot_kind[slot]), []).append(slot)
            self._slots_on[host] = []
        for filling in packed:
            self._take(filling, 1)
            number, rows, each = filling
            slots = iter(waiting[number])
            for row, count in zip(rows.tolist(), each.tolist(), strict=True):
                for slot in (next(slots) for _ in range(count)):
                    self._move(slot, row)
        self._is_open[hosts] = False
        self._memory_bytes[hosts] = self._state.total_memory_bytes[hosts]
        self._vcpus[hosts] = self._state.total_vcpus[hosts]
        self._released.extend(hosts)

    def _move(self, slot: int, host: int) -> None:
        if slot not in self._target:
            self._moves_left -= 1
        self._target[slot] = host
        if host in self._slots_on:
            self._slots_on[host].append(slot)


def _tightest(left: FloatColumn, preference: FloatColumn, count: int) -> Int64Column:
    """Return positions by what is left, then by preference, then as they come: at least ``count``.

    Each host takes one slot at least, so no more than ``count`` of them are needed.
    """
    chosen: Int64Column = np.arange(len(left), dtype=np.int64)
    if count < len(left):
        border = np.partition(left, count - 1)[count - 1]
        chosen = np.flatnonzero(left <= border)
    order: Int64Column = np.lexsort((-preference[chosen], left[chosen]))
    return chosen[order]


def _count(state: CompactionState) -> int:
    return max(1, len(state.is_closed))
