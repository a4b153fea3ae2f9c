"""Which app reads, writes and dumps which section of a region file (spec region-file).

Lower apps must not import higher ones, so every app registers its sections when Django starts:

- a *section* is read element by element while the file is parsed and may be dumped;
- a *writer* turns what was read into rows, inside the one transaction of the import, in order;
- a *pruner* removes what the files do not hold, in reverse order;
- a *finisher* recomputes what depends on the rows, still inside the transaction;
- a *follow-up* runs after the commit, in transactions of its own;
- a *witness* surrounds the whole run, whether it ends well or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What goes into a dump.

    Attributes:
        with_ended: Also commitments that are superseded or expired.
    """

    with_ended: bool = False


Reader = Callable[["ImportRun"], Callable[["Node"], None]]
Writer = Callable[["ImportRun"], None]
Witness = Callable[["ImportRun"], AbstractContextManager[None]]
Dumper = Callable[[DumpOptions], Iterator["Json"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the file.

    Attributes:
        path: JSON path of the list or map, such as ``compute.servers``.
        shape: List of objects, map of objects, or plain members.
        reader: Called once a run; returns what takes each element as it is parsed.
        dumper: Yields the elements, or pairs of key and element, in canonical order.
    """

    path: str
    shape: Shape
    reader: Reader
    dumper: Dumper


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A named step of the import; lower ``order`` runs first."""

    order: int
    name: str
    run: Writer


class Registry:
    """The sections and steps that the apps registered."""

    def __init__(self) -> None:
        self._sections: dict[str, Section] = {}
        self._steps: dict[str, dict[str, Step]] = {
            kind: {} for kind in ("writer", "pruner", "finisher", "follow_up")
        }
        self._witnesses: dict[str, Witness] = {}

    def add_section(self, section: Section) -> None:
        """Register a section; the same path again replaces it."""
        self._sections[section.path] = section

    def add_writer(self, step: Step) -> None:
        """Register a writer."""
        self._steps["writer"][step.name] = step

    def add_pruner(self, step: Step) -> None:
        """Register a pruner; pruners run in descending order."""
        self._steps["pruner"][step.name] = step

    def add_finisher(self, step: Step) -> None:
        """Register a finisher."""
        self._steps["finisher"][step.name] = step

    def add_follow_up(self, step: Step) -> None:
        """Register a follow-up."""
        self._steps["follow_up"][step.name] = step

    def add_witness(self, name: str, witness: Witness) -> None:
        """Register what surrounds a run; the same name again replaces it."""
        self._witnesses[name] = witness

    def witnesses(self) -> tuple[Witness, ...]:
        """Return what surrounds a run, by name."""
        return tuple(self._witnesses[name] for name in sorted(self._witnesses))

    def sections(self) -> tuple[Section, ...]:
        """Return all sections, by path."""
        return tuple(self._sections[path] for path in sorted(self._sections))

    def writers(self) -> tuple[Step, ...]:
        """Return the writers in order."""
        return self._ordered("writer")

    def pruners(self) -> tuple[Step, ...]:
        """Return the pruners, last written first."""
        return tuple(reversed(self._ordered("pruner")))

    def finishers(self) -> tuple[Step, ...]:
        """Return the finishers in order."""
        return self._ordered("finisher")

    def follow_ups(self) -> tuple[Step, ...]:
        """Return the follow-ups in order."""
        return self._ordered("follow_up")

    def _ordered(self, kind: str) -> tuple[Step, ...]:
        return tuple(sorted(self._steps[kind].values(), key=lambda step: (step.order, step.name)))


registry = Registry()
