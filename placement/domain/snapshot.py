"""Columnar snapshot of all resource providers (spec placement, 6.8 and 9.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placement.domain.text_column import TextColumn

Int32Column: TypeAlias = NDArray[np.int32]
Int64Column: TypeAlias = NDArray[np.int64]
UInt64Column: TypeAlias = NDArray[np.uint64]
Float64Column: TypeAlias = NDArray[np.float64]
UInt8Column: TypeAlias = NDArray[np.uint8]
BoolColumn: TypeAlias = NDArray[np.bool_]

UUID_LENGTH = 36
NO_ROW = -1
TREES_PER_BLOCK = 64
#: Of the amounts that a class was asked for, so many are remembered; and after so few changes of
#: what is allocated each is looked at instead of all columns.
_MOST_AMOUNTS = 16
_FEW_AMOUNTS = 16
_MOST_PLACES = 1 << 14


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
        open_known: What :meth:`open_to` found before.
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
    open_known: dict[tuple[int, bool], BoolColumn] = field(default_factory=dict, init=False)

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

    def open_to(self, amount: int, *, hides_fully_held: bool = False) -> BoolColumn:
        """Return bool[M], where a search shows room for an amount; kept, and not to be changed.

        Args:
            amount: What is asked for.
            hides_fully_held: Whether those are left out whose free room is all held.
        """
        key = amount, hides_fully_held and self.has_held
        known = self.open_known.get(key)
        if known is None:
            known = self.fits(amount)
            if key[1]:
                known &= ~self.fully_held()
            known.flags.writeable = False
            if len(self.open_known) >= _MOST_AMOUNTS:
                self.open_known.clear()
            self.open_known[key] = known
        return known

    def _is_open_at(self, at: int, amount: int, *, hides_fully_held: bool) -> bool:
        """Return what :meth:`open_to` says of one place."""
        if self.top.item(at) < amount:
            return False
        if self.has_units and (
            self.min_unit.item(at) > amount or amount % self.step_size.item(at) != 0
        ):
            return False
        held = self.held.item(at) if hides_fully_held else 0
        return held <= 0 or self.capacity.item(at) - self.used.item(at) > held

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

    def with_used(self, amounts: Mapping[int, int]) -> ClassColumns:
        """Return the columns with other allocated amounts, by place.

        Where room neither began nor ended for an amount that was asked for, what is known of it is
        the very same as before.
        """
        used, top = self.used.copy(), self.top.copy()
        for at, amount in amounts.items():
            used[at] = amount
            top[at] = min(self.capacity.item(at) - amount, self.max_unit.item(at))
        fresh = ClassColumns(
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
        if len(amounts) <= _FEW_AMOUNTS:
            for (asked, hides), known in tuple(self.open_known.items()):
                for at in amounts:
                    if known.item(at) != fresh._is_open_at(at, asked, hides_fully_held=hides):
                        break
                else:
                    fresh.open_known[asked, hides] = known
        return fresh

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
        rows_by_uuid: int64[N], every row in the order of the uuids; filled at the first use, lives
            as long as trees stay.
        rows_by_id: int64[N] of keys ascending and int64[N] of their rows; likewise.
        commons: Resource classes -> providers that have all of them, and for each class where these
            are in its columns, None for everywhere; lives as long as no inventory comes or goes.
        places: Key of a provider and resource class -> see :meth:`Snapshot.place_of`; likewise.
        frames: Tree -> its encoded summary with a place for each capacity and each amount that is
            used of it, and class and place in its columns of these, in their order; lives as long
            as the filters, and no inventory comes or goes.
        trait_texts: Bit set of traits -> encoded list of their names.
        listed: Form of a list of providers -> its texts, see :mod:`placement.domain.provider_list`;
            lives as long as trees and names of providers stay.
    """

    filters: dict[object, object] = field(default_factory=dict)
    served: dict[object, tuple[Int32Column, Int32Column]] = field(default_factory=dict)
    anchors: dict[int, Int32Column] = field(default_factory=dict)
    rows_by_uuid: Int64Column | None = None
    rows_by_id: tuple[Int64Column, Int64Column] | None = None
    commons: dict[tuple[str, ...], tuple[Int32Column, Sequence[Int64Column | None]]] = field(
        default_factory=dict
    )
    places: dict[tuple[int, str], tuple[int, int, int]] = field(default_factory=dict)
    frames: dict[int, tuple[bytes, Sequence[tuple[str, int]]]] = field(default_factory=dict)
    trait_texts: dict[bytes, str] = field(default_factory=dict)
    listed: dict[object, Any] = field(default_factory=dict)  # Any: they are of a module above


