"""Columnar snapshot of all resource providers (spec placement, 6.8 and 9.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32Column: TypeAlias = NDArray[np.int32]
Int64Column: TypeAlias = NDArray[np.int64]
UInt64Column: TypeAlias = NDArray[np.uint64]
Float64Column: TypeAlias = NDArray[np.float64]
UInt8Column: TypeAlias = NDArray[np.uint8]
BoolColumn: TypeAlias = NDArray[np.bool_]

UUID_LENGTH = 36
NO_ROW = -1
TREES_PER_BLOCK = 64
#: Trees whose texts are kept apart from those of all others.
MOST_CHANGED = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassColumns:
    """Inventories of one resource class; row ``i`` of every column is the same inventory.

    Attributes:
        rows: int32[M], rows of the providers in the snapshot, ascending.
        top: int64[M], the most that one more consumer can take: the least of what is free and of
            ``max_unit``; may be negative.
        min_unit: int64[M]; likewise ``step_size``.
        capacity: int64[M], truncated, before anything is used.
        used: int64[M], allocated.
        held: int64[M], part of what is free, kept for commitments and failover.
        max_unit: int64[M].
        has_units: Whether any ``min_unit`` or ``step_size`` is not 1.
        has_held: Whether anything is held.
    """

    rows: Int32Column
    top: Int64Column
    min_unit: Int64Column
    step_size: Int64Column
    max_unit: Int64Column
    capacity: Int64Column
    used: Int64Column
    held: Int64Column
    has_units: bool
    has_held: bool

    def fits(self, amount: int) -> BoolColumn:
        """Return bool[M], where a consumer can take an amount.

        Source: spec placement, section 5.3 (``has_room``).
        """
        fitting: BoolColumn = self.top >= amount
        if self.has_units:
            fitting &= self.min_unit <= amount
            fitting &= amount % self.step_size == 0
        return fitting

    def too_held_for(self, amount: int) -> BoolColumn:
        """Return bool[M], where holds leave too little for an amount to those they are not for."""
        return (self.held > 0) & (self.capacity - self.used - self.held < amount)

    def fully_held(self) -> BoolColumn:
        """Return bool[M], where all that is free is held."""
        return self.too_held_for(1)

    def rows_that_fit(self, amount: int) -> Int32Column:
        """Return int32[K], rows of the providers where a consumer can take an amount."""
        return self.rows[self.fits(amount)]

    def positions(self, rows: Int32Column) -> tuple[Int64Column, BoolColumn]:
        """Return where providers are in these columns, and whether they have the class at all."""
        found = np.searchsorted(self.rows, rows)
        found[found == len(self.rows)] = 0
        if not len(self.rows):
            return found, np.zeros(len(rows), dtype=np.bool_)
        return found, self.rows[found] == rows

    def position(self, row: int) -> int:
        """Return where a provider is in these columns, -1 when it does not have the class."""
        count = len(self.rows)
        if row < count and self.rows.item(row) == row:  # as where every provider has the class
            return row
        at = int(self.rows.searchsorted(np.int32(row)))  # of another type all rows are copied
        return at if at < count and self.rows.item(at) == row else NO_ROW

    def with_used(self, used: Int64Column, top: Int64Column) -> ClassColumns:
        """Return the columns with other allocated amounts; quicker than ``dataclasses.replace``."""
        return ClassColumns(
            rows=self.rows,
            top=top,
            min_unit=self.min_unit,
            step_size=self.step_size,
            max_unit=self.max_unit,
            capacity=self.capacity,
            used=used,
            held=self.held,
            has_units=self.has_units,
            has_held=self.has_held,
        )

    def free_at(self, rows: Int64Column) -> Int64Column:
        """Return int64[len(rows)], what all further consumers together can take, at least 0."""
        at = np.searchsorted(self.rows, rows)
        free: Int64Column = self.capacity[at] - self.used[at]
        return np.maximum(free, 0)

    def top_at(self, rows: Int32Column) -> Int64Column:
        """Return int64[len(rows)], ``top`` of providers that have the class."""
        return self.top[np.searchsorted(self.rows, rows)]


@dataclass(slots=True, eq=False)
class SnapshotCaches:
    """Results that depend on columns which change seldom; shared between snapshots.

    Attributes:
        filters: Request group without amounts -> rows that pass; lives as long as trees, traits
            and aggregates stay.
        served: Filter and sharing providers with room -> those providers and the trees they can
            serve; lives as long as the filters.
        anchors: Row of a sharing provider -> trees it serves; lives as long as trees and
            aggregates stay.
        rows_by_uuid: Uuid -> row; filled at the first use, lives as long as trees stay.
        rows_by_id: int64[N] of keys ascending and int64[N] of their rows; likewise.
        row_by_id: Key -> row; likewise.
        commons: Resource classes -> providers that have all of them, and for each class where these
            are in its columns, None for everywhere; lives as long as no inventory comes or goes.
        trait_texts: Bit set of traits -> encoded list of their names.
        listed: Form of a list of providers -> its texts, see :mod:`placement.domain.provider_list`;
            lives as long as trees and names of providers stay.
    """

    filters: dict[object, object] = field(default_factory=dict)
    served: dict[object, tuple[Int32Column, Int32Column]] = field(default_factory=dict)
    anchors: dict[int, Int32Column] = field(default_factory=dict)
    rows_by_uuid: dict[str, int] | None = None
    rows_by_id: tuple[Int64Column, Int64Column] | None = None
    row_by_id: Mapping[int, int] | None = None
    commons: dict[tuple[str, ...], tuple[Int32Column, Sequence[Int64Column | None]]] = field(
        default_factory=dict
    )
    trait_texts: dict[bytes, str] = field(default_factory=dict)
    listed: dict[object, Any] = field(default_factory=dict)  # Any: they are of a module above


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SummaryTexts:
    """Members of ``provider_summaries`` as encoded JSON without the braces (from 1.29).

    Texts are made when they are needed first and then kept. A step from one snapshot to the next
    costs the trees that changed: a copy of all texts, which are anywhere in memory, would take
    longer than the rest of the step.

    Attributes:
        shared: Of each tree; None until it is made. Shared between snapshots, so what stands here
            of a tree in ``changed`` is nothing to this one.
        changed: Of the trees that changed since that list was made.
        blocks: Of each ``TREES_PER_BLOCK`` trees, joined by commas; None until it is made. After a
            change of one tree, an answer about all of them is put together of few large pieces.
    """

    shared: list[bytes | None]
    changed: dict[int, bytes | None]
    blocks: list[bytes | None]

    @classmethod
    def empty(cls, tree_count: int) -> SummaryTexts:
        """Return the texts of some trees, none of them made."""
        return cls.of_trees([None] * tree_count)

    @classmethod
    def of_trees(cls, trees: list[bytes | None]) -> SummaryTexts:
        """Return the given texts of trees, no block made."""
        return cls(shared=trees, changed={}, blocks=[None] * -(-len(trees) // TREES_PER_BLOCK))

    def of(self, trees: Sequence[int]) -> Sequence[bytes | None]:
        """Return the texts of some trees, at least one, in ascending order."""
        changed, shared = self.changed, self.shared
        if len(trees) == 1:
            (tree,) = trees
            return (changed[tree] if tree in changed else shared[tree],)
        picked: Sequence[bytes | None] = itemgetter(*trees)(shared)
        if not changed:
            return picked
        texts = list(picked)
        for tree, text in changed.items():
            at = bisect_left(trees, tree)
            if at < len(trees) and trees[at] == tree:
                texts[at] = text
        return texts

    def all(self) -> Sequence[bytes | None]:
        """Return the text of each tree."""
        if not self.changed:
            return self.shared
        texts = list(self.shared)
        for tree, text in self.changed.items():
            texts[tree] = text
        return texts

    def keep(self, tree: int, text: bytes) -> None:
        """Keep the text of a tree."""
        if tree in self.changed:
            self.changed[tree] = text
        else:
            self.shared[tree] = text

    def without(self, trees: Iterable[int]) -> SummaryTexts:
        """Return a copy without the texts of some trees."""
        changed, blocks = dict(self.changed), list(self.blocks)
        for tree in trees:
            changed[tree] = None
            blocks[tree // TREES_PER_BLOCK] = None
        if len(changed) <= MOST_CHANGED:
            return SummaryTexts(shared=self.shared, changed=changed, blocks=blocks)
        texts = list(self.shared)
        for tree, text in changed.items():
            texts[tree] = text
        return SummaryTexts(shared=texts, changed={}, blocks=blocks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """All providers as columns; row ``i`` of every column is the same provider. Never changed.

    Rows are ordered by tree (key of the root) and within a tree depth first with children in the
    order of their keys. So a tree is one range of rows and so is every subtree.

    Attributes:
        ids: int64[N], database keys.
        uuids: uint8[N, 36], canonical text.
        names: Of each provider.
        generations: int64[N].
        modified: float64[N], newest change of the provider itself, seconds since 1970.
        parents: int32[N], rows of the parents, -1 for roots.
        ends: int32[N], row after the last one of the subtree.
        trees: int32[N], number of the tree.
        root_ids: int64[T], keys of the roots, ascending.
        starts: int32[T + 1], row of each root, and N.
        trait_bits: uint64[words, N].
        trait_bit: Trait -> bit number, for traits that some provider has or had.
        aggregate_bits: uint64[words, N].
        aggregate_bit: Uuid of an aggregate -> bit number.
        sharing: int32[K], rows of sharing providers.
        classes: Resource class -> its inventories, for classes that some provider has.
        summaries: Encoded summaries of trees.
        known_traits: Every trait that exists.
        known_classes: Every resource class that exists.
        caches: Results worked out before.
    """

    ids: Int64Column
    uuids: UInt8Column
    names: Sequence[str]
    generations: Int64Column
    modified: Float64Column
    parents: Int32Column
    ends: Int32Column
    trees: Int32Column
    root_ids: Int64Column
    starts: Int32Column
    trait_bits: UInt64Column
    trait_bit: Mapping[str, int]
    aggregate_bits: UInt64Column
    aggregate_bit: Mapping[str, int]
    sharing: Int32Column
    classes: Mapping[str, ClassColumns]
    summaries: SummaryTexts
    known_traits: frozenset[str]
    known_classes: frozenset[str]
    caches: SnapshotCaches

    def __len__(self) -> int:
        """Return the number of providers."""
        return len(self.ids)

    @property
    def tree_count(self) -> int:
        """Number of trees."""
        return len(self.root_ids)

    @property
    def is_flat(self) -> bool:
        """Whether every tree is a single provider."""
        return len(self.root_ids) == len(self.ids)

    def roots(self) -> Int32Column:
        """Return int32[T], the row of each tree's root."""
        return self.starts[:-1]

    def uuid_of(self, row: int) -> str:
        """Return the uuid of a provider."""
        return str(self.uuids[row].tobytes(), "ascii")

    def all_uuids(self) -> list[str]:
        """Return the uuid of every provider."""
        text = self.uuids.tobytes().decode()
        return [text[at : at + UUID_LENGTH] for at in range(0, len(text), UUID_LENGTH)]

    def rows_in_order(self) -> Int64Column:
        """Return int64[N], every row, in the order of the keys."""
        return self._by_id()[1]

    def row_of(self, uuid: str) -> int:
        """Return the row of a provider, -1 when there is none."""
        known = self.caches.rows_by_uuid
        if known is None:
            known = {uuid: at for at, uuid in enumerate(self.all_uuids())}
            self.caches.rows_by_uuid = known
        return known.get(uuid, NO_ROW)

    def rows_of_ids(self, ids: Int64Column) -> Int64Column:
        """Return int64[len(ids)], the rows of some keys, -1 for those that are not here."""
        keys, rows = self._by_id()
        if not len(keys):
            return np.full(len(ids), NO_ROW, dtype=np.int64)
        at = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
        return np.where(keys[at] == ids, rows[at], NO_ROW)

    def _by_id(self) -> tuple[Int64Column, Int64Column]:
        """Return int64[N], the keys in ascending order, and int64[N], their rows."""
        known = self.caches.rows_by_id
        if known is None:
            order = np.argsort(self.ids, kind="stable")
            known = self.caches.rows_by_id = self.ids[order], order
        return known

    def row_by_id(self) -> Mapping[int, int]:
        """Return the row of each key; for a few of them quicker than :meth:`rows_of_ids`."""
        known = self.caches.row_by_id
        if known is None:
            known = self.caches.row_by_id = dict(
                zip(self.ids.tolist(), range(len(self)), strict=True)
            )
        return known

    def with_amounts(
        self,
        classes: Mapping[str, ClassColumns],
        summaries: SummaryTexts,
        generations: Int64Column,
        modified: Float64Column,
    ) -> Snapshot:
        """Return the snapshot with other amounts; quicker than ``dataclasses.replace``."""
        return Snapshot(
            ids=self.ids,
            uuids=self.uuids,
            names=self.names,
            generations=generations,
            modified=modified,
            parents=self.parents,
            ends=self.ends,
            trees=self.trees,
            root_ids=self.root_ids,
            starts=self.starts,
            trait_bits=self.trait_bits,
            trait_bit=self.trait_bit,
            aggregate_bits=self.aggregate_bits,
            aggregate_bit=self.aggregate_bit,
            sharing=self.sharing,
            classes=classes,
            summaries=summaries,
            known_traits=self.known_traits,
            known_classes=self.known_classes,
            caches=self.caches,
        )

    def has_any_trait(self, names: frozenset[str]) -> BoolColumn:
        """Return bool[N], providers with at least one of the traits."""
        return _any_bit(self.trait_bits, self.trait_bit, names)

    def in_any_aggregate(self, uuids: frozenset[str]) -> BoolColumn:
        """Return bool[N], providers in at least one of the aggregates."""
        return _any_bit(self.aggregate_bits, self.aggregate_bit, uuids)

    def traits_of(self, row: int) -> list[str]:
        """Return the traits of a provider, standard ones first, each kind in alphabetical order."""
        words = self.trait_bits[:, row].tolist()
        return sorted(
            (name for name, bit in self.trait_bit.items() if words[bit >> 6] >> (bit & 63) & 1),
            key=lambda name: (name.startswith("CUSTOM_"), name),
        )

    def trait_text_of(self, row: int) -> str:
        """Return the traits of a provider as an encoded list; many providers have the same."""
        bits = self.trait_bits[:, row].tobytes()
        text = self.caches.trait_texts.get(bits)
        if text is None:
            names = ",".join(f'"{name}"' for name in self.traits_of(row))
            text = self.caches.trait_texts.setdefault(bits, f"[{names}]")
        return text

    def anchors_of(self, row: int) -> Int32Column:
        """Return int32[K], trees that a sharing provider can serve, ascending.

        Those with a member of one of its aggregates, its own among them if it is in any.

        Source: spec placement, section 5.4.
        """
        known = self.caches.anchors.get(row)
        if known is None:
            words = self.aggregate_bits[:, row]
            shared = np.zeros(len(self), dtype=np.bool_)
            for word in np.flatnonzero(words).tolist():
                shared |= (self.aggregate_bits[word] & words[word]) != 0
            known = np.unique(self.trees[shared])
            self.caches.anchors[row] = known
        return known


def _any_bit(bits: UInt64Column, bit_of: Mapping[str, int], names: frozenset[str]) -> BoolColumn:
    """Return bool[N], rows of a bit set with at least one of the named bits."""
    masks: dict[int, int] = {}
    for name in names:
        bit = bit_of.get(name)
        if bit is not None:
            masks[bit >> 6] = masks.get(bit >> 6, 0) | 1 << (bit & 63)
    found = np.zeros(bits.shape[1], dtype=np.bool_)
    for word, mask in masks.items():
        found |= (bits[word] & np.uint64(mask)) != 0
    return found
