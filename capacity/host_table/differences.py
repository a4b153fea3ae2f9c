"""Comparing two host tables host by host: the self-check of the incremental one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.columns import BIT_COLUMNS, CAPACITY_COLUMNS, CODE_COLUMNS, BoolColumn
from scheduling.instances import differing_pairs
from scheduling.reservations import ReservationIndex
from scheduling.table import HostTable
from scheduling.table_rows import ReservationRow

_PLAIN_COLUMNS = ("host_ids", "name_hashes", "is_known", "state_ok", *CAPACITY_COLUMNS)
_WIDE_COLUMNS = ("others_left",)
_GROUPINGS = (
    "committed",
    "failover_of_vm",
    "failover_on",
    "failover_of_size",
    "in_flight_of_vm",
    "in_flight",
    "slots_expecting",
)
_LISTS = ("failover", "all_committed")


def table_differences(left: HostTable, right: HostTable) -> Mapping[str, int]:
    """Count what two tables say differently; row numbers and codes do not matter.

    Returns:
        Column or side table -> how many hosts or keys differ, without those that agree. ``names``
        counts the hosts that only one table has; the others are compared column by column.
    """
    names = sorted(set(left.names) & set(right.names))
    counts = {"names": len(set(left.names) ^ set(right.names))}
    here = np.array([left.row_of[name] for name in names], dtype=np.int64)
    there = np.array([right.row_of[name] for name in names], dtype=np.int64)
    for column in _PLAIN_COLUMNS:
        counts[column] = _unequal(getattr(left, column)[here], getattr(right, column)[there])
    for column in _WIDE_COLUMNS:
        differ = getattr(left, column)[here] != getattr(right, column)[there]
        counts[column] = int(np.count_nonzero(differ.any(axis=1)))
    for column, (words, _, _) in CODE_COLUMNS.items():
        ours, theirs = _shared_codes(getattr(left, words), getattr(right, words))
        counts[column] = _unequal(
            ours[getattr(left, column)[here]], theirs[getattr(right, column)[there]]
        )
    for column, (bits, _) in BIT_COLUMNS.items():
        counts[column] = _unequal_bits(
            (getattr(left, column)[here], getattr(left, bits)),
            (getattr(right, column)[there], getattr(right, bits)),
        )
    counts |= _instance_differences(left, right)
    counts |= _reservation_differences(left.reservations, right.reservations)
    return {name: count for name, count in counts.items() if count}


def _unequal(left: NDArray[Any], right: NDArray[Any]) -> int:  # Any: columns of several dtypes
    return int(np.count_nonzero(left != right))


def _shared_codes(
    left: tuple[Any, ...],  # Any: vocabularies of several types
    right: tuple[Any, ...],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for both vocabularies the code of each word in one vocabulary for both."""
    code_of = {word: code for code, word in enumerate(dict.fromkeys((*left, *right)))}
    return (
        np.array([code_of[word] for word in left], dtype=np.int64),
        np.array([code_of[word] for word in right], dtype=np.int64),
    )


def _unequal_bits(
    left: tuple[NDArray[np.uint64], Mapping[str, int]],
    right: tuple[NDArray[np.uint64], Mapping[str, int]],
) -> int:
    differs: BoolColumn = np.zeros(len(left[0]), dtype=np.bool_)
    for word in sorted({*left[1], *right[1]}):
        differs |= _has_word(*left, word) != _has_word(*right, word)
    return int(np.count_nonzero(differs))


def _has_word(column: NDArray[np.uint64], bits: Mapping[str, int], word: str) -> BoolColumn:
    if word not in bits:
        return np.zeros(len(column), dtype=np.bool_)
    index, bit = divmod(bits[word], 64)
    found: BoolColumn = (column[:, index] >> np.uint64(bit)) & np.uint64(1) == np.uint64(1)
    return found


def _instance_differences(left: HostTable, right: HostTable) -> dict[str, int]:
    """Count the hosts of both tables that list other VMs, and the VMs that are on other hosts."""
    number_of = {name: number for number, name in enumerate({*left.names, *right.names})}
    numbered = [
        table.instance_index.renumbered([number_of[name] for name in table.names])
        for table in (left, right)
    ]
    hosts, vms = differing_pairs(*numbered)
    common = [number_of[name] for name in set(left.names) & set(right.names)]
    misplaced = left.instance_index.misplaced() + right.instance_index.misplaced()
    return {
        "instances": int(np.count_nonzero(np.isin(hosts, common))),
        "instance_index": vms + misplaced,
    }


def _reservation_differences(left: ReservationIndex, right: ReservationIndex) -> dict[str, int]:
    """Compare the rows by key, and everything else by the keys of the rows in it."""
    counts = {"reservations": _unequal_entries(left.by_id, right.by_id)}
    for grouping in _GROUPINGS:
        ours, theirs = (
            {key: _keys(rows) for key, rows in getattr(index, grouping).items()}
            for index in (left, right)
        )
        counts[f"reservations_{grouping}"] = _unequal_entries(ours, theirs)
    for listing in _LISTS:
        is_equal = _keys(getattr(left, listing)) == _keys(getattr(right, listing))
        counts[f"reservations_{listing}"] = int(not is_equal)
    return counts


def _keys(rows: Iterable[ReservationRow]) -> tuple[int, ...]:
    return tuple(row.reservation_id for row in rows)


def _unequal_entries(
    left: Mapping[Any, object],  # Any: keys of several types
    right: Mapping[Any, object],
) -> int:
    both = left.keys() & right.keys()
    return len(left.keys() ^ right.keys()) + sum(left[key] != right[key] for key in both)
