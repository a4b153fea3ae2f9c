"""Bounded subset sums over pieces of few sizes (spec commitments, 6.7; spec liquid, 11.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_SUMS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceClass:
    """Pieces that are as good as each other.

    Attributes:
        memory_bytes: Memory of each piece in bytes, positive.
        piece_count: How many there are.
    """

    memory_bytes: int
    piece_count: int


class ReachableSums:
    """The sums that subsets of pieces can have, each with the first subset found.

    Classes are tried in the order given, so a sum that earlier classes reach alone uses no later
    class. The number of sums is bounded; sums beyond the bound are not found.
    """

    def __init__(
        self, classes: Sequence[PieceClass], ceiling_bytes: int, *, max_sums: int = MAX_SUMS
    ) -> None:
        """Compute the sums from 0 to ``ceiling_bytes`` (inclusive)."""
        self._classes = tuple(classes)
        self._reached_by: dict[int, int] = {0: -1}
        for position, pieces in enumerate(self._classes):
            self._add_class(position, pieces, ceiling_bytes, max_sums)

    def smallest_at_least(self, target_bytes: int) -> int | None:
        """Return the smallest reachable sum of at least ``target_bytes``, None if there is none."""
        return min((s for s in self._reached_by if s >= target_bytes), default=None)

    def largest_at_most(self, target_bytes: int) -> int:
        """Return the largest reachable sum of at most ``target_bytes`` (0 is always reachable)."""
        return max(s for s in self._reached_by if s <= target_bytes)

    def piece_counts(self, sum_bytes: int) -> tuple[int, ...]:
        """Return how many pieces of each class make up a reachable sum, in class order."""
        counts = [0] * len(self._classes)
        while sum_bytes:
            position = self._reached_by[sum_bytes]
            counts[position] += 1
            sum_bytes -= self._classes[position].memory_bytes
        return tuple(counts)

    def _add_class(
        self, position: int, pieces: PieceClass, ceiling_bytes: int, max_sums: int
    ) -> None:
        frontier = sorted(self._reached_by)
        for _ in range(pieces.piece_count):
            following = []
            for reached in frontier:
                new_sum = reached + pieces.memory_bytes
                if new_sum > ceiling_bytes or new_sum in self._reached_by:
                    continue
                if len(self._reached_by) >= max_sums:
                    return
                self._reached_by[new_sum] = position
                following.append(new_sum)
            if not following:
                return
            frontier = following
