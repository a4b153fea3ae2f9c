"""Encoded answers of candidate searches that are kept for the next one like it (placement, 6.8).

An answer follows from its query, its version and the snapshot alone. While nothing changes it is
given again as it is. After a change most searches find the same candidates as before, so that only
the summaries of the trees that changed are written anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np

from placement.domain.candidate_encoding import NOTHING, encode_requests, with_summaries
from placement.domain.candidate_options import Slot
from placement.domain.candidates import Candidates
from placement.domain.snapshot import Int32Column, Snapshot, UInt8Column

#: Of what is kept besides the texts.
_BYTES_BESIDES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A body and how many candidates it lists."""

    body: bytes
    found: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Requests:
    """The encoded list of candidates, and what it was made of.

    Attributes:
        uuids: Column of the snapshot; another one may have other providers in the same rows.
    """

    text: bytes
    uuids: UInt8Column
    slots: tuple[Slot, ...]
    columns: tuple[Int32Column, ...]

    def are_of(self, snapshot: Snapshot, candidates: Candidates) -> bool:
        """Return whether encoding some candidates would make this text again."""
        return (
            self.uuids is snapshot.uuids
            and self.slots == candidates.slots
            and all(map(np.array_equal, self.columns, candidates.columns))
        )


class AnswerCache:
    """Keeps the answers of one snapshot and the texts of the last candidates. Safe for threads.

    Args:
        most_bytes: Of all that is kept; what was used least recently goes first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._answers: dict[Hashable, Answer] = {}
        self._answer_bytes = 0
        self._requests: OrderedDict[Hashable, _Requests] = OrderedDict()
        self._request_bytes = 0

    @property
    def size_bytes(self) -> int:
        """About the memory of all that is kept."""
        return self._answer_bytes + self._request_bytes

    def known(self, key: Hashable, snapshot: Snapshot) -> Answer | None:
        """Return the answer if it was given from this very snapshot.

        Args:
            key: All that the answer depends on besides the snapshot.
            snapshot: The providers as they are now.
        """
        with self._lock:
            return self._answers.get(key) if self._snapshot is snapshot else None

    def encoded(
        self, key: Hashable, snapshot: Snapshot, candidates: Candidates, minor: int
    ) -> Answer:
        """Return the answer of a search, and keep it.

        Args:
            key: All that the answer depends on besides the snapshot.
            snapshot: That the candidates were found in.
            candidates: What was found.
            minor: Minor number of the microversion, from 10.
        """
        if not len(candidates):
            return Answer(body=NOTHING, found=0)
        with self._lock:
            before = self._requests.get(key)
        if before is None or not before.are_of(snapshot, candidates):
            before = _Requests(
                text=encode_requests(snapshot, candidates, minor),
                uuids=snapshot.uuids,
                slots=candidates.slots,
                columns=candidates.columns,
            )
        body = with_summaries(before.text, snapshot, candidates, minor)
        answer = Answer(body=body, found=len(candidates))
        with self._lock:
            self._keep(key, snapshot, answer, before)
        return answer

    def _keep(self, key: Hashable, snapshot: Snapshot, answer: Answer, requests: _Requests) -> None:
        if self._snapshot is not snapshot:
            self._forget_answers()
            self._snapshot = snapshot
        self._drop(key)
        if _size(answer.body) + _size(requests.text) > self._most_bytes:
            return
        self._requests[key] = requests
        self._request_bytes += _size(requests.text)
        self._answers[key] = answer
        self._answer_bytes += _size(answer.body)
        while self.size_bytes > self._most_bytes:
            self._drop(next(iter(self._requests)))

    def _drop(self, key: Hashable) -> None:
        requests = self._requests.pop(key, None)
        if requests is not None:
            self._request_bytes -= _size(requests.text)
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._answer_bytes -= _size(answer.body)

    def _forget_answers(self) -> None:
        self._answers = {}
        self._answer_bytes = 0


def _size(text: bytes) -> int:
    return len(text) + _BYTES_BESIDES
