"""A column of texts says what a list of them says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placement.domain.text_column import TextColumn

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=8)


@given(texts=texts, more=texts, data=st.data())
def test_rows_are_those_of_the_list(texts: list[str], more: list[str], data: st.DataObject) -> None:
    both = TextColumn.of(texts).joined(TextColumn.of(more))
    known = [*texts, *more]
    assert (len(both), list(both)) == (len(known), known)
    assert [both[row] for row in range(len(both))] == known
    rows = data.draw(st.lists(st.integers(0, len(known) - 1)) if known else st.just([]))
    picked = np.array(rows, dtype=np.int64)
    assert both.of_rows(picked) == [known[row] for row in rows]
    assert list(both.chosen(picked)) == [known[row] for row in rows]
