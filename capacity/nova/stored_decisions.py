"""Stored scheduling decisions: why not this host, and the runs of a VM (spec scheduling, 10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from capacity.models import HostListing, SchedulingDecision
from capacity.nova.decision_masks import (
    BoolColumn,
    DamagedMasksError,
    unpack_masks,
    unpack_names,
)

HISTORY_ROWS = 11
"""The current run of a VM and the ten before it (spec scheduling, 10.2)."""

_SCAN_ROWS = 500
_LISTINGS_KEPT = 8


class Fate(StrEnum):
    """What became of a host in a run."""

    UNKNOWN = "unknown"
    NOT_CONSIDERED = "not considered"
    REMOVED = "removed"
    PASSED = "passed"
    CHOSEN = "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFate:
    """What became of one host in one run.

    Attributes:
        fate: What became of it.
        step: The first filter that removed it; empty unless it was removed.
        position: Place among the best hosts, from 1; None if it is not among those that are kept.
        score: Its score; None likewise.
    """

    host_name: str
    fate: Fate
    step: str = ""
    position: int | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedDecision:
    """A decision with the fate of every host.

    Attributes:
        row: The stored decision.
        names: Host names by row number.
        row_of: Host name to row number.
        candidates: bool[N], hosts at the start.
        removed_by: Filter to bool[N], hosts that it was the first to remove, in order.
    """

    row: SchedulingDecision
    names: tuple[str, ...]
    row_of: Mapping[str, int]
    candidates: BoolColumn
    removed_by: tuple[tuple[str, BoolColumn], ...]

    def fate_of(self, host_name: str) -> HostFate:
        """Return what became of a host: the answer to "why not this host?"."""
        number = self.row_of.get(host_name)
        if number is None:
            return HostFate(host_name=host_name, fate=Fate.UNKNOWN)
        if not self.candidates[number]:
            return HostFate(host_name=host_name, fate=Fate.NOT_CONSIDERED)
        for step, mask in self.removed_by:
            if mask[number]:
                return HostFate(host_name=host_name, fate=Fate.REMOVED, step=step)
        return self._passed(host_name)

    def hosts_removed_by(self, step: str) -> tuple[str, ...]:
        """Return the hosts that a filter was the first to remove, sorted."""
        names: list[str] = []
        for name, mask in self.removed_by:
            if name == step:
                names.extend(self._named(mask))
        return tuple(sorted(names))

    def _named(self, mask: BoolColumn) -> list[str]:
        return [self.names[number] for number in np.flatnonzero(mask).tolist()]

    def _passed(self, host_name: str) -> HostFate:
        chosen = self.row.target_host_name == host_name
        fate = Fate.CHOSEN if chosen else Fate.PASSED
        for position, entry in enumerate(self.row.top_hosts, start=1):
            if entry["host"] == host_name:
                return HostFate(
                    host_name=host_name, fate=fate, position=position, score=entry["score"]
                )
        return HostFate(host_name=host_name, fate=fate)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMention:
    """A run in which a host was looked at, and what became of it."""

    row: SchedulingDecision
    fate: HostFate


def decode_decision(row: SchedulingDecision) -> DecodedDecision | None:
    """Return a decision with the fate of every host; None when its masks were not kept.

    Raises:
        DamagedMasksError: the stored masks do not belong to the listing.
    """
    if row.listing is None or row.masks is None:
        return None
    listing = _listing(row.listing)
    steps = [entry["step"] for entry in row.removals if entry["removed"]]
    candidates, *removed = unpack_masks(
        bytes(row.masks), mask_count=len(steps) + 1, host_count=len(listing.names)
    )
    return DecodedDecision(
        row=row,
        names=listing.names,
        row_of=listing.row_of,
        candidates=candidates,
        removed_by=tuple(zip(steps, removed, strict=True)),
    )


def history_of_vm(vm_uuid: str, *, limit: int = HISTORY_ROWS) -> Sequence[SchedulingDecision]:
    """Return the last runs for a VM, newest first."""
    rows = SchedulingDecision.objects.filter(vm_uuid=vm_uuid).defer("masks")
    return list(rows.order_by("-id")[:limit])


def decisions_about_host(host_name: str, *, limit: int = 20) -> Sequence[HostMention]:
    """Return at most so many recent runs that considered a host, newest first, with its fate."""
    mentions: list[HostMention] = []
    for row in _newest(_SCAN_ROWS):
        fate = _fate_in(row, host_name)
        if fate is not None and fate.fate not in {Fate.UNKNOWN, Fate.NOT_CONSIDERED}:
            mentions.append(HostMention(row=row, fate=fate))
            if len(mentions) >= limit:
                break
    return mentions


def _newest(count: int) -> Iterator[SchedulingDecision]:
    rows = SchedulingDecision.objects.select_related("listing").defer("listing__names")
    return rows.order_by("-id")[:count].iterator(chunk_size=50)


def _fate_in(row: SchedulingDecision, host_name: str) -> HostFate | None:
    try:
        decoded = decode_decision(row)
    except DamagedMasksError:
        return None  # its own page says so
    return decoded.fate_of(host_name) if decoded is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    names: tuple[str, ...]
    row_of: Mapping[str, int]


def _listing(listing: HostListing) -> _Listing:
    """Return the names of a listing, kept per process by digest: equal digests, equal names."""
    kept = _kept.get(listing.digest)
    if kept is None:
        names = unpack_names(bytes(listing.names))
        kept = _Listing(names=names, row_of={name: number for number, name in enumerate(names)})
        if len(_kept) >= _LISTINGS_KEPT:
            _kept.pop(next(iter(_kept)), None)
        _kept[listing.digest] = kept
    return kept


_kept: dict[str, _Listing] = {}
