"""Which row a child row belongs to, as columns with an overlay."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capacity.host_table.owners import OwnerMap
from scheduling.columns import Int64Column

keys = st.integers(1, 12)
pairs = st.dictionaries(keys, keys)
changes = st.lists(st.dictionaries(keys, st.none() | keys, max_size=4), max_size=3)


@given(pairs, changes, st.lists(st.tuples(keys, keys)))
def test_owners_that_a_map_does_not_know_are_found(
    start: dict[int, int],
    later: list[dict[int, int | None]],
    asked: list[tuple[int, int]],
) -> None:
    known = OwnerMap.from_pairs([as_columns(start.items())])
    truth: dict[int, int | None] = dict(start)
    for one in later:
        known = known.updated(one)
        truth |= one
    expected = {owner for child, owner in asked if truth.get(child) != owner}
    assert known.owners_elsewhere(as_columns(asked)) == expected
    assert {child: known.owner_of(child) for child in range(1, 13)} == {
        child: truth.get(child) for child in range(1, 13)
    }


def as_columns(pairs: Iterable[tuple[int, int]]) -> Int64Column:
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
