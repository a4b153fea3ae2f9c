"""Answers that are kept are those that would be given anew; searches end (spec placement, 6.8)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.domain.candidate_answers import AnswerCache, CandidateAnswer, decisive_room
from placement.domain.candidate_encoding import NOTHING, encode_candidates
from placement.domain.candidate_query import (
    CandidateQuery,
    RequestGroup,
    SearchOptions,
    Strategy,
)
from placement.domain.candidates import find_candidates
from placement.domain.provider_rows import InventoryRow, ProviderRow
from placement.domain.snapshot import TREES_PER_BLOCK, Snapshot
from placement.domain.snapshot_build import Names, build_snapshot
from placement.domain.snapshot_update import replace_trees, with_usage
from placement.domain.summaries import ShownTrees, summary_pieces, tree_summaries
from tests.domain.placement.forests import CLASSES, random_forest, random_query, uuid_of
from tests.domain.placement.test_snapshot_update import changed

NAMES = Names(classes=frozenset(CLASSES))
MINOR = 39
MIB = 1 << 20
NAME = CLASSES[0]
randoms = st.integers(0, 2**64).map(Random)


def flat(count: int, *, first: int = 1) -> Snapshot:
    keys = range(first, count + 1)
    return build_snapshot(
        [ProviderRow(key, uuid_of(key), None, key) for key in keys],
        [InventoryRow(key, NAME, 8) for key in keys],
        NAMES,
    )


def asking(*amounts: int, limit: int | None = None) -> CandidateQuery:
    groups = tuple(
        RequestGroup(suffix=f"_{number}", resources={NAME: amount})
        for number, amount in enumerate(amounts)
    )
    return CandidateQuery(groups=groups, limit=limit)


def answered(
    cache: AnswerCache, key: str, snapshot: Snapshot, query: CandidateQuery
) -> CandidateAnswer:
    known = cache.known(key, snapshot)
    if known is not None:
        return known
    room = decisive_room(snapshot, query)
    found = cache.candidates(key, room)
    if found is None:
        found = find_candidates(snapshot, query)
    return cache.encoded(key, snapshot, found, MINOR, room=room)


@settings(max_examples=150, deadline=None)
@given(random=randoms)
def test_a_kept_answer_is_the_one_given_anew(random: Random) -> None:
    rows = random_forest(random)
    snapshot = build_snapshot(*rows, NAMES)
    queries = [random_query(random, rows[0]) for _ in range(3)]
    cache = AnswerCache(MIB)
    for _ in range(8):
        for number, query in enumerate(queries * 2):
            answer = answered(cache, str(number % 3), snapshot, query)
            rebuilt = build_snapshot(*rows, NAMES)
            found = find_candidates(rebuilt, query)
            assert b"".join(answer.pieces) == encode_candidates(rebuilt, found, MINOR)
            assert answer.found == len(found)
        rows, roots = changed(random, rows)
        members = [row for row in rows[0] if row.root_id in roots]
        keys = {row.provider_id for row in members}
        part = build_snapshot(
            members,
            [row for row in rows[1] if row.provider_id in keys],
            NAMES,
            trait_bit=snapshot.trait_bit,
            aggregate_bit=snapshot.aggregate_bit,
        )
        snapshot = replace_trees(snapshot, sorted(roots), part)


def test_nothing_changed_gives_the_same_answer_without_a_search() -> None:
    snapshot, cache = flat(3), AnswerCache(MIB)
    first = answered(cache, "key", snapshot, asking(1))
    assert cache.known("key", snapshot) is first
    assert cache.known("other", snapshot) is None


def test_a_write_takes_answers_away_but_not_the_list_that_it_left_alone() -> None:
    snapshot, cache = flat(3), AnswerCache(MIB)
    before = answered(cache, "key", snapshot, asking(1))
    after = with_usage(snapshot, [2], [NAME], [1])
    assert after is not None
    assert cache.known("key", after) is None
    answer = answered(cache, "key", after, asking(1))
    assert answer.pieces[1] is before.pieces[1]
    summaries = json.loads(b"".join(answer.pieces))["provider_summaries"]
    assert [one["resources"][NAME]["used"] for one in summaries.values()] == [0, 1, 0]


def test_a_write_that_leaves_room_wherever_it_was_needs_no_search() -> None:
    snapshot, cache = flat(3), AnswerCache(MIB)
    answered(cache, "key", snapshot, asking(2))
    little, much = (with_usage(snapshot, [2], [NAME], [used]) for used in (6, 7))
    assert little is not None
    assert much is not None
    assert cache.candidates("key", decisive_room(little, asking(2))) is not None
    assert cache.candidates("key", decisive_room(much, asking(2))) is None
    assert answered(cache, "key", much, asking(2)).found == 2


def test_other_traits_or_providers_need_a_search_although_there_is_as_much_room() -> None:
    rows = [ProviderRow(key, uuid_of(key), None, key) for key in (1, 2)]
    inventories = [InventoryRow(key, NAME, 8) for key in (1, 2)]
    snapshot, cache = build_snapshot(rows, inventories, NAMES), AnswerCache(MIB)
    answered(cache, "key", snapshot, asking(1))
    marked = ProviderRow(1, uuid_of(1), None, 1, traits=("CUSTOM_MARK",))
    part = build_snapshot([marked], inventories[:1], NAMES)
    after = replace_trees(snapshot, [1], part)
    assert cache.candidates("key", decisive_room(after, asking(1))) is None


def test_groups_that_ask_for_the_same_class_are_searched_for_each_time() -> None:
    assert decisive_room(flat(3), asking(1, 2)) is None
    assert decisive_room(flat(3), asking(1)) is not None


def test_no_candidates_are_an_answer() -> None:
    answer = answered(AnswerCache(MIB), "key", flat(3), asking(9))
    assert (answer.pieces, answer.found) == ((NOTHING,), 0)


def test_what_was_used_least_recently_goes_first() -> None:
    snapshot, cache = flat(3), AnswerCache(20_000)
    for number in range(10):
        answered(cache, str(number), snapshot, asking(1))
        assert cache.size_bytes <= 20_000
    kept = [number for number in range(10) if cache.known(str(number), snapshot)]
    assert len(cache) == len(kept) < 10
    assert kept == list(range(10 - len(kept), 10))


def test_no_memory_keeps_nothing_and_answers_all_the_same() -> None:
    snapshot, cache = flat(3), AnswerCache(0)
    answer = answered(cache, "key", snapshot, asking(1))
    assert answer.found == 3
    assert (cache.size_bytes, len(cache)) == (0, 0)
    assert cache.known("key", snapshot) is None


@pytest.mark.parametrize(
    "trees", [1, TREES_PER_BLOCK - 1, TREES_PER_BLOCK, 3 * TREES_PER_BLOCK + 5]
)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.99, 1.0])
def test_blocks_of_summaries_are_the_summaries_of_their_trees(trees: int, share: float) -> None:
    random = Random(trees)  # noqa: S311 - the same trees every time
    snapshot = flat(trees)
    for _ in range(4):
        wanted = np.array([random.random() < share for _ in range(trees)])
        wanted[random.randrange(trees)] = True
        whole = b",".join(tree_summaries(snapshot, np.flatnonzero(wanted).tolist()))
        assert b"".join(summary_pieces(snapshot, ShownTrees.among(wanted))) == whole
        key = random.randrange(trees) + 1
        after = with_usage(snapshot, [key], [NAME], [random.randint(1, 8)])
        assert after is not None
        snapshot = after


@pytest.mark.parametrize("gone", [[0], [-1], [0, -1], [TREES_PER_BLOCK + 3]])
def test_a_block_without_its_ends_is_shown_in_one_piece_and_right(gone: list[int]) -> None:
    trees = 3 * TREES_PER_BLOCK + 5
    snapshot, wanted = flat(trees), np.ones(trees, dtype=np.bool_)
    wanted[gone] = False
    whole = b",".join(tree_summaries(snapshot, np.flatnonzero(wanted).tolist()))
    assert b"".join(summary_pieces(snapshot, ShownTrees.among(wanted))) == whole


def test_each_of_many_snapshots_shows_its_own_amounts() -> None:
    """More trees change than one block has, and old snapshots are asked last."""
    random, trees = Random(3), TREES_PER_BLOCK + 20  # noqa: S311 - the same trees every time
    amounts, snapshot = dict.fromkeys(range(1, trees + 1), 0), flat(trees)
    states = []
    for number in range(3 * TREES_PER_BLOCK):
        key, used = random.randrange(trees) + 1, random.randint(1, 8)
        after = with_usage(snapshot, [key], [NAME], [used])
        assert after is not None
        snapshot, amounts = after, {**amounts, key: used}
        states.append((snapshot, amounts))
        if number % 3 == 0:
            few = sorted(random.sample(range(trees), random.randint(1, 5)))
            assert used_in(snapshot, few) == [amounts[tree + 1] for tree in few]
    for snapshot, amounts in random.sample(states, len(states)):
        assert used_in(snapshot, range(trees)) == list(amounts.values())
        changed_key = random.randrange(trees) + 1
        spliced = replace_trees(snapshot, [changed_key], flat(changed_key, first=changed_key))
        shown = {**amounts, changed_key: 0}
        assert used_in(spliced, range(trees)) == list(shown.values())


def used_in(snapshot: Snapshot, trees: Sequence[int]) -> list[int]:
    """Return what the summaries of some trees of one provider say."""
    texts = tree_summaries(snapshot, trees)
    shown = [next(iter(json.loads(b"{" + text + b"}").values())) for text in texts]
    return [one["resources"][NAME]["used"] for one in shown]


def test_a_block_without_a_change_is_not_made_again() -> None:
    snapshot = flat(2 * TREES_PER_BLOCK)
    wanted = np.ones(2 * TREES_PER_BLOCK, dtype=np.bool_)
    first, _, second = summary_pieces(snapshot, ShownTrees.among(wanted))
    after = with_usage(snapshot, [1], [NAME], [3])
    assert after is not None
    third, _, fourth = summary_pieces(after, ShownTrees.among(wanted))
    assert third != first
    assert fourth is second


#: Ten groups of two each among nine providers with room for one group each: in sum there is room,
#: and no combination of a million works.
HOPELESS = asking(*[2] * 10, limit=1)


def nine_children() -> Snapshot:
    children = [ProviderRow(key, uuid_of(key), 100, 100) for key in range(1, 10)]
    return build_snapshot(
        [ProviderRow(100, uuid_of(100), None, 100), *children],
        [InventoryRow(key, NAME, 3) for key in range(1, 10)],
        NAMES,
    )


@pytest.mark.parametrize("strategy", Strategy)
def test_a_hopeless_search_stops(strategy: Strategy) -> None:
    options = SearchOptions(most_tried=20_000, strategy=strategy)
    found = find_candidates(nine_children(), HOPELESS, options)
    assert (len(found), found.is_cut) == (0, True)


@pytest.mark.parametrize("strategy", Strategy)
def test_what_was_found_until_a_search_stopped_are_candidates(strategy: Strategy) -> None:
    snapshot = nine_children()
    query = asking(*[2] * 5)
    whole = find_candidates(snapshot, query, SearchOptions(strategy=strategy))
    assert (len(whole), whole.is_cut) == (9 * 8 * 7 * 6 * 5, False)
    some = find_candidates(snapshot, query, SearchOptions(strategy=strategy, most_tried=10_000))
    assert some.is_cut
    assert 0 < len(some) < len(whole)
    rows = set(zip(*(column.tolist() for column in whole.columns), strict=True))
    assert set(zip(*(column.tolist() for column in some.columns), strict=True)) <= rows


def test_a_search_that_ends_in_time_is_not_cut() -> None:
    found = find_candidates(flat(5), asking(1, 1, limit=3), SearchOptions(most_tried=1000))
    assert (len(found), found.is_cut) == (3, False)
