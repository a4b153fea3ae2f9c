"""State and result of one import run (spec region-file, rules)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from core.jobs import Run
from hosts.region.node import Node
from journal.progress import Advance, unwatched


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What the operator asked for.

    Attributes:
        prune: Remove what the files do not hold, in the sections that they hold.
        is_dry_run: Do everything, then roll back.
        with_ended: Keep ended commitments as history rows.
        place: Place slots of commitments after the import.
        accepts_shrink: Remove however much the files lack (an operator said so).
    """

    prune: bool = False
    is_dry_run: bool = False
    with_ended: bool = False
    place: bool = True
    accepts_shrink: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One object that was skipped, or kept with a reservation.

    Attributes:
        section: Section it stands in.
        object_id: Its id or name.
        reason: Stable word, such as ``unknown_host``.
        detail: The facts, for a person.
        is_kept: The object has a row all the same.
    """

    section: str
    object_id: str
    reason: str
    detail: str = ""
    is_kept: bool = False


@dataclass(slots=True, kw_only=True)
class SectionCounts:
    """How many objects of a section went which way."""

    section: str
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: int = 0

    @property
    def changed(self) -> int:
        """Rows written or removed."""
        return self.created + self.updated + self.removed


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """What an import did; the command prints it.

    Attributes:
        counts: Counts by section, in writing order.
        remarks: Every skipped or unplaced object with its reason.
        notes: Lines that explain the rest.
        placement: Result of placing slots after the commit, by name.
        refusals: What was not believed, by section or zone, with the reason: nothing was removed
            or released for it.
    """

    counts: dict[str, SectionCounts] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    placement: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    @property
    def has_changes(self) -> bool:
        """Whether any row was written or removed."""
        return any(counts.changed for counts in self.counts.values())

    def of(self, section: str) -> SectionCounts:
        """Return the counts of a section, starting at zero."""
        return self.counts.setdefault(section, SectionCounts(section=section))

    def skip(self, section: str, object_id: str, reason: str, detail: str = "") -> None:
        """Note an object that got no row or was left as it was."""
        self.of(section).skipped += 1
        self.remarks.append(
            Remark(section=section, object_id=object_id, reason=reason, detail=detail)
        )

    def keep(self, section: str, object_id: str, reason: str, detail: str = "") -> None:
        """Note an object that has its row but not everything that belongs to it."""
        self.remarks.append(
            Remark(section=section, object_id=object_id, reason=reason, detail=detail, is_kept=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """What is told while an import runs; the command draws bars with it.

    Attributes:
        bytes_read: Called with the number of bytes read since the last call.
        step_begun: Called with the name of each step.
        step_sized: Called with how much there is to do in this step, by steps that know.
        step_grown: Called by such steps with how much of it was done since the last call.
    """

    bytes_read: Advance = unwatched
    step_begun: Callable[[str], None] = lambda _: None
    step_sized: Callable[[int], None] = lambda _: None
    step_grown: Advance = unwatched


SILENT: Final = ImportProgress()


@dataclass(slots=True, kw_only=True)
class Live:
    """What a run knows of a cloud that it reads, beside the elements of its lists.

    Attributes:
        began: When its reading began, by the database's time: what was written later is newer.
        find_gone: Returns those of some keys of a section that the cloud says do not exist: only
            what it names is removed.
        proves_loss: Returns whether the cloud proves that all a section lacks is gone, however much
            that is.
        deleted: VMs that the cloud lists as deleted.
        frozen: Section to the keys of which the cloud knows nothing at the moment; they stay.
    """

    began: datetime
    find_gone: Callable[[str, Sequence[str]], Collection[str]]
    proves_loss: Callable[[str], bool] = lambda _: False
    deleted: set[str] = field(default_factory=set)
    frozen: dict[str, set[str]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ImportRun(Run):
    """Everything the steps of one run share.

    Attributes:
        options: What was asked for.
        live: The cloud that is read; none for files.
        progress: Told how far the import is.
        report: The result so far.
        sections_seen: Paths of the sections that the files hold.
        stash: What readers collected, by section path.
        closers: Called when the run ends, however it does.
        is_in_part: Whether a transaction of :mod:`hosts.region.writing` is open.
    """

    options: ImportOptions
    live: Live | None = None
    progress: ImportProgress = SILENT
    report: ImportReport = field(default_factory=ImportReport)
    sections_seen: set[str] = field(default_factory=set)
    stash: dict[str, Any] = field(default_factory=dict)  # each section knows its own type
    closers: list[Callable[[], None]] = field(default_factory=list)
    is_in_part: bool = False

    def prunes(self, section: str) -> bool:
        """Whether rows of this section that the files do not hold are to go."""
        return self.options.prune and section in self.sections_seen

    @property
    def is_still(self) -> bool:
        """Whether a live cloud was read and nothing in it had changed."""
        return self.live is not None and not self.report.has_changes

    def takes_loss_of(self, section: str) -> bool:
        """Return whether a list is believed however much it lacks; a live cloud is asked."""
        return self.options.accepts_shrink or (
            self.live is not None and self.live.proves_loss(section)
        )

    def gone(self, section: str, absent: Sequence[str]) -> Collection[str]:
        """Return the keys, of those that a section lacks, whose rows may be removed."""
        if self.live is None or not absent:
            return absent
        frozen = self.live.frozen.get(section, ())
        return self.live.find_gone(section, [key for key in absent if key not in frozen])


class Unique:
    """Refuses the same id twice in a section, across all files of a run."""

    __slots__ = ("_seen", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: set[object] = set()

    def check(self, node: Node, identity: object, key: str = "") -> None:
        """Remember an id.

        Raises:
            RegionFileError: The id was there before.
        """
        if identity in self._seen:
            shown = identity if isinstance(identity, str) else _joined(identity)
            raise node.error(key, f"{self._what} {shown!r} is defined twice")
        self._seen.add(identity)


def _joined(identity: object) -> str:
    return "/".join(map(str, identity)) if isinstance(identity, Iterable) else str(identity)