@dataclass(frozen=True, slots=True, eq=False)
class SummaryBlock:
    """Summaries of trees that follow each other, joined by commas. Never changed.

    Attributes:
        text: The summaries.
        ends: int32[trees], where the summary of each tree ends in it.
        stale: Places of trees whose summary has to be made anew.
    """

    text: bytes
    ends: Int32Column
    stale: frozenset[int] = frozenset()

    @classmethod
    def of_trees(cls, texts: Sequence[bytes | None]) -> SummaryBlock:
        """Return the block of some trees, None for a summary that has to be made."""
        lengths = [0 if text is None else len(text) for text in texts]
        return cls(
            text=b",".join([text or b"" for text in texts]),
            ends=(np.cumsum(lengths) + np.arange(len(lengths))).astype(np.int32),
            stale=frozenset(place for place, text in enumerate(texts) if text is None),
        )

    def tree(self, place: int) -> bytes:
        """Return the summary of a tree, which is not stale."""
        return self.text[self._start(place) : self.ends.item(place)]

    def trees(self, places: Sequence[int]) -> bytes:
        """Return the summaries of some trees, at least one, ascending, none of them stale."""
        first, last = places[0], places[-1]
        if last - first + 1 == len(places):
            return self.text[self._start(first) : self.ends.item(last)]
        return b",".join([self.tree(place) for place in places])

    def renewed(self, texts: Mapping[int, bytes]) -> SummaryBlock:
        """Return the block with other summaries, by place in ascending order."""
        pieces: list[bytes] = []
        ends, copied = self.ends, 0
        for place, text in texts.items():
            start, end = self._start(place), self.ends.item(place)
            pieces += (self.text[copied:start], text)
            copied, longer = end, len(text) - (end - start)
            if longer:
                ends = ends.copy() if ends is self.ends else ends
                ends[place:] += longer
        stale = self.stale.difference(texts)
        return SummaryBlock(b"".join((*pieces, self.text[copied:])), ends, stale)

    def _start(self, place: int) -> int:
        return self.ends.item(place - 1) + 1 if place else 0


@dataclass(frozen=True, slots=True, eq=False)
class SummaryTexts:
    """Members of ``provider_summaries`` as encoded JSON without the braces (from 1.29).

    Summaries are made when they are needed first and then kept, many trees in one text: so an
    answer about all of them is put together of few large pieces, and they take little memory.

    Attributes:
        blocks: Of each ``TREES_PER_BLOCK`` trees; None until it is made.
    """

    blocks: list[SummaryBlock | None]

    @classmethod
    def empty(cls, tree_count: int) -> SummaryTexts:
        """Return the texts of some trees, none of them made."""
        return cls([None] * -(-tree_count // TREES_PER_BLOCK))

    def without(self, trees: Iterable[int]) -> SummaryTexts:
        """Return a copy in which the summaries of some trees are stale."""
        blocks = list(self.blocks)
        for tree in trees:
            number, place = divmod(tree, TREES_PER_BLOCK)
            block = blocks[number]
            if block is not None:
                blocks[number] = SummaryBlock(block.text, block.ends, block.stale | {place})
        return SummaryTexts(blocks)

    def rearranged(self, trees: Int64Column) -> SummaryTexts:
        """Return the texts of trees in another order.

        Args:
            trees: int64[T], for each of them its number here, -1 where it is not here.
        """
        stays = trees == np.arange(len(trees))
        blocks: list[SummaryBlock | None] = []
        for first in range(0, len(trees), TREES_PER_BLOCK):
            last, number = first + TREES_PER_BLOCK, len(blocks)
            known = self.blocks[number] if number < len(self.blocks) else None
            numbers = trees[first:last]
            if known is None or len(known.ends) != len(numbers) or not stays[first:last].all():
                texts = [self._tree(tree) for tree in numbers.tolist()]
                known = SummaryBlock.of_trees(texts) if any(texts) else None
            blocks.append(known)
        return SummaryTexts(blocks)

    def _tree(self, tree: int) -> bytes | None:
        number, place = divmod(tree, TREES_PER_BLOCK)
        block = None if tree < 0 else self.blocks[number]
        return None if block is None or place in block.stale else block.tree(place)


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
    names: TextColumn
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

    def uuids_of(self, rows: Int64Column | Int32Column) -> list[str]:
        """Return the uuids of some providers."""
        text = self.uuids[rows].tobytes().decode()
        return [text[at : at + UUID_LENGTH] for at in range(0, len(text), UUID_LENGTH)]

    def rows_in_order(self) -> Int64Column:
        """Return int64[N], every row, in the order of the keys."""
        return self._by_id()[1]

    def row_of(self, uuid: str) -> int:
        """Return the row of a provider, -1 when there is none."""
        texts = self.uuids.view(f"S{UUID_LENGTH}").reshape(-1)
        rows = self.caches.rows_by_uuid
        if rows is None:
            rows = self.caches.rows_by_uuid = np.argsort(texts, kind="stable")
        wanted = uuid.encode()
        at = int(texts.searchsorted(np.bytes_(wanted), sorter=rows))
        if at == len(rows):
            return NO_ROW
        row = rows.item(at)
        return row if texts.item(row) == wanted else NO_ROW

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

    def row_of_id(self, key: int) -> int:
        """Return the row of a key, -1 when it is not here; for a few quicker than many at once."""
        keys, rows = self._by_id()
        at = int(keys.searchsorted(np.int64(key)))
        return rows.item(at) if at < len(rows) and keys.item(at) == key else NO_ROW

    def place_of(self, key: int, name: str) -> tuple[int, int, int] | None:
        """Return tree and row of a provider by its key, and the place of its inventory of a class.

        None when it has none, or is not here. Remembered in the caches, where to look first is
        quicker.
        """
        columns, row = self.classes.get(name), self.row_of_id(key)
        at = NO_ROW if columns is None or row == NO_ROW else columns.position(row)
        if at == NO_ROW:
            return None
        places = self.caches.places
        if len(places) >= _MOST_PLACES:
            places.clear()
        return places.setdefault((key, name), (self.trees.item(row), row, at))

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
