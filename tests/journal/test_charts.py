from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from console.charts import BAR_WIDTH, Segment, stacked_bar


def widths(svg: str) -> list[tuple[int, int]]:
    return [
        (int(x), int(w)) for x, w in re.findall(r'<rect [^>]* x="(\d+)"[^>]*width="(\d+)"', svg)
    ]


@given(amounts=st.lists(st.integers(0, 2**50), max_size=6), capacity=st.integers(0, 2**50))
def test_segments_stay_within_the_bar_and_follow_each_other(
    amounts: list[int], capacity: int
) -> None:
    segments = [Segment(kind="vms", amount_units=amount, text=str(amount)) for amount in amounts]

    drawn = widths(stacked_bar(segments, capacity_units=capacity, title="memory"))

    assert len(drawn) == sum(amount > 0 for amount in amounts)
    starts = [start for start, _ in drawn]
    assert starts == sorted(starts)
    assert all(start + width <= BAR_WIDTH + 2 for start, width in drawn)


def test_names_are_escaped_and_read_aloud() -> None:
    svg = stacked_bar(
        [Segment(kind="vms", amount_units=1, text="1 GiB", label="<b>")],
        capacity_units=2,
        title='"x"',
    )

    assert "<b>" not in svg
    assert 'role="img"' in svg
    assert "&lt;b&gt;: 1 GiB" in svg


def test_what_exceeds_the_capacity_is_marked() -> None:
    segment = Segment(kind="vms", amount_units=4, text="4")

    assert "capacity ends here" in stacked_bar([segment], capacity_units=2, title="t")
    assert "capacity ends here" not in stacked_bar([segment], capacity_units=4, title="t")
