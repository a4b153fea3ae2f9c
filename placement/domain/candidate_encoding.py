"""The answer of a candidates request as JSON text, made of encoded pieces (spec placement, 6.5).

Uuids have one length, so all candidates that spread alike over providers are one text in which only
uuids differ: they are made as one array of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placement.domain.candidates import Candidates
from placement.domain.snapshot import (
    UUID_LENGTH,
    BoolColumn,
    Int32Column,
    Int64Column,
    Snapshot,
    UInt8Column,
)
from placement.domain.summaries import ShownTrees, old_summaries, summary_pieces

DICT_FORM = 12
ALL_CLASSES = 27
TRAITS = 17
TREES = 29
MAPPINGS = 34

NOTHING = b'{"allocation_requests":[],"provider_summaries":{}}'

_HOLE = "\0" * UUID_LENGTH
_SLOTS_PER_NUMBER = 8


def encode_candidates(snapshot: Snapshot, candidates: Candidates, minor: int) -> bytes:
    """Return the body of the answer.

    Args:
        snapshot: That the candidates were found in.
        candidates: What was found.
        minor: Minor number of the microversion, from 10.
    """
    if not len(candidates):
        return NOTHING
    requests = encode_requests(snapshot, candidates, minor)
    shown = shown_trees(snapshot, candidates, minor)
    return b"".join(answer_pieces(requests, snapshot, candidates, minor, shown))


def answer_pieces(
    requests: bytes,
    snapshot: Snapshot,
    candidates: Candidates,
    minor: int,
    shown: ShownTrees | None = None,
) -> Sequence[bytes]:
    """Return the body, in pieces, of an answer whose candidates, at least one, are encoded.

    Args:
        requests: The candidates as text.
        snapshot: That they were found in.
        candidates: What was found.
        minor: Minor number of the microversion, from 10.
        shown: What :func:`shown_trees` returns of them.
    """
    if shown is None:
        summaries: Sequence[bytes] = (_old_summaries(snapshot, candidates, minor),)
    else:
        summaries = summary_pieces(snapshot, shown)
    return (
        b'{"allocation_requests":[',
        requests,
        b'],"provider_summaries":{',
        *summaries,
        b"}}",
    )


def shown_trees(snapshot: Snapshot, candidates: Candidates, minor: int) -> ShownTrees | None:
    """Return the trees whose summaries an answer shows; None for versions that do not know trees.

    They stay the same while the candidates and the rows of the providers do.
    """
    if minor < TREES:
        return None
    trees = [snapshot.trees[column] for column in _asked_columns(candidates)]
    return ShownTrees.among(_marked(trees, snapshot.tree_count))


def encode_requests(snapshot: Snapshot, candidates: Candidates, minor: int) -> bytes:
    """Return the texts of the candidates, at least one, joined by commas in their order."""
    if len(candidates.columns) == 1:
        template = _template(candidates, [0], minor)
        return template.filled(snapshot.uuids, candidates.columns).tobytes()[:-1]
    firsts = _first_alike(candidates.columns)
    kinds = _numbered(firsts)
    _, examples, kind_of = np.unique(kinds, return_index=True, return_inverse=True)
    texts: list[bytes] = [b""] * len(candidates)
    for kind, example in enumerate(examples.tolist()):
        template = _template(candidates, [int(first[example]) for first in firsts], minor)
        if len(examples) == 1:
            return template.filled(snapshot.uuids, candidates.columns).tobytes()[:-1]
        at = np.flatnonzero(kind_of == kind)
        block = template.filled(snapshot.uuids, [column[at] for column in candidates.columns])
        length = block.shape[1]
        text = block.tobytes()
        for position, start in zip(at.tolist(), range(0, len(text), length), strict=True):
            texts[position] = text[start : start + length]
    return b"".join(texts)[:-1]


def _first_alike(columns: Sequence[Int32Column]) -> Sequence[Int64Column]:
    """Return int64[M] for each slot: the number of the first slot on the same provider."""
    firsts = []
    for number, column in enumerate(columns):
        first = np.full(len(column), number, dtype=np.int64)
        for earlier in range(number - 1, -1, -1):
            first[columns[earlier] == column] = earlier
        firsts.append(first)
    return firsts


def _numbered(firsts: Sequence[Int64Column]) -> Int64Column:
    """Return int64[M], equal where the slots share providers alike.

    Numbers that have grown are counted anew every few slots, so that they fit into 64 bits.
    """
    kinds = np.zeros(len(firsts[0]), dtype=np.int64)
    for number, first in enumerate(firsts):
        if number and number % _SLOTS_PER_NUMBER == 0:
            kinds = np.unique(kinds, return_inverse=True)[1].astype(np.int64)
        kinds = kinds * (number + 1) + first
    return kinds


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """Text of a candidate with a comma after it, and where the uuid of which slot goes in it."""

    text: bytes
    holes: tuple[tuple[int, int], ...]

    def filled(self, uuids: UInt8Column, columns: Sequence[Int32Column]) -> UInt8Column:
        """Return uint8[M, length], the text with the uuids of each candidate."""
        block = np.empty((len(columns[0]), len(self.text)), dtype=np.uint8)
        block[:] = np.frombuffer(self.text, dtype=np.uint8)
        known: dict[int, UInt8Column] = {}
        for start, slot in self.holes:
            if slot not in known:
                known[slot] = uuids[columns[slot]]
            block[:, start : start + UUID_LENGTH] = known[slot]
        return block


def _template(candidates: Candidates, pattern: Sequence[int], minor: int) -> _Template:
    """Return the text of candidates whose slots share providers as the pattern says."""
    resources: dict[int, dict[str, int]] = {}
    mappings: dict[str, list[int]] = {}
    for number, slot in zip(pattern, candidates.slots, strict=True):
        amounts = resources.setdefault(number, {})
        for name, amount in slot.resources.items():
            amounts[name] = amounts.get(name, 0) + amount
        mapped = mappings.setdefault(slot.suffix, [])
        if number not in mapped:
            mapped.append(number)
    holes: list[int] = []

    def hole(number: int) -> str:
        holes.append(number)
        return f'"{_HOLE}"'

    used = {number: amounts for number, amounts in resources.items() if amounts}
    if minor >= DICT_FORM:
        inner = ",".join(
            f'{hole(number)}:{{"resources":{_json(amounts)}}}' for number, amounts in used.items()
        )
        text = f'{{"allocations":{{{inner}}}'
    else:
        inner = ",".join(
            f'{{"resource_provider":{{"uuid":{hole(number)}}},"resources":{_json(amounts)}}}'
            for number, amounts in used.items()
        )
        text = f'{{"allocations":[{inner}]'
    if minor >= MAPPINGS:
        inner = ",".join(
            f"{json.dumps(suffix)}:[{','.join(hole(number) for number in numbers)}]"
            for suffix, numbers in mappings.items()
        )
        text += f',"mappings":{{{inner}}}'
    encoded = (text + "},").encode()
    starts = []
    start = encoded.find(_HOLE.encode())
    while start >= 0:
        starts.append(start)
        start = encoded.find(_HOLE.encode(), start + UUID_LENGTH)
    return _Template(encoded, tuple(zip(starts, holes, strict=True)))


def _asked_columns(candidates: Candidates) -> Sequence[Int32Column]:
    """Return the rows of providers that something is asked of."""
    return [
        column
        for slot, column in zip(candidates.slots, candidates.columns, strict=True)
        if slot.resources
    ]


def _old_summaries(snapshot: Snapshot, candidates: Candidates, minor: int) -> bytes:
    """Return the members of ``provider_summaries`` in versions that do not know trees."""
    rows = np.flatnonzero(_marked(_asked_columns(candidates), len(snapshot))).tolist()
    asked = {name for slot in candidates.slots for name in slot.resources}
    names = [name for name in snapshot.classes if minor >= ALL_CLASSES or name in asked]
    texts = old_summaries(snapshot, rows, names, has_traits=minor >= TRAITS)
    return ",".join(texts).encode()


def _marked(columns: Sequence[Int32Column], count: int) -> BoolColumn:
    """Return bool[count], the numbers that some columns have; all are below ``count``."""
    marked = np.zeros(count, dtype=np.bool_)
    for column in columns:
        marked[column] = True
    return marked


def _json(content: object) -> str:
    return json.dumps(content, separators=(",", ":"))
