"""Bringing a snapshot forward (spec placement, 9.4): the new one shares what did not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placement.domain.provider_rows import SHARING_TRAIT
from placement.domain.snapshot import (
    NO_ROW,
    BoolColumn,
    ClassColumns,
    Int32Column,
    Int64Column,
    Snapshot,
    SnapshotCaches,
    UInt64Column,
)
from placement.domain.snapshot_build import class_columns

_FIGURES = ("capacity", "used", "held", "min_unit", "max_unit", "step_size")


def with_usage(
    snapshot: Snapshot,
    provider_ids: Sequence[int],
    classes: Sequence[str],
    used: Sequence[int],
    versions: Sequence[tuple[int, float]] | None = None,
) -> Snapshot | None:
    """Return the snapshot with other allocated amounts.

    Args:
        provider_ids: Key of the provider of each amount.
        classes: Its resource class.
        used: The amount.
        versions: Generation of the provider, and its newest change in seconds since 1970; None
            where these stay.

    Returns:
        The new snapshot; None when an inventory is unknown here, so that its tree has to be read.
    """
    known_place = snapshot.caches.places.get
    trees: set[int] = set()
    rows: list[int] = []
    changed: dict[str, dict[int, int]] = {}
    for key, name, amount in zip(provider_ids, classes, used, strict=True):
        place = known_place((key, name)) or snapshot.place_of(key, name)
        if place is None:
            return None
        tree, row, at = place
        trees.add(tree)
        rows.append(row)
        if snapshot.classes[name].used.item(at) != amount:
            changed.setdefault(name, {})[at] = amount
    fresh = dict(snapshot.classes)
    for name, amounts in changed.items():
        fresh[name] = fresh[name].with_used(amounts)
    generations, modified = snapshot.generations, snapshot.modified
    if versions is not None:
        generations, modified = generations.copy(), modified.copy()
        for row, version in zip(rows, versions, strict=True):
            generations[row], modified[row] = version
    summaries = snapshot.summaries.without(trees)
    return snapshot.with_amounts(fresh, summaries, generations, modified)


def with_held(
    snapshot: Snapshot, provider_ids: Sequence[int], name: str, held: Sequence[int]
) -> Snapshot:
    """Return the snapshot with other held amounts of a resource class.

    Args:
        provider_ids: Key of the provider of each amount; providers that are unknown or do not have
            the class have nothing that could be held.
        name: Resource class.
        held: The amount.
    """
    columns = snapshot.classes.get(name)
    rows = snapshot.rows_of_ids(np.array(provider_ids, dtype=np.int64)).astype(np.int32)
    if columns is None:
        return snapshot
    at, has_class = columns.positions(rows)
    at = at[has_class]
    fresh = columns.held.copy()
    fresh[at] = np.array(held, dtype=np.int64)[has_class]
    columns = replace(columns, held=fresh, has_held=bool(fresh.any()))
    return replace(snapshot, classes={**snapshot.classes, name: columns})


def replace_trees(snapshot: Snapshot, root_ids: Sequence[int], part: Snapshot) -> Snapshot:
    """Return the snapshot with some trees as they are now.

    Args:
        root_ids: Keys of the roots of trees that were read again; one that is not in ``part`` is
            gone.
        part: A snapshot of those trees that are left, built with the bit numbers of this one. Its
            names are the newer ones.
    """
    snapshot = replace(
        _with_words(snapshot, part),
        known_traits=part.known_traits,
        known_classes=part.known_classes,
    )
    gone = np.isin(snapshot.root_ids, np.array(root_ids, dtype=np.int64))
    gone |= np.isin(snapshot.root_ids, part.root_ids)
    old_rows = np.flatnonzero(gone[snapshot.trees]).astype(np.int32)
    if _has_same_layout(snapshot, old_rows, part):
        return _with_values(snapshot, old_rows, part)
    return _spliced(snapshot, gone, part)


def _with_words(snapshot: Snapshot, part: Snapshot) -> Snapshot:
    """Return the snapshot with the bit numbers of a part, which may have more of them."""
    if part.trait_bit is not snapshot.trait_bit:
        bits = _widened(snapshot.trait_bits, len(part.trait_bits))
        snapshot = replace(snapshot, trait_bits=bits, trait_bit=part.trait_bit)
    if part.aggregate_bit is not snapshot.aggregate_bit:
        bits = _widened(snapshot.aggregate_bits, len(part.aggregate_bits))
        snapshot = replace(snapshot, aggregate_bits=bits, aggregate_bit=part.aggregate_bit)
    return snapshot


def _widened(bits: UInt64Column, words: int) -> UInt64Column:
    more = np.zeros((words - len(bits), bits.shape[1]), dtype=np.uint64)
    return np.concatenate((bits, more)) if len(more) else bits


def _has_same_layout(snapshot: Snapshot, rows: Int32Column, part: Snapshot) -> bool:
    """Return whether a part has the same providers in the same places, with the same classes."""
    if not np.array_equal(snapshot.ids[rows], part.ids):
        return False
    if not np.array_equal(_parent_ids(snapshot, rows), _parent_ids(part, slice(None))):
        return False
    if not np.array_equal(snapshot.uuids[rows], part.uuids):
        return False
    touched = np.zeros(len(snapshot), dtype=np.bool_)
    touched[rows] = True
    for name in snapshot.classes.keys() | part.classes.keys():
        mine, other = snapshot.classes.get(name), part.classes.get(name)
        before = rows[:0] if mine is None else mine.rows[touched[mine.rows]]
        after = rows[:0] if other is None else rows[other.rows]
        if not np.array_equal(before, after):
            return False
    return True


def _parent_ids(snapshot: Snapshot, rows: Int32Column | slice) -> Int64Column:
    parents = snapshot.parents[rows]
    return np.where(parents == NO_ROW, NO_ROW, snapshot.ids[parents])


def _with_values(snapshot: Snapshot, rows: Int32Column, part: Snapshot) -> Snapshot:
    """Return the snapshot with the figures, traits and aggregates of a part of equal layout."""
    classes = dict(snapshot.classes)
    for name, columns in part.classes.items():
        classes[name] = _with_figures(classes[name], rows, columns)
    caches = snapshot.caches
    trait_bits, aggregate_bits = snapshot.trait_bits, snapshot.aggregate_bits
    has_other_traits = not np.array_equal(trait_bits[:, rows], part.trait_bits)
    has_other_aggregates = not np.array_equal(aggregate_bits[:, rows], part.aggregate_bits)
    if has_other_traits or has_other_aggregates:
        caches = replace(caches, filters={}, served={}, frames={})
    names = snapshot.names
    if names.of_rows(rows) != list(part.names):
        places = np.arange(len(names))
        places[rows] = len(names) + np.arange(len(rows))
        names = names.joined(part.names).chosen(places)
        caches = replace(caches, listed={})
    generations, modified = snapshot.generations.copy(), snapshot.modified.copy()
    generations[rows], modified[rows] = part.generations, part.modified
    if has_other_traits:
        trait_bits = trait_bits.copy()
        trait_bits[:, rows] = part.trait_bits
    if has_other_aggregates:
        aggregate_bits = aggregate_bits.copy()
        aggregate_bits[:, rows] = part.aggregate_bits
        caches = replace(caches, anchors={})
    return replace(
        snapshot,
        names=names,
        generations=generations,
        modified=modified,
        classes=classes,
        trait_bits=trait_bits,
        aggregate_bits=aggregate_bits,
        sharing=_sharing(trait_bits, snapshot.trait_bit) if has_other_traits else snapshot.sharing,
        summaries=snapshot.summaries.without(snapshot.trees[rows].tolist()),
        caches=caches,
    )


def _with_figures(mine: ClassColumns, rows: Int32Column, other: ClassColumns) -> ClassColumns:
    at = np.searchsorted(mine.rows, rows[other.rows])
    changed = {}
    for name in (*_FIGURES, "top"):
        before, after = getattr(mine, name), getattr(other, name)
        if not np.array_equal(before[at], after):
            changed[name] = before.copy()
            changed[name][at] = after
    if not changed:
        return mine
    has_held = bool(changed["held"].any()) if "held" in changed else mine.has_held
    has_units = mine.has_units or other.has_units
    return replace(mine, has_units=has_units, has_held=has_held, **changed)


def _sharing(trait_bits: UInt64Column, trait_bit: Mapping[str, int]) -> Int32Column:
    bit = trait_bit.get(SHARING_TRAIT)
    if bit is None:
        return np.zeros(0, dtype=np.int32)
    marked = trait_bits[bit >> 6] >> np.uint64(bit & 63) & np.uint64(1)
    return np.flatnonzero(marked).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class _Splice:
    """Where the rows of two snapshots go in a third.

    Attributes:
        order: int64[N], for each new row its number among the kept rows followed by the part's.
        of_old: int32[old N], new row of each old one, -1 for those that are gone.
        of_part: int32[part N], new row of each one of the part.
    """

    order: Int64Column
    kept: Int64Column
    of_old: Int32Column
    of_part: Int32Column

    @classmethod
    def between(cls, snapshot: Snapshot, gone: BoolColumn, part: Snapshot) -> _Splice:
        kept = np.flatnonzero(~gone[snapshot.trees])
        roots = np.concatenate((snapshot.root_ids[snapshot.trees[kept]], part.root_ids[part.trees]))
        order = np.argsort(roots, kind="stable")
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        of_old = np.full(len(snapshot), NO_ROW, dtype=np.int32)
        of_old[kept] = place[: len(kept)]
        return cls(order, kept, of_old, place[len(kept) :])

    def rows(self, old: Int32Column, new: Int32Column) -> Int32Column:
        """Return columns of rows of both, as rows of the third, in its order."""
        mapped = np.concatenate((self._mapped(self.of_old, old), self._mapped(self.of_part, new)))
        return mapped[self.order]

    @staticmethod
    def _mapped(places: Int32Column, rows: Int32Column) -> Int32Column:
        if not len(places):
            return rows
        return np.where(rows == NO_ROW, np.int32(NO_ROW), places[rows])


def _spliced(snapshot: Snapshot, gone: BoolColumn, part: Snapshot) -> Snapshot:
    """Return the snapshot with the trees of a part in place of those that are gone."""
    splice = _Splice.between(snapshot, gone, part)
    kept, order = splice.kept, splice.order
    root_ids = np.concatenate((snapshot.root_ids[~gone], part.root_ids))
    tree_order = np.argsort(root_ids, kind="stable")
    sizes = np.concatenate((np.diff(snapshot.starts)[~gone], np.diff(part.starts)))[tree_order]
    starts = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=starts[1:])
    subtree_sizes = np.concatenate(
        (
            snapshot.ends[kept] - kept,
            part.ends - np.arange(len(part)),
        )
    )[order]
    trait_bits = np.concatenate((snapshot.trait_bits[:, kept], part.trait_bits), axis=1)[:, order]
    trees = np.concatenate((np.flatnonzero(~gone), np.full(part.tree_count, -1)))[tree_order]
    return Snapshot(
        ids=np.concatenate((snapshot.ids[kept], part.ids))[order],
        uuids=np.concatenate((snapshot.uuids[kept], part.uuids))[order],
        names=snapshot.names.chosen(kept).joined(part.names).chosen(order),
        generations=np.concatenate((snapshot.generations[kept], part.generations))[order],
        modified=np.concatenate((snapshot.modified[kept], part.modified))[order],
        parents=splice.rows(snapshot.parents[kept], part.parents),
        ends=(np.arange(len(order)) + subtree_sizes).astype(np.int32),
        trees=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        root_ids=root_ids[tree_order],
        starts=starts,
        trait_bits=trait_bits,
        trait_bit=snapshot.trait_bit,
        aggregate_bits=np.concatenate(
            (snapshot.aggregate_bits[:, kept], part.aggregate_bits), axis=1
        )[:, order],
        aggregate_bit=snapshot.aggregate_bit,
        sharing=_sharing(trait_bits, snapshot.trait_bit),
        classes=_spliced_classes(snapshot, part, splice),
        summaries=snapshot.summaries.rearranged(trees),
        known_traits=snapshot.known_traits,
        known_classes=snapshot.known_classes,
        caches=SnapshotCaches(trait_texts=snapshot.caches.trait_texts),
    )


def _spliced_classes(
    snapshot: Snapshot, part: Snapshot, splice: _Splice
) -> Mapping[str, ClassColumns]:
    """Return the inventories of both; a class that nobody has any more is left out."""
    classes = {}
    for name in sorted(snapshot.classes.keys() | part.classes.keys()):
        pieces: list[tuple[ClassColumns, Int64Column, Int32Column]] = []
        mine, other = snapshot.classes.get(name), part.classes.get(name)
        if mine is not None:
            rows = splice.of_old[mine.rows]
            stays = np.flatnonzero(rows != NO_ROW)
            pieces.append((mine, stays, rows[stays]))
        if other is not None:
            pieces.append((other, np.arange(len(other.rows)), splice.of_part[other.rows]))
        rows = np.concatenate([places for _, _, places in pieces])
        if not len(rows):
            continue
        order = np.argsort(rows, kind="stable")
        figures = {
            figure: np.concatenate([getattr(one, figure)[chosen] for one, chosen, _ in pieces])[
                order
            ]
            for figure in _FIGURES
        }
        classes[name] = class_columns(rows=rows[order], **figures)
    return classes
