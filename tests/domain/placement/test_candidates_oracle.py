from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from placement.domain.candidate_encoding import encode_candidates
from placement.domain.candidate_query import CandidateQuery, SearchOptions, Strategy
from placement.domain.candidates import find_candidates
from placement.domain.snapshot import Snapshot
from placement.domain.snapshot_build import Names, build_snapshot
from tests.domain.placement.brute_force import (
    Amounts,
    Forest,
    Mappings,
    brute_force,
    summaries,
)
from tests.domain.placement.forests import CLASSES, random_forest, random_query

NAMES = Names(classes=frozenset(CLASSES))
LATEST = 39
randoms = st.integers(0, 2**64).map(Random)


def answered(
    snapshot: Snapshot, query: CandidateQuery, options: SearchOptions, minor: int = LATEST
) -> dict[str, Any]:
    found = find_candidates(snapshot, query, options)
    answer: dict[str, Any] = json.loads(encode_candidates(snapshot, found, minor))
    return answer


def as_result(request: dict[str, Any]) -> tuple[Amounts, Mappings]:
    return (
        frozenset(
            (uuid, name, amount)
            for uuid, part in request["allocations"].items()
            for name, amount in part["resources"].items()
        ),
        frozenset((suffix, frozenset(uuids)) for suffix, uuids in request["mappings"].items()),
    )


def as_results(answer: dict[str, Any]) -> list[tuple[Amounts, Mappings]]:
    return [as_result(request) for request in answer["allocation_requests"]]


@settings(max_examples=500, deadline=None)
@given(random=randoms)
def test_candidates_are_those_of_the_literal_algorithm(random: Random) -> None:
    providers, inventories = random_forest(random)
    snapshot = build_snapshot(providers, inventories, NAMES)
    for hides in (False, False, False, True, True):
        forest = Forest(providers, inventories, hides_fully_held=hides)
        query = random_query(random, providers, one_provider_per_tree=random.random() < 0.2)
        options = SearchOptions(
            strategy=random.choice(list(Strategy)),
            strict_reference=random.random() < 0.2,
            seed=random.choice((None, 1, 2)),
            hides_fully_held=hides,
        )
        note(f"{query} {options} in {providers} {inventories}")
        expected = brute_force(forest, query, strict_reference=options.strict_reference)
        answer = answered(snapshot, query, options)
        results = as_results(answer)
        assert set(results) == expected
        assert len(results) == len(expected)
        shown = answer["provider_summaries"]
        for one in shown.values():
            one["traits"].sort()
        assert shown == summaries(forest, expected)


@settings(max_examples=300, deadline=None)
@given(random=randoms)
def test_a_limit_gives_that_many_of_them_and_the_summaries_of_their_trees(random: Random) -> None:
    providers, inventories = random_forest(random)
    forest, snapshot = Forest(providers, inventories), build_snapshot(providers, inventories, NAMES)
    query = random_query(random, providers)
    expected = brute_force(forest, query)
    for limit in (1, 2, 5, 17):
        options = SearchOptions(
            strategy=random.choice(list(Strategy)),
            seed=random.choice((None, 1, 2)),
            most_candidates=random.choice((None, limit, limit + 1)),
            turn=random.randrange(100),
        )
        answer = answered(snapshot, replace(query, limit=limit), options)
        results = as_results(answer)
        assert set(results) <= expected
        assert len(set(results)) == len(results) == min(limit, len(expected))
        shown = answer["provider_summaries"]
        assert shown.keys() == summaries(forest, set(results)).keys()


@settings(max_examples=200, deadline=None)
@given(random=randoms)
def test_breadth_first_takes_evenly_from_the_trees(random: Random) -> None:
    providers, inventories = random_forest(random)
    snapshot = build_snapshot(providers, inventories, NAMES)
    query = random_query(random, providers)
    root_of = {row.uuid: row.root_id for row in providers if not row.aggregates}
    every = as_results(answered(snapshot, query, SearchOptions()))
    limit = random.randint(1, max(1, len(every)))
    some = as_results(answered(snapshot, replace(query, limit=limit), SearchOptions()))

    def per_tree(results: list[tuple[Amounts, Mappings]]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for _, mappings in results:
            used = {uuid for _, uuids in mappings for uuid in uuids}
            if used <= root_of.keys():  # nothing shared: the tree is that of any provider
                root = root_of[min(used)]
                counts[root] = counts.get(root, 0) + 1
        return counts

    have, could = per_tree(some), per_tree(every)
    if have and len(have) == len(could) and sum(could.values()) == len(every):
        most = max(have.values())
        assert all(count >= most - 1 or count == could[root] for root, count in have.items())


@settings(max_examples=100, deadline=None)
@given(random=randoms)
def test_the_same_request_has_the_same_answer_in_the_same_order(random: Random) -> None:
    providers, inventories = random_forest(random)
    query = random_query(random, providers)
    seed = random.choice((None, 7))
    answers = set()
    for _ in range(2):
        random.shuffle(providers)
        random.shuffle(inventories)
        inventories.sort(key=lambda row: row.resource_class)
        snapshot = build_snapshot(providers, inventories, NAMES)
        found = find_candidates(snapshot, query, SearchOptions(seed=seed))
        answers.add(encode_candidates(snapshot, found, LATEST))
    assert len(answers) == 1
