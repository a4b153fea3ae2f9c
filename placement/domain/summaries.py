"""Encoded summaries of providers in the answer of a candidates request (spec placement, 6.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.domain.snapshot import (
    NO_ROW,
    TREES_PER_BLOCK,
    BoolColumn,
    Int32Column,
    Snapshot,
    SummaryBlock,
)

#: Providers for which one look after the other is quicker than columns.
FEW = 16
_MOST_FRAMES = 1 << 12


def tree_summaries(snapshot: Snapshot, trees: Sequence[int]) -> Sequence[bytes]:
    """Return the summaries of whole trees, without braces; made once and kept in the snapshot.

    Args:
        trees: Numbers of trees, at least one, ascending.
    """
    if len(trees) == 1:
        number, place = divmod(trees[0], TREES_PER_BLOCK)
        return (_blocks(snapshot, {number: (place,)})[0].tree(place),)
    places: dict[int, list[int]] = {}
    for tree in trees:
        places.setdefault(tree // TREES_PER_BLOCK, []).append(tree % TREES_PER_BLOCK)
    return [
        block.tree(place)
        for block, shown in zip(_blocks(snapshot, places), places.values(), strict=True)
        for place in shown
    ]


@dataclass(frozen=True, slots=True, eq=False)
class ShownTrees:
    """The trees that an answer shows, in the blocks that their texts are kept in.

    Attributes:
        few: Numbers of the trees where no block is shown as a whole, at least one, ascending.
        blocks: Else the numbers of the blocks, and the places that are shown of those that are not
            shown as a whole, ascending.
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
        ends, places = np.cumsum(found).tolist(), trees % TREES_PER_BLOCK
        return cls(
            blocks=[
                (block, None if is_whole[block] else places[end - found[block] : end].tolist())
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
    wanted = dict(shown.blocks)
    pieces: list[bytes] = []
    for block, places in zip(_blocks(snapshot, wanted), wanted.values(), strict=True):
        pieces += (block.text if places is None else block.trees(places), b",")
    pieces.pop()
    return pieces


def _blocks(
    snapshot: Snapshot, wanted: Mapping[int, Sequence[int] | None]
) -> Sequence[SummaryBlock]:
    """Return blocks of summaries; what is stale or missing of what is shown is made, all at once.

    Args:
        wanted: Numbers of blocks, and the places that are shown of each, ascending; None for all.
    """
    kept = snapshot.summaries.blocks
    found = {number: kept[number] for number in wanted}
    missing: dict[int, Sequence[int]] = {}
    for number, block in found.items():
        if block is None:
            missing[number] = _places(snapshot, number)
        elif block.stale:
            shown = wanted[number]
            stale = sorted(block.stale if shown is None else block.stale.intersection(shown))
            if stale:
                missing[number] = stale
    if missing:
        texts = iter(
            _texts(
                snapshot,
                [
                    number * TREES_PER_BLOCK + place
                    for number, places in missing.items()
                    for place in places
                ],
            )
        )
        for number, places in missing.items():
            made = {place: next(texts) for place in places}
            block = found[number]
            # Others may put theirs there meanwhile, in which other places are stale.
            found[number] = kept[number] = (
                SummaryBlock.of_trees(list(made.values())) if block is None else block.renewed(made)
            )
    return list(found.values())  # type: ignore[arg-type]  # none is None any more


def _places(snapshot: Snapshot, number: int) -> Sequence[int]:
    return range(min(TREES_PER_BLOCK, snapshot.tree_count - number * TREES_PER_BLOCK))


def old_summaries(
    snapshot: Snapshot, rows: Sequence[int], names: Iterable[str], *, has_traits: bool
) -> list[str]:
    """Return the summaries of providers for versions that do not know trees.

    Args:
        rows: Which of them.
        names: Resource classes to show.
        has_traits: Whether the version shows traits.
    """
    columns = np.array(rows, dtype=np.int32)
    uuids, resources = snapshot.uuids_of(columns), _resources(snapshot, columns, names)
    texts = [
        f'"{uuid}":{{"resources":{{{amounts}}}'
        for uuid, amounts in zip(uuids, resources, strict=True)
    ]
    if not has_traits:
        return [f"{text}}}" for text in texts]
    return [
        f'{text},"traits":{snapshot.trait_text_of(row)}}}'
        for text, row in zip(texts, rows, strict=True)
    ]


def _texts(snapshot: Snapshot, trees: Sequence[int]) -> Sequence[bytes]:
    """Make the summaries of some trees."""
    if len(trees) <= FEW:
        return [_framed(snapshot, tree) for tree in trees]
    starts = snapshot.starts
    bounds = [(int(starts[tree]), int(starts[tree + 1])) for tree in trees]
    rows = np.concatenate([np.arange(*bound, dtype=np.int32) for bound in bounds])
    numbers = rows.tolist()
    texts = _members(snapshot, numbers, _resources(snapshot, rows, snapshot.classes))
    made, at = [], 0
    for first, last in bounds:
        made.append(",".join(texts[at : at + last - first]).encode())
        at += last - first
    return made


def _framed(snapshot: Snapshot, tree: int) -> bytes:
    """Make the summary of a tree, of which only amounts change from one time to the next."""
    frame = snapshot.caches.frames.get(tree)
    if frame is None:
        if len(snapshot.caches.frames) >= _MOST_FRAMES:
            snapshot.caches.frames.clear()
        frame = snapshot.caches.frames[tree] = _frame(snapshot, tree)
    text, places = frame
    figures: list[int] = []
    for name, at in places:
        columns = snapshot.classes[name]
        figures += (columns.capacity.item(at), columns.used.item(at))
    return text % tuple(figures)


def _frame(snapshot: Snapshot, tree: int) -> tuple[bytes, Sequence[tuple[str, int]]]:
    """Return what is kept of a tree, see :class:`SnapshotCaches`; nothing in it is an own ``%``."""
    rows = range(snapshot.starts.item(tree), snapshot.starts.item(tree + 1))
    places: list[tuple[str, int]] = []
    resources = []
    for row in rows:
        mine = [(name, columns.position(row)) for name, columns in snapshot.classes.items()]
        mine = [(name, at) for name, at in mine if at != NO_ROW]
        places += mine
        resources.append(",".join(_resource(name, "%d", "%d") for name, _ in mine))
    return ",".join(_members(snapshot, rows, resources)).encode(), places


def _members(snapshot: Snapshot, rows: Sequence[int], resources: Iterable[str]) -> list[str]:
    """Return the members of summaries for the providers of whole trees, given their resources."""
    columns = np.array(rows, dtype=np.int32)
    uuid_of = dict(zip(rows, snapshot.uuids_of(columns), strict=True))
    parents = snapshot.parents[columns].tolist()
    roots = snapshot.starts[snapshot.trees[columns]].tolist()
    texts = []
    for row, amounts, parent, root in zip(rows, resources, parents, roots, strict=True):
        above = "null" if parent == NO_ROW else f'"{uuid_of[parent]}"'
        texts.append(
            f'"{uuid_of[row]}":{{"resources":{{{amounts}}},"traits":{snapshot.trait_text_of(row)},'
            f'"parent_provider_uuid":{above},"root_provider_uuid":"{uuid_of[root]}"}}'
        )
    return texts


def _resource(name: str, capacity: object, used: object) -> str:
    return f'"{name}":{{"capacity":{capacity},"used":{used}}}'


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
                    parts[owner].append(_resource(name, capacity, used))
        return [",".join(part) for part in parts]
    for name in names:
        columns = snapshot.classes[name]
        at, has_class = columns.positions(rows)
        owners = np.flatnonzero(has_class)
        at = at[owners]
        for owner, capacity, used in zip(
            owners.tolist(), columns.capacity[at].tolist(), columns.used[at].tolist(), strict=True
        ):
            parts[owner].append(_resource(name, capacity, used))
    return [",".join(part) for part in parts]
