"""Comparing two provider snapshots: the self-check of the one that is brought forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from placement.domain.snapshot import NO_ROW, BoolColumn, ClassColumns, Int64Column, Snapshot

_FIGURES: Final = ("min_unit", "step_size", "max_unit", "capacity", "top")
#: What a difference may be in.
PARTS: Final = (
    "providers",
    "uuids",
    "versions",
    "parents",
    "traits",
    "aggregates",
    "sharing",
    "inventories",
    "used",
    "held",
    "names",
)


def snapshot_differences(left: Snapshot, right: Snapshot) -> Mapping[str, int]:
    """Count what two snapshots say differently; row and bit numbers do not matter.

    Returns:
        One of :data:`PARTS` -> how many providers, inventories or names differ, without those that
        agree. Of providers that only one has, nothing but their number is told.
    """
    _, here, there = np.intersect1d(left.ids, right.ids, assume_unique=True, return_indices=True)
    counts = {
        "providers": len(left) + len(right) - 2 * len(here),
        "uuids": _unequal(left.uuids[here], right.uuids[there]),
        "versions": int(np.count_nonzero(_versions_differ(left, here, right, there))),
        "parents": _unequal(_parent_ids(left)[here], _parent_ids(right)[there]),
        "traits": _unequal_bits(
            (left.trait_bits[:, here], left.trait_bit),
            (right.trait_bits[:, there], right.trait_bit),
        ),
        "aggregates": _unequal_bits(
            (left.aggregate_bits[:, here], left.aggregate_bit),
            (right.aggregate_bits[:, there], right.aggregate_bit),
        ),
        "sharing": len(np.setxor1d(left.ids[left.sharing], right.ids[right.sharing])),
        "names": len(left.known_traits ^ right.known_traits)
        + len(left.known_classes ^ right.known_classes),
        **dict.fromkeys(("inventories", "used", "held"), 0),
    }
    for name in left.classes.keys() | right.classes.keys():
        for part, count in _class_differences(left, right, name).items():
            counts[part] += count
    return {part: counts[part] for part in PARTS if counts[part]}


def _class_differences(left: Snapshot, right: Snapshot, name: str) -> Mapping[str, int]:
    ours, theirs = left.classes.get(name), right.classes.get(name)
    if ours is None or theirs is None:
        only = ours or theirs
        return {"inventories": 0 if only is None else len(only.rows)}
    _, here, there = np.intersect1d(
        left.ids[ours.rows], right.ids[theirs.rows], assume_unique=True, return_indices=True
    )
    unequal = np.zeros(len(here), dtype=np.bool_)
    used, held = (
        _differ(ours, theirs, "used", here, there),
        _differ(ours, theirs, "held", here, there),
    )
    for figure in _FIGURES:
        unequal |= _differ(ours, theirs, figure, here, there)
    only_one = len(ours.rows) + len(theirs.rows) - 2 * len(here)
    return {
        "inventories": only_one + int(np.count_nonzero(unequal & ~used & ~held)),
        "used": int(np.count_nonzero(used)),
        "held": int(np.count_nonzero(held)),
    }


def _differ(
    ours: ClassColumns, theirs: ClassColumns, name: str, here: Int64Column, there: Int64Column
) -> BoolColumn:
    differing: BoolColumn = getattr(ours, name)[here] != getattr(theirs, name)[there]
    return differing


def _versions_differ(
    left: Snapshot, here: Int64Column, right: Snapshot, there: Int64Column
) -> BoolColumn:
    """Return bool[len(here)], providers of another name, generation or time of change."""
    differing: BoolColumn = left.generations[here] != right.generations[there]
    differing |= left.modified[here] != right.modified[there]
    names = zip(here.tolist(), there.tolist(), strict=True)
    differing |= np.array([left.names[one] != right.names[two] for one, two in names], dtype=bool)
    return differing


def _parent_ids(snapshot: Snapshot) -> Int64Column:
    if not len(snapshot):
        return snapshot.ids
    return np.where(snapshot.parents == NO_ROW, NO_ROW, snapshot.ids[snapshot.parents])


def _unequal(left: NDArray[Any], right: NDArray[Any]) -> int:  # Any: columns of several types
    differing = left != right
    return int(np.count_nonzero(differing.any(axis=1) if differing.ndim > 1 else differing))


def _unequal_bits(
    left: tuple[NDArray[np.uint64], Mapping[str, int]],
    right: tuple[NDArray[np.uint64], Mapping[str, int]],
) -> int:
    """Count the providers of whom bits of the same name differ; absent names have no bits set."""
    differing = np.zeros(left[0].shape[1], dtype=np.bool_)
    for name in left[1].keys() | right[1].keys():
        differing |= _bit(*left, name) != _bit(*right, name)
    return int(np.count_nonzero(differing))


def _bit(bits: NDArray[np.uint64], bit_of: Mapping[str, int], name: str) -> BoolColumn:
    at = bit_of.get(name)
    if at is None:
        return np.zeros(bits.shape[1], dtype=np.bool_)
    found: BoolColumn = (bits[at >> 6] >> np.uint64(at & 63)) & np.uint64(1) != 0
    return found
