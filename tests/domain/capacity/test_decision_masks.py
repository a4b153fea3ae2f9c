from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.nova.decision_masks import (
    BoolColumn,
    DamagedMasksError,
    compress_masks,
    names_digest,
    pack_names,
    unpack_masks,
    unpack_names,
)


def packed_bits(*masks: BoolColumn) -> bytes:
    return compress_masks([np.packbits(mask).tobytes() for mask in masks])


@given(st.integers(0, 70), st.data())
def test_masks_come_back_as_they_were_packed(host_count: int, data: st.DataObject) -> None:
    bits = st.lists(st.booleans(), min_size=host_count, max_size=host_count)
    masks = data.draw(st.lists(bits, min_size=1, max_size=5))

    packed = packed_bits(*(np.array(mask, dtype=np.bool_) for mask in masks))
    unpacked = unpack_masks(packed, mask_count=len(masks), host_count=host_count)

    assert [mask.tolist() for mask in unpacked] == masks


def test_a_step_over_ten_thousand_hosts_costs_at_most_one_bit_each() -> None:
    mask = np.random.default_rng(1).random(10_000) < 0.5

    assert len(packed_bits(mask)) <= 1250 + 32


@pytest.mark.parametrize("packed", [b"", b"no bytes of ours", packed_bits(np.ones(8, np.bool_))])
def test_masks_that_do_not_belong_to_the_listing_are_refused(packed: bytes) -> None:
    with pytest.raises(DamagedMasksError):
        unpack_masks(packed, mask_count=2, host_count=9)


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), min_size=1)))
def test_names_come_back_in_order(names: list[str]) -> None:
    assert unpack_names(pack_names(names)) == tuple(names)


def test_the_digest_knows_order() -> None:
    assert names_digest(("a", "b")) != names_digest(("b", "a"))
    assert names_digest(("a", "b")) == names_digest(tuple("ab"))
