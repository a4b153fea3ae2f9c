"""Which app reads, writes and dumps which section of a region file (spec region-file).

Lower apps must not import higher ones, so every app registers its sections and steps when Django
starts; a *witness* surrounds the whole run, whether it ends well or not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosts.region.node import Json, Node
    from hosts.region.run import ImportRun


class Shape(Enum):
    """How the elements of a section are held."""

    LIST = "list"
    MAP = "map"
    MEMBERS = "members"


class Phase(Enum):
    """When a step of the import runs.

    Attributes:
        WRITE: Turns what was read into rows.
        PRUNE: Removes what the files do not hold, in reverse order.
        FINISH: Recomputes what depends on the rows.
        FOLLOW_UP: Works on what was imported, such as placing slots; never in a dry run.
    """

    WRITE = "write"
    PRUNE = "prune"
    FINISH = "finish"
    FOLLOW_UP = "follow_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What goes into a dump.

    Attributes:
        with_ended: Also commitments that are superseded or expired.
    """

    with_ended: bool = False


Reader = Callable[["ImportRun"], Callable[["Node"], None]]
Witness = Callable[["ImportRun"], AbstractContextManager[None]]
Dumper = Callable[[DumpOptions], Iterator["Json"]]
GoneVMs = Mapping[tuple[int, str], int]
"""How many VMs, by key of the host that they were on and their status there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSection:
    """A section of the file.

    Attributes:
        path: JSON path of the list or map, such as ``compute.servers``.
        reader: Called once a run; returns what takes each element as it is parsed.
        dumper: Yields the elements, or pairs of key and element, in canonical order; None for what
            only live clouds tell: region files have no such section.
        shape: List of objects, map of objects, or plain members.
    """

    path: str
    reader: Reader
    dumper: Dumper | None
    shape: Shape = Shape.LIST


@dataclass(frozen=True, slots=True)
class Step:
    """A named step of a phase; lower ``order`` runs first.

    Attributes:
        after: Sections of which one at least was read, or there is nothing to do; empty for always.
        is_divided: It opens its transactions itself; any other is one part of the import.
    """

    phase: Phase
    order: int
    name: str
    run: Callable[[ImportRun], None]
    _: KW_ONLY
    after: frozenset[str] = frozenset()
    is_divided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the writers of hosts and VMs ask of the ledger, which lies above them.

    Attributes:
        lock_zones: Takes the planners' locks of zones; called first in a transaction.
        settle: Makes the rooms of hosts, by key, agree with what was written; called last in it.
    """

    lock_zones: Callable[[Iterable[str]], None]
    settle: Callable[[Collection[int]], object]


class Registry:
    """The sections and steps that the apps registered.

    Attributes:
        witnesses: What surrounds a run, by name.
        expectations: Who expects lists of VMs to be about as long as they were, by name; see
            :meth:`expect_fewer`.
        ledger: Filled when Django starts.
    """

    ledger: Ledger

    def __init__(self) -> None:
        self._sections: dict[str, RegionSection] = {}
        self._steps: dict[tuple[Phase, str], Step] = {}
        self.witnesses: dict[str, Witness] = {}
        self.expectations: dict[str, Callable[[GoneVMs], None]] = {}

    def add(self, *parts: RegionSection | Step) -> None:
        """Register sections and steps; the same path or name again replaces the one before."""
        for part in parts:
            if isinstance(part, RegionSection):
                self._sections[part.path] = part
            else:
                self._steps[part.phase, part.name] = part

    def expect_fewer(self, gone: GoneVMs) -> None:
        """Tell what lists of VMs lack from now on, as a live cloud says itself.

        It has them no more, or in another zone, or shelved. To be called in the transaction in
        which that is written: who counts a list sees both or neither.
        """
        if gone:
            for name in sorted(self.expectations):
                self.expectations[name](gone)

    def sections(self) -> tuple[RegionSection, ...]:
        """Return the sections of region files, by path."""
        return tuple(one for one in self.live_sections() if one.dumper is not None)

    def live_sections(self) -> tuple[RegionSection, ...]:
        """Return all sections, also those that only live clouds have, by path."""
        return tuple(self._sections[path] for path in sorted(self._sections))

    def steps(self, phase: Phase) -> list[Step]:
        """Return the steps of a phase in order; what is written last is pruned first."""
        return sorted(
            (step for step in self._steps.values() if step.phase is phase),
            key=lambda step: (step.order, step.name),
            reverse=phase is Phase.PRUNE,
        )


registry = Registry()
