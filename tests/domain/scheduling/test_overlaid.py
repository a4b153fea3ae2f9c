"""The overlaid mapping is a dictionary, whatever was changed in it and however often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling import overlaid
from scheduling.overlaid import Overlaid

Changes = dict[int, int | None]
KEYS = st.integers(0, 12)


@pytest.mark.parametrize("compact_above", [0, 3, 1000])
@given(
    base=st.dictionaries(KEYS, st.integers()),
    steps=st.lists(st.dictionaries(KEYS, st.none() | st.integers()), max_size=8),
)
def test_it_is_the_dictionary_with_the_same_changes(
    compact_above: int, base: dict[int, int], steps: list[Changes]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlaid, "_COMPACT_ABOVE", compact_above)
        plain, mapping = dict(base), Overlaid(base)
        for changes in steps:
            before, copy = mapping, dict(mapping)
            mapping = mapping.changed(changes)
            plain = {key: found for key, found in {**plain, **changes}.items() if found is not None}
            assert dict(before) == copy
            assert dict(mapping) == plain
            assert (len(mapping), sorted(mapping)) == (len(plain), sorted(plain))
            assert [key in mapping for key in range(13)] == [key in plain for key in range(13)]
            assert [mapping.get(key) for key in range(13)] == [plain.get(key) for key in range(13)]
