"""Columns of anything as codes of what occurs in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final, TypeVar

import numpy as np

from scheduling.columns import Int32Column

_Key = TypeVar("_Key")
#: The largest int64.
MOST_KEYS: Final = (1 << 63) - 1


def coded(keys: Iterable[_Key]) -> tuple[Sequence[_Key], Int32Column]:
    """Return what occurs, in the order of first occurrence, and int32[K], which one each is."""
    code_of: defaultdict[_Key, int] = defaultdict(count().__next__)
    codes = np.array(list(map(code_of.__getitem__, keys)), dtype=np.int32)
    return list(code_of), codes


def combined(
    *columns: tuple[Sequence[Any], Int32Column],
) -> tuple[list[tuple[Any, ...]], Int32Column]:
    """Return which values of columns occur together, as :func:`coded` does.

    Args:
        columns: Of each what occurs, and int32[K], which of these each row has.
    """
    keys, size = np.zeros(len(columns[0][1]), dtype=np.int64), 1
    for values, codes in columns:
        if size * len(values) > MOST_KEYS:
            found, keys = np.unique(keys, return_inverse=True)
            size = len(found)
        keys = keys * len(values) + codes
        size *= len(values)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    rows = first[order]
    parts = [[values[code] for code in codes[rows].tolist()] for values, codes in columns]
    return list(zip(*parts, strict=True)), place[which]
