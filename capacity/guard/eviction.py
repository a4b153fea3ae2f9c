"""Which slots leave an over-subscribed host (spec commitments, 11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from capacity.guard.amounts import NOTHING, Amounts

_SEARCH_LIMIT = 50_000
"""Steps of the exact search; beyond, the best set found so far is taken."""

_CLASS_LIMIT = 400
"""Kinds of slots up to which the search is tried at all; it goes one level deep for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictableSlot:
    """A committed slot with a target host, as far as taking its host away depends on it.

    Attributes:
        slot: Its size.
        blocked: What it takes from the host beyond its confirmed VMs, and so gives back.
        has_vms: Whether VMs were placed in it.
    """

    slot_id: int
    slot: Amounts
    blocked: Amounts
    has_vms: bool = False

    @property
    def used_memory_bytes(self) -> int:
        """Memory of the slot that it does not give back."""
        return max(0, self.slot.memory_bytes - self.blocked.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPlan:
    """Slots that leave a host together.

    Attributes:
        slot_ids: Their keys, sorted.
        freed: What the host gets back.
        remaining: What the host lacks after that; no slot can give more.
    """

    slot_ids: tuple[int, ...]
    freed: Amounts
    remaining: Amounts

    @property
    def clears(self) -> bool:
        """Whether the host lacks nothing after that."""
        return self.remaining == NOTHING


def excess_resources(free: Amounts) -> Amounts:
    """Return what a host lacks: per resource the free room where it is negative, as positive."""
    return (NOTHING - free).clamped()


def plan_eviction(slots: Iterable[EvictableSlot], excess: Amounts) -> EvictionPlan:
    """Return the set of slots that clears everything a host lacks at once.

    Slots with VMs go only where those without cannot give enough; of both, the set with the least
    memory goes, among equals the one with the least used memory, then the fewest slots. Where all
    slots together cannot clear a resource, as much of it is cleared as they can. A slot that
    gives nothing back never goes.

    Args:
        slots: Candidates on the host.
        excess: What the host lacks, not negative.

    Source: spec commitments, 11 (product rule).
    """
    candidates = sorted(slots, key=lambda slot: slot.slot_id)
    goal = excess.smaller(_freed(candidates))
    empty = [slot for slot in candidates if not slot.has_vms]
    used = [slot for slot in candidates if slot.has_vms]
    chosen = list(least_cover(used, (goal - _freed(empty)).clamped()))
    chosen += least_cover(empty, (goal - _freed(chosen)).clamped())
    freed = _freed(chosen)
    return EvictionPlan(
        slot_ids=tuple(sorted(slot.slot_id for slot in chosen)),
        freed=freed,
        remaining=(excess - freed).clamped(),
    )


def least_cover(slots: Sequence[EvictableSlot], goal: Amounts) -> tuple[EvictableSlot, ...]:
    """Return slots that give back at least the goal with the least memory.

    Among equals the least used memory decides, then the fewest slots. Exact as long as the search
    stays within its limit, which it does for the slots of one host; beyond, the best set found.

    Args:
        slots: Candidates; together they must reach the goal.
        goal: What they must give back.
    """
    if goal == NOTHING:
        return ()
    helpful = [slot for slot in slots if slot.blocked.smaller(goal) != NOTHING]
    kinds = _kinds_of(helpful)
    greedy = _without_surplus(_greedy_cover(helpful, goal), goal)
    if len(kinds) > _CLASS_LIMIT:
        return tuple(greedy)
    counts = _Search(kinds, goal, _cost(greedy)).best_counts()
    if counts is None:
        return tuple(greedy)
    return tuple(
        slot for kind, count in zip(kinds, counts, strict=True) for slot in kind.members[:count]
    )


Cost = tuple[int, int, int]
"""Memory of the slots, used memory in them (both bytes), number of slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Slots that are all the same to the host.

    Attributes:
        members: The slots, sorted by key.
        cost: Cost of one.
        blocked: What one gives back.
    """

    members: tuple[EvictableSlot, ...]
    cost: Cost
    blocked: Amounts


def _kinds_of(slots: Sequence[EvictableSlot]) -> list[_Kind]:
    """Return kinds of slots, those first that give most for their memory."""

    def kind_key(slot: EvictableSlot) -> tuple[int, ...]:
        given = (-amount for amount in slot.blocked.each())
        return (*given, slot.slot.memory_bytes, slot.slot.vcpus)

    ordered = sorted(slots, key=lambda slot: (kind_key(slot), slot.slot_id))
    kinds = []
    for _, group in groupby(ordered, key=kind_key):
        members = tuple(group)
        kinds.append(_Kind(members=members, cost=_cost(members[:1]), blocked=members[0].blocked))
    return kinds


class _Search:
    """Depth-first search over how many slots of each kind go, cut by lower bounds."""

    def __init__(self, kinds: Sequence[_Kind], goal: Amounts, known: Cost) -> None:
        self._kinds = kinds
        self._goal = goal
        self._best_cost = known
        self._best: tuple[int, ...] | None = None
        self._steps_left = _SEARCH_LIMIT
        self._reach = _reach_from(kinds)
        self._price = _prices_from(kinds)

    def best_counts(self) -> tuple[int, ...] | None:
        """Return how many of each kind go; None if nothing beats what was known."""
        self._descend(0, self._goal.each(), (0, 0, 0), ())
        if self._best is None:
            return None
        return self._best + (0,) * (len(self._kinds) - len(self._best))

    def _descend(self, index: int, lacking: _Each, cost: Cost, counts: tuple[int, ...]) -> None:
        self._steps_left -= 1
        if not any(lacking):
            if cost < self._best_cost:
                self._best_cost, self._best = cost, counts
            return
        if self._steps_left <= 0 or self._is_hopeless(index, lacking, cost):
            return
        kind = self._kinds[index]
        gives = kind.blocked.each()
        for count in _counts_to_try(kind, lacking):
            spent = _added(cost, kind.cost, count)
            if spent >= self._best_cost:
                continue
            left = tuple(
                max(0, want - count * give) for want, give in zip(lacking, gives, strict=True)
            )
            self._descend(index + 1, left, spent, (*counts, count))

    def _is_hopeless(self, index: int, lacking: _Each, cost: Cost) -> bool:
        """Whether the kinds from here on cannot reach the goal, or only at a higher price."""
        reach = self._reach[index].each()
        if any(want > most for want, most in zip(lacking, reach, strict=True)):
            return True
        least = max(map(_priced, lacking, self._price[index]))
        return cost[0] + least > self._best_cost[0]


def _counts_to_try(kind: _Kind, lacking: _Each) -> Iterator[int]:
    """Yield how many of a kind may go, most first: never more than clear what it can clear."""
    useful = 0
    for want, give in zip(lacking, kind.blocked.each(), strict=True):
        if want and give:
            useful = max(useful, -(-want // give))
    yield from range(min(useful, len(kind.members)), -1, -1)


def _reach_from(kinds: Sequence[_Kind]) -> list[Amounts]:
    """Return for each position what all kinds from there on give back together."""
    reach = [NOTHING]
    for kind in reversed(kinds):
        reach.append(reach[-1] + _freed(kind.members))
    return reach[::-1]


_Each = tuple[int, ...]
"""Amounts of all resources, in one order."""

_Price = tuple[int, int]
"""Memory that must go, for a resource given back: a fraction. (1, 0) is no price at all."""


def _prices_from(kinds: Sequence[_Kind]) -> list[tuple[_Price, ...]]:
    """Return for each position the lowest price of each resource from there on."""
    none: _Price = (1, 0)
    prices: list[tuple[_Price, ...]] = [(none,) * len(NOTHING.each())]
    for kind in reversed(kinds):
        here = ((kind.cost[0], give) for give in kind.blocked.each())
        prices.append(tuple(map(_cheaper, prices[-1], here)))
    return prices[::-1]


def _cheaper(left: _Price, right: _Price) -> _Price:
    if not right[1]:
        return left
    if not left[1]:
        return right
    return left if left[0] * right[1] <= right[0] * left[1] else right


def _priced(lacking: int, price: _Price) -> int:
    """Return the memory that must go for a lacking amount at a price, rounded up; 0 if unknown."""
    cost, gain = price
    return -(-lacking * cost // gain) if gain else 0


def _greedy_cover(slots: Sequence[EvictableSlot], goal: Amounts) -> list[EvictableSlot]:
    """Return slots that reach the goal, smallest first."""
    chosen: list[EvictableSlot] = []
    lacking = goal
    for slot in sorted(slots, key=lambda slot: (*_cost([slot]), slot.slot_id)):
        if lacking == NOTHING:
            break
        if slot.blocked.smaller(lacking) != NOTHING:
            chosen.append(slot)
            lacking = (lacking - slot.blocked).clamped()
    return chosen


def _without_surplus(chosen: Sequence[EvictableSlot], goal: Amounts) -> list[EvictableSlot]:
    """Drop slots, largest first, that the others can do without."""
    kept = list(chosen)
    freed = _freed(kept)
    for slot in sorted(chosen, key=lambda slot: (-slot.slot.memory_bytes, slot.slot_id)):
        if goal.fits_into(freed - slot.blocked):
            kept.remove(slot)
            freed -= slot.blocked
    return kept


def _cost(slots: Iterable[EvictableSlot]) -> Cost:
    cost = (0, 0, 0)
    for slot in slots:
        cost = _added(cost, (slot.slot.memory_bytes, slot.used_memory_bytes, 1), 1)
    return cost


def _added(cost: Cost, one: Cost, count: int) -> Cost:
    return (cost[0] + count * one[0], cost[1] + count * one[1], cost[2] + count * one[2])


def _freed(slots: Iterable[EvictableSlot]) -> Amounts:
    return sum((slot.blocked for slot in slots), NOTHING)
