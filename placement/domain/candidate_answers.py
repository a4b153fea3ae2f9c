"""Encoded answers of candidate searches that are kept for the next one like it (placement, 6.8).

An answer follows from its query, its version and the snapshot alone. While nothing changes it is
given again as it is. After a change most searches find the same candidates as before, so that only
the summaries of the trees that changed are written anew; where no provider began or ceased to have
room, not even the search is repeated.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from placement.domain.candidate_encoding import (
    NOTHING,
    answer_pieces,
    encode_requests,
    shown_trees,
)
from placement.domain.candidate_query import CandidateQuery
from placement.domain.candidates import Candidates
from placement.domain.fair_shares import too_held_trees
from placement.domain.snapshot import (
    BoolColumn,
    Snapshot,
    SnapshotCaches,
    UInt8Column,
)
from placement.domain.summaries import ShownTrees

#: Of what is kept besides the texts.
_BYTES_BESIDES: Final = 4096
_BYTES_PER_TREE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAnswer:
    """An answer.

    Attributes:
        pieces: Of the body; those about many providers are shared with other answers.
        found: How many candidates it lists.
    """

    pieces: Sequence[bytes]
    found: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Room:
    """All of the amounts in a snapshot that the candidates of some search follow from.

    Attributes:
        caches: Of the snapshot; it has others once trees, traits, aggregates or the classes that
            providers have are not the same.
        fits: bool[M] for each class that is asked for, inventories that have room.
        held: bool[T], where holds leave too little; None where nothing is held.
    """

    caches: SnapshotCaches
    fits: tuple[BoolColumn, ...]
    held: BoolColumn | None = None

    def is_same(self, other: Room) -> bool:
        """Return whether a search in both snapshots would find the same."""
        if self.caches is not other.caches or not _are_equal(self.held, other.held):
            return False
        return all(map(_are_equal, self.fits, other.fits))


def _are_equal(left: BoolColumn | None, right: BoolColumn | None) -> bool:
    if left is right or left is None or right is None:
        return left is right
    return np.array_equal(left, right)


def decisive_room(
    snapshot: Snapshot, query: CandidateQuery, *, hides_fully_held: bool = False
) -> Room | None:
    """Return what a search depends on besides its query; None where it is more than that.

    Where several groups ask for the same class, the very amounts that are free decide which of
    them one provider can serve together.

    Args:
        query: The search.
        hides_fully_held: Whether inventories whose free room is all held are left out.
    """
    fits: dict[str, BoolColumn] = {}
    has_held = False
    for group in query.groups:
        for name, amount in group.resources.items():
            columns = snapshot.classes.get(name)
            if columns is None or name in fits:
                return None
            fits[name] = columns.open_to(amount, hides_fully_held=hides_fully_held)
            has_held = has_held or columns.has_held
    held = too_held_trees(snapshot, query) if has_held else None
    return Room(caches=snapshot.caches, fits=tuple(fits.values()), held=held)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Requests:
    """The encoded list of candidates, and what it was made of.

    Attributes:
        shown: Trees whose summaries are shown with them.
        uuids: Column of the snapshot; another one may have other providers in the same rows.
    """

    text: bytes
    shown: ShownTrees | None
    uuids: UInt8Column
    candidates: Candidates
    room: Room | None

    def are_of(self, snapshot: Snapshot, candidates: Candidates) -> bool:
        """Return whether encoding some candidates would make this text again."""
        mine = self.candidates
        if self.uuids is not snapshot.uuids:
            return False
        return mine is candidates or (
            mine.slots == candidates.slots
            and all(map(np.array_equal, mine.columns, candidates.columns))
        )


class AnswerCache:
    """Keeps the answers of one snapshot and the texts of the last candidates. Safe for threads.

    Args:
        most_bytes: Of all that is kept; what was used least recently goes first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._answers: tuple[Snapshot | None, dict[Hashable, CandidateAnswer]] = None, {}
        self._requests: OrderedDict[Hashable, tuple[_Requests, int]] = OrderedDict()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """What is kept in memory at most; texts that answers share are counted for each."""
        return self._bytes

    def __len__(self) -> int:
        """Return of how many searches the candidates are kept."""
        return len(self._requests)

    def known(self, key: Hashable, snapshot: Snapshot) -> CandidateAnswer | None:
        """Return the answer if it was given from this very snapshot.

        Args:
            key: All that the answer depends on besides the snapshot.
            snapshot: The providers as they are now.
        """
        of, answers = self._answers
        return answers.get(key) if of is snapshot else None

    def candidates(self, key: Hashable, room: Room | None) -> Candidates | None:
        """Return what the last search found if it would find the same again.

        Args:
            key: All that the answer depends on besides the snapshot.
            room: What the search depends on besides.
        """
        known = self._requests.get(key)
        if known is None or room is None:
            return None
        before = known[0].room
        return known[0].candidates if before is not None and before.is_same(room) else None

    def encoded(
        self,
        key: Hashable,
        snapshot: Snapshot,
        candidates: Candidates,
        minor: int,
        *,
        room: Room | None = None,
    ) -> CandidateAnswer:
        """Return the answer of a search, and keep it.

        Args:
            key: All that the answer depends on besides the snapshot.
            snapshot: That the candidates were found in.
            candidates: What was found.
            minor: Minor number of the microversion, from 10.
            room: From which the candidates follow, where that is known.
        """
        if not len(candidates):
            return CandidateAnswer(pieces=(NOTHING,), found=0)
        known = self._requests.get(key)
        is_known = known is not None and known[0].are_of(snapshot, candidates)
        if known is not None and is_known:
            text, shown = known[0].text, known[0].shown
        else:
            text = encode_requests(snapshot, candidates, minor)
            shown = shown_trees(snapshot, candidates, minor)
        requests = _Requests(
            text=text,
            shown=shown,
            uuids=snapshot.uuids,
            candidates=candidates,
            room=None if candidates.is_cut else room,
        )
        pieces = answer_pieces(text, snapshot, candidates, minor, shown)
        answer = CandidateAnswer(pieces=pieces, found=len(candidates))
        with self._lock:
            self._keep(key, snapshot, answer, requests)
        return answer

    def _keep(
        self, key: Hashable, snapshot: Snapshot, answer: CandidateAnswer, requests: _Requests
    ) -> None:
        if self._answers[0] is not snapshot:
            self._answers = snapshot, {}
        self._drop(key)
        fits = requests.room.fits if requests.room is not None else ()
        size_bytes = sum(map(len, answer.pieces)) + sum(map(len, fits)) + _BYTES_BESIDES
        if requests.shown is not None:
            size_bytes += _BYTES_PER_TREE * len(requests.shown.few)
        if size_bytes > self._most_bytes:
            return
        self._requests[key] = requests, size_bytes
        self._answers[1][key] = answer
        self._bytes += size_bytes
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._requests)))

    def _drop(self, key: Hashable) -> None:
        kept = self._requests.pop(key, None)
        if kept is not None:
            self._bytes -= kept[1]
        self._answers[1].pop(key, None)
