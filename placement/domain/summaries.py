"""Encoded summaries of providers in the answer of a candidates request (spec placement, 6.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from placement.domain.snapshot import (
    NO_ROW,
    TREES_PER_BLOCK,
    UUID_LENGTH,
    BoolColumn,
    Int32Column,
    Snapshot,
)

#: Providers for which one look after the other is quicker than columns.
FEW = 16


def tree_summaries(snapshot: Snapshot, trees: Sequence[int]) -> Sequence[bytes]:
    """Return the summaries of whole trees, without braces; made once and kept in the snapshot.

    Args:
        trees: Numbers of trees, at least one, ascending.
    """
    texts = snapshot.summaries.of(trees)
    if None in texts:
        missing = [tree for tree, text in zip(trees, texts, strict=True) if text is None]
        _fill(snapshot, missing)
        texts = snapshot.summaries.of(trees)
    return texts  # type: ignore[return-value]  # none is None any more


@dataclass(frozen=True, slots=True, eq=False)
class ShownTrees:
    """The trees that an answer shows, in the blocks that their texts are kept in.

    Attributes:
        few: Numbers of the trees where no block is shown as a whole, at least one, ascending.
        blocks: Else the numbers of the blocks, and of the trees of those that are shown in part.
    """

    few: Sequence[int] = ()
    blocks: Sequence[tuple[int, Sequence[int] | None]] = ()

    @classmethod
    def among(cls, wanted: BoolColumn) -> ShownTrees:
        """Return the trees of bool[T], at least one."""
        count = len(wanted)
        trees = np.flatnonzero(wanted)
        if len(trees) < min(count, TREES_PER_BLOCK):
            return cls(few=trees.tolist())
        firsts = np.arange(0, count, TREES_PER_BLOCK)
        found = np.add.reduceat(wanted, firsts, dtype=np.int64)
        is_whole = found == np.minimum(count - firsts, TREES_PER_BLOCK)
        if not is_whole.any():
            return cls(few=trees.tolist())
        ends = np.cumsum(found).tolist()
        return cls(
            blocks=[
                (block, None if is_whole[block] else trees[end - found[block] : end].tolist())
                for block, end in enumerate(ends)
                if found[block]
            ]
        )


def summary_pieces(snapshot: Snapshot, shown: ShownTrees) -> list[bytes]:
    """Return the summaries of whole trees as texts that follow each other, commas included.

    Blocks of which all trees are shown are taken as they are, so that nothing large is copied.
    """
    if not shown.blocks:
        return [b",".join(tree_summaries(snapshot, shown.few))]
    _fill_blocks(snapshot, [block for block, part in shown.blocks if part is None])
    pieces: list[bytes] = []
    for block, part in shown.blocks:
        text = snapshot.summaries.blocks[block] if part is None else None
        if text is None:
            first = block * TREES_PER_BLOCK
            trees = part or range(first, min(first + TREES_PER_BLOCK, snapshot.tree_count))
            text = b",".join(tree_summaries(snapshot, trees))
        pieces += (text, b",")
    pieces.pop()
    return pieces


def _fill_blocks(snapshot: Snapshot, blocks: Sequence[int]) -> None:
    """Make the texts of blocks that are not made yet; all trees of them at once."""
    texts = snapshot.summaries
    new = [block for block in blocks if texts.blocks[block] is None]
    if not new:
        return
    bounds = [
        (block * TREES_PER_BLOCK, min((block + 1) * TREES_PER_BLOCK, snapshot.tree_count))
        for block in new
    ]
    tree_summaries(snapshot, [tree for bound in bounds for tree in range(*bound)])
    for block, (first, last) in zip(new, bounds, strict=True):
        texts.blocks[block] = b",".join(tree_summaries(snapshot, range(first, last)))


def old_summaries(
    snapshot: Snapshot, rows: Sequence[int], names: Iterable[str], *, has_traits: bool
) -> list[str]:
    """Return the summaries of providers for versions that do not know trees.

    Args:
        rows: Which of them.
        names: Resource classes to show.
        has_traits: Whether the version shows traits.
    """
    resources = _resources(snapshot, np.array(rows, dtype=np.int32), names)
    texts = [
        f'"{uuid}":{{"resources":{{{amounts}}}'
        for uuid, amounts in zip(_uuids(snapshot, rows), resources, strict=True)
    ]
    if not has_traits:
        return [f"{text}}}" for text in texts]
    return [
        f'{text},"traits":{snapshot.trait_text_of(row)}}}'
        for text, row in zip(texts, rows, strict=True)
    ]


def _fill(snapshot: Snapshot, trees: Sequence[int]) -> None:
    """Make the summaries of some trees."""
    starts = snapshot.starts
    bounds = [(int(starts[tree]), int(starts[tree + 1])) for tree in trees]
    rows = np.concatenate([np.arange(*bound, dtype=np.int32) for bound in bounds])
    numbers = rows.tolist()
    resources = _resources(snapshot, rows, snapshot.classes)
    uuids = _uuids(snapshot, numbers)
    uuid_of = dict(zip(numbers, uuids, strict=True))
    parents = snapshot.parents[rows].tolist()
    roots = starts[snapshot.trees[rows]].tolist()
    texts = []
    for row, uuid, amounts, parent, root in zip(
        numbers, uuids, resources, parents, roots, strict=True
    ):
        above = "null" if parent == NO_ROW else f'"{uuid_of[parent]}"'
        texts.append(
            f'"{uuid}":{{"resources":{{{amounts}}},"traits":{snapshot.trait_text_of(row)},'
            f'"parent_provider_uuid":{above},"root_provider_uuid":"{uuid_of[root]}"}}'
        )
    at = 0
    for tree, (first, last) in zip(trees, bounds, strict=True):
        snapshot.summaries.keep(tree, ",".join(texts[at : at + last - first]).encode())
        at += last - first


def _resources(snapshot: Snapshot, rows: Int32Column, names: Iterable[str]) -> list[str]:
    """Return capacity and usage of each provider, encoded."""
    parts: list[list[str]] = [[] for _ in range(len(rows))]
    if len(rows) <= FEW:
        for owner, row in enumerate(rows.tolist()):
            for name in names:
                columns = snapshot.classes[name]
                place = columns.position(row)
                if place != NO_ROW:
                    capacity, used = columns.capacity.item(place), columns.used.item(place)
                    parts[owner].append(f'"{name}":{{"capacity":{capacity},"used":{used}}}')
        return [",".join(part) for part in parts]
    for name in names:
        columns = snapshot.classes[name]
        at, has_class = columns.positions(rows)
        owners = np.flatnonzero(has_class)
        at = at[owners]
        for owner, capacity, used in zip(
            owners.tolist(), columns.capacity[at].tolist(), columns.used[at].tolist(), strict=True
        ):
            parts[owner].append(f'"{name}":{{"capacity":{capacity},"used":{used}}}')
    return [",".join(part) for part in parts]


def _uuids(snapshot: Snapshot, rows: Sequence[int]) -> list[str]:
    text = snapshot.uuids[np.array(rows, dtype=np.int32)].tobytes().decode()
    return [text[at : at + UUID_LENGTH] for at in range(0, len(text), UUID_LENGTH)]
