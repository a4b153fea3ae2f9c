"""In which order writes are sent again elsewhere, several at a time (docs/gateway.md)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

#: Root of what concerns every tree.
EVERYTHING = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A write and what it is about: two that share anything keep their order.

    Attributes:
        number: Grows with the order in which writes were committed.
        roots: Ids of the trees of providers it touched; 0 for all of them.
        consumers: UUIDs.
    """

    number: int
    roots: frozenset[int] = frozenset()
    consumers: frozenset[str] = frozenset()

    def meets(self, roots: Set[int], consumers: Set[str]) -> bool:
        """Whether it is about any of these."""
        touches_all = EVERYTHING in self.roots and bool(roots or consumers)
        return (
            touches_all
            or EVERYTHING in roots
            or not self.roots.isdisjoint(roots)
            or not self.consumers.isdisjoint(consumers)
        )


def sendable(waiting: Iterable[Subject], busy: Iterable[Subject], *, limit: int) -> list[Subject]:
    """Return the writes that may be sent now: nothing earlier that is not done shares with them.

    Args:
        waiting: In the order of their numbers; those that are refused stand here as well.
        busy: Those that are under way, or must not be sent now.
        limit: How many at most.
    """
    roots: set[int] = set()
    consumers: set[str] = set()
    for subject in busy:
        roots |= subject.roots
        consumers |= subject.consumers
    chosen: list[Subject] = []
    for subject in waiting:
        if len(chosen) == limit:
            break
        if not subject.meets(roots, consumers):
            chosen.append(subject)
        roots |= subject.roots
        consumers |= subject.consumers
    return chosen
