"""Names in columns are found as those in a dictionary are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.host_names import MOST_NAME_BYTES, HostNames, HostWeights, NameIndex, WordsOfText

LETTERS = "ab01-"
ASKED = st.text(LETTERS, max_size=20) | st.text(LETTERS, min_size=250, max_size=MOST_NAME_BYTES)
KNOWN = ASKED | st.text(max_size=9) | st.text(LETTERS, min_size=257, max_size=270)


def in_columns(names: list[str]) -> HostNames:
    text = "".join(f'"{name}"' for name in names).encode()
    quotes = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord('"')).reshape(-1, 2)
    return HostNames(WordsOfText(text), quotes[:, 0] + 1, quotes[:, 1])


@given(known=st.lists(KNOWN, max_size=30, unique=True), others=st.lists(ASKED, max_size=10))
def test_rows_are_those_of_a_dictionary(known: list[str], others: list[str]) -> None:
    in_text = [name for name in known if name.isascii() and '"' not in name and len(name) <= 256]
    asked = [*others, *in_text, *others]
    row_of = {name: row for row, name in enumerate(known)}
    found = NameIndex(known).rows_of(in_columns(asked)).tolist()
    expected = [row_of.get(name, -1) for name in asked]
    lost = [row for row, wanted in zip(found, expected, strict=True) if row != wanted]
    assert set(lost) <= {-1}  # another has its slot: looked up one by one


def test_name_with_a_zero_byte_is_not_that_without() -> None:
    assert NameIndex(["a\0", "b"]).rows_of(in_columns(["a", "b"])).tolist() == [-1, 1]


def test_most_names_are_found_at_once() -> None:
    names = [f"node{number:05d}-bb{number % 97}.zone-{number % 3}" for number in range(10_000)]
    rows = NameIndex(names).rows_of(in_columns(names[::-1]))
    assert np.count_nonzero(rows == np.arange(10_000)[::-1]) > 9980


def test_a_long_name_in_the_table_hides_no_short_one() -> None:
    rows = NameIndex(["node-1", "node-2", "n" * 60]).rows_of(in_columns(["node-2", "node-1"]))
    assert rows.tolist() == [1, 0]


@given(names=st.lists(ASKED, max_size=8), other=st.lists(ASKED, max_size=8))
def test_names_in_columns_are_a_sequence(names: list[str], other: list[str]) -> None:
    columns = in_columns(names)
    assert columns == tuple(names)
    assert columns == in_columns(names)
    assert (columns == in_columns(other)) is (names == other)
    assert hash(columns) == hash(tuple(names))
    assert [columns[place] for place in range(len(names))] == names
    assert columns[1:3] == tuple(names[1:3])
    for name in (*names, *other, "ö", "a\0", "a" * 300):
        assert (name in columns) is (name in names)


def test_weights_in_a_column_are_a_mapping() -> None:
    weights = HostWeights(in_columns(["a", "b"]), np.array([0.5, 2.0]))
    assert weights == {"a": 0.5, "b": 2.0}
    assert ("a" in weights, "c" in weights) == (True, False)
    with pytest.raises(KeyError):
        weights["c"]
