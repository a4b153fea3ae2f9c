"""Building a snapshot from rows (spec placement, 9.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.domain.provider_rows import SHARING_TRAIT, InventoryRow, ProviderRow
from placement.domain.snapshot import (
    NO_ROW,
    UUID_LENGTH,
    ClassColumns,
    Int32Column,
    Int64Column,
    Snapshot,
    SnapshotCaches,
    SummaryTexts,
    UInt64Column,
)
from placement.domain.text_column import TextColumn

_HIGHEST = float(2**62)
_BITS_PER_WORD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Traits and resource classes that exist, whether a provider has them or not."""

    traits: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()


def build_snapshot(
    providers: Sequence[ProviderRow],
    inventories: Sequence[InventoryRow],
    names: Names,
    *,
    trait_bit: Mapping[str, int] | None = None,
    aggregate_bit: Mapping[str, int] | None = None,
) -> Snapshot:
    """Return a snapshot of whole trees.

    Args:
        providers: Every member of each tree, in any order.
        inventories: Theirs, in any order.
        names: What exists.
        trait_bit: Bit numbers to go on from; those of new traits are added.
        aggregate_bit: Likewise.
    """
    ordered, order_of = _depth_first(providers)
    ids = np.fromiter((row.provider_id for row in ordered), dtype=np.int64, count=len(ordered))
    roots = np.fromiter((row.root_id for row in ordered), dtype=np.int64, count=len(ordered))
    root_ids, firsts = np.unique(roots, return_index=True)
    parents = np.fromiter(
        (NO_ROW if row.parent_id is None else order_of[row.parent_id] for row in ordered),
        dtype=np.int32,
        count=len(ordered),
    )
    starts: Int32Column = np.append(firsts, len(ordered)).astype(np.int32)
    traits = extended_bits(trait_bit or {}, (row.traits for row in ordered))
    aggregates = extended_bits(aggregate_bit or {}, (row.aggregates for row in ordered))
    return Snapshot(
        ids=ids,
        uuids=_uuid_text(ordered),
        names=TextColumn.of(row.name for row in ordered),
        generations=np.array([row.generation for row in ordered], dtype=np.int64),
        modified=np.array([row.modified_at for row in ordered], dtype=np.float64),
        parents=parents,
        ends=subtree_ends(parents),
        trees=np.repeat(np.arange(len(root_ids), dtype=np.int32), np.diff(starts)),
        root_ids=root_ids,
        starts=starts,
        trait_bits=_bit_columns([row.traits for row in ordered], traits),
        trait_bit=traits,
        aggregate_bits=_bit_columns([row.aggregates for row in ordered], aggregates),
        aggregate_bit=aggregates,
        sharing=np.array(
            [at for at, row in enumerate(ordered) if SHARING_TRAIT in row.traits], dtype=np.int32
        ),
        classes=_class_columns(inventories, order_of),
        summaries=SummaryTexts.empty(len(root_ids)),
        known_traits=names.traits,
        known_classes=names.classes,
        caches=SnapshotCaches(),
    )


def extended_bits(
    known: Mapping[str, int], word_sets: Iterable[Collection[str]]
) -> Mapping[str, int]:
    """Return the bit numbers with those of new words appended in alphabetical order."""
    new = set().union(*set(map(tuple, word_sets))).difference(known)
    if not new:
        return known
    bits = dict(known)
    for word in sorted(new):
        bits[word] = len(bits)
    return bits


def subtree_ends(parents: Int32Column) -> Int32Column:
    """Return int32[N], the row after the last one of each subtree.

    Args:
        parents: int32[N] of rows in depth first order, -1 for roots.
    """
    ends = np.arange(1, len(parents) + 1, dtype=np.int32)
    children = np.flatnonzero(parents >= 0)
    for row in children[::-1].tolist():
        parent = parents[row]
        ends[parent] = max(ends[parent], ends[row])
    return ends


def _depth_first(
    providers: Sequence[ProviderRow],
) -> tuple[Sequence[ProviderRow], Mapping[int, int]]:
    """Return the rows by tree, depth first, and the row number of each key."""
    ordered = sorted(providers, key=lambda row: (row.root_id, row.provider_id))
    children: defaultdict[int, list[ProviderRow]] = defaultdict(list)
    roots = []
    for row in ordered:
        if row.parent_id is None:
            roots.append(row)
        else:
            children[row.parent_id].append(row)
    if children:
        ordered = []
        pending = roots[::-1]
        while pending:
            row = pending.pop()
            ordered.append(row)
            pending.extend(reversed(children.get(row.provider_id, ())))
    return ordered, {row.provider_id: at for at, row in enumerate(ordered)}


def _uuid_text(rows: Sequence[ProviderRow]) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    text = "".join(row.uuid for row in rows).encode()
    return np.frombuffer(text, dtype=np.uint8).reshape(len(rows), UUID_LENGTH)


def _bit_columns(word_sets: Sequence[tuple[str, ...]], bits: Mapping[str, int]) -> UInt64Column:
    """Return uint64[words, rows]; rows with equal sets, which are many, are worked out once."""
    count = max(1, -(-len(bits) // _BITS_PER_WORD))
    codes: dict[tuple[str, ...], int] = {}
    code_of_row = np.fromiter(
        (codes.setdefault(words, len(codes)) for words in word_sets),
        dtype=np.int64,
        count=len(word_sets),
    )
    distinct = np.zeros((count, max(1, len(codes))), dtype=np.uint64)
    for words, code in codes.items():
        for word in words:
            bit = bits[word]
            distinct[bit >> 6, code] |= np.uint64(1 << (bit & 63))
    return distinct[:, code_of_row]


def _class_columns(
    inventories: Iterable[InventoryRow], order_of: Mapping[int, int]
) -> Mapping[str, ClassColumns]:
    by_class: defaultdict[str, list[InventoryRow]] = defaultdict(list)
    for row in inventories:
        by_class[row.resource_class].append(row)
    return {name: _one_class(by_class[name], order_of) for name in sorted(by_class)}


def _one_class(inventories: Sequence[InventoryRow], order_of: Mapping[int, int]) -> ClassColumns:
    columns = tuple(zip(*inventories, strict=True))
    keys, _, total, reserved, min_unit, max_unit, step_size, ratio, used, held = columns
    rows = np.array([order_of[key] for key in keys], dtype=np.int32)
    order = np.argsort(rows, kind="stable")

    def column(values: tuple[int, ...]) -> Int64Column:
        return np.array(values, dtype=np.int64)[order]

    real = (column(total) - column(reserved)) * np.array(ratio, dtype=np.float64)[order]
    return class_columns(
        rows=rows[order],
        capacity=np.minimum(real, _HIGHEST).astype(np.int64),
        used=column(used),
        held=column(held),
        min_unit=column(min_unit),
        max_unit=column(max_unit),
        step_size=column(step_size),
    )


def class_columns(
    *,
    rows: Int32Column,
    capacity: Int64Column,
    used: Int64Column,
    held: Int64Column,
    min_unit: Int64Column,
    max_unit: Int64Column,
    step_size: Int64Column,
) -> ClassColumns:
    """Return the columns of a class with what follows from them.

    Amounts are integers, so room up to the real capacity is room up to the truncated one.
    """
    return ClassColumns(
        rows=rows,
        top=np.minimum(capacity - used, max_unit),
        min_unit=min_unit,
        step_size=step_size,
        max_unit=max_unit,
        capacity=capacity,
        used=used,
        held=held,
        has_units=bool((min_unit > 1).any() or (step_size > 1).any()),
        has_held=bool(held.any()),
    )
