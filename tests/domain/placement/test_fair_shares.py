"""Where a limit cuts, owners and strangers have half of the places each (spec placement, 8.4)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placement.domain.candidate_answers import decisive_room
from placement.domain.candidate_explain import explain_candidates
from placement.domain.candidate_query import CandidateQuery, RequestGroup, SearchOptions
from placement.domain.candidates import find_candidates
from placement.domain.fair_shares import fair_order, too_held_trees
from placement.domain.provider_rows import InventoryRow, ProviderRow
from placement.domain.snapshot import Snapshot
from placement.domain.snapshot_build import Names, build_snapshot
from placement.domain.snapshot_update import with_held, with_usage
from tests.domain.placement.forests import uuid_of

NAME = "MEMORY_MB"
kinds = st.lists(st.booleans(), min_size=1, max_size=40)


def shown(is_held: list[bool], places: int, turn: int) -> list[int]:
    order: list[int] = fair_order(np.array(is_held), places, turn).tolist()
    assert sorted(order) == list(range(len(is_held)))
    assert order == fair_order(np.array(is_held), places, turn).tolist()
    return order[:places]


@given(is_held=kinds, places=st.integers(1, 50), turn=st.integers(0, 2**30))
def test_each_kind_has_half_of_the_places_and_those_that_the_other_leaves(
    is_held: list[bool], places: int, turn: int
) -> None:
    chosen = shown(is_held, places, turn)
    held = sum(is_held[at] for at in chosen)
    free = len(chosen) - held
    extra = places % 2
    more = (extra * (1 - turn % 2), extra * (turn % 2))
    for count, others, every, share in (
        (free, held, is_held.count(False), places // 2 + more[0]),
        (held, free, is_held.count(True), places // 2 + more[1]),
    ):
        assert count >= min(share, every)
        assert count <= share or others == len(is_held) - every


@given(is_held=kinds, places=st.integers(2, 50), begin=st.integers(0, 2**30))
def test_whoever_asks_on_is_shown_every_host(is_held: list[bool], places: int, begin: int) -> None:
    turns = -(-len(is_held) // (places // 2))
    for first in (begin, begin + 1, begin + 7):
        seen = {at for turn in range(first, first + turns) for at in shown(is_held, places, turn)}
        assert seen == set(range(len(is_held)))


@given(is_held=kinds, begin=st.integers(0, 2**30))
def test_a_single_place_goes_to_each_kind_in_turn(is_held: list[bool], begin: int) -> None:
    turns = range(begin, begin + 2 * len(is_held))
    seen = [at for turn in turns for at in shown(is_held, 1, turn)]
    assert set(seen) == set(range(len(is_held)))
    if len(set(is_held)) > 1:
        assert all(is_held[one] != is_held[other] for one, other in pairwise(seen))


def cloud(held: list[int], *, parts: int = 1) -> Snapshot:
    """Return hosts with room for 8 each of which some is held; with parts they have children."""
    roots = [100 * number for number in range(1, len(held) + 1)]
    rows = [ProviderRow(key, uuid_of(key), None, key) for key in roots]
    children = [
        ProviderRow(key + n, uuid_of(key + n), key, key) for key in roots for n in range(1, parts)
    ]
    amounts = [
        InventoryRow(key, NAME, 8, held=amount) for key, amount in zip(roots, held, strict=True)
    ]
    amounts += [InventoryRow(row.provider_id, "VGPU", 1) for row in children]
    return build_snapshot([*rows, *children], amounts, Names(classes=frozenset({NAME, "VGPU"})))


def asking(amount: int, limit: int | None, **more: int) -> CandidateQuery:
    group = RequestGroup(resources={NAME: amount, **more})
    return CandidateQuery(groups=(group,), limit=limit)


def trees(snapshot: Snapshot, query: CandidateQuery, **options: int) -> list[int]:
    found = find_candidates(snapshot, query, SearchOptions(**options))  # type: ignore[arg-type]  # ints only
    return sorted(snapshot.trees[found.columns[0]].tolist())


def test_a_limit_that_cuts_shows_both_kinds_and_goes_on() -> None:
    held = [8, 8, 8, 8, 0, 0, 0, 0]
    for snapshot, query in (
        (cloud(held), asking(4, 4)),
        (cloud(held, parts=3), asking(4, 4, VGPU=1)),
    ):
        assert trees(snapshot, query) == [0, 1, 4, 5]
        assert trees(snapshot, query, turn=1) == [2, 3, 6, 7]
        assert find_candidates(snapshot, query).is_turn


def test_holds_that_leave_enough_make_no_difference() -> None:
    snapshot = cloud([4, 4, 0, 0])
    assert trees(snapshot, asking(4, 2), turn=1) == [0, 1]
    assert not find_candidates(snapshot, asking(4, 2)).is_turn
    assert trees(snapshot, asking(5, 2), turn=1) == [1, 3]
    assert trees(snapshot, asking(5, None), turn=1) == [0, 1, 2, 3]
    assert too_held_trees(cloud([0, 0]), asking(5, 2)) is None


def test_what_is_held_is_part_of_what_an_answer_follows_from() -> None:
    before = cloud([8, 0])
    after = with_held(before, [100], NAME, [0])
    query = asking(4, 1)
    one, other = decisive_room(before, query), decisive_room(after, query)
    assert one is not None
    assert other is not None
    assert one.is_same(one)
    assert not one.is_same(other)
    assert not other.is_same(one)


def test_hosts_all_of_whose_room_is_held_are_hidden_where_that_is_set() -> None:
    snapshot = cloud([8, 7, 0])
    assert trees(snapshot, asking(4, None)) == [0, 1, 2]
    assert trees(snapshot, asking(4, None), hides_fully_held=True) == [1, 2]
    used = with_usage(snapshot, [200], [NAME], [1])
    assert used is not None
    assert trees(used, asking(4, None), hides_fully_held=True) == [2]


def test_explanations_tell_of_held_hosts() -> None:
    options = SearchOptions(hides_fully_held=True)
    explanation = explain_candidates(cloud([8, 8, 0]), asking(4, None), SearchOptions())
    assert (explanation.common_trees, explanation.held_trees) == (3, 2)
    hidden = explain_candidates(cloud([8, 8]), asking(4, None), options)
    assert [(step.constraint, step.left_trees) for step in hidden.parts[0].steps] == [
        ("inventory", 2),
        ("room", 2),
        ("held", 0),
    ]
    (remedy,) = hidden.remedies
    assert remedy.changes == ("show hosts all of whose room is held",)
    assert remedy.candidates == 2
