from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.domain.candidate_explain import Explanation, explain_candidates
from placement.domain.candidate_options import slot_options
from placement.domain.candidate_parsing import parse_candidates_query
from placement.domain.candidate_query import SearchOptions
from placement.domain.candidates import find_candidates, query_parts
from placement.domain.snapshot_build import Names, build_snapshot
from tests.domain.placement.forests import CLASSES, random_forest, random_query
from tests.domain.placement.test_candidates_examples import _NAME
from tests.domain.placement.worlds import (
    SHARING,
    World,
    granular,
    numa_network,
    shared_storage,
    small,
    uuid_of,
)

randoms = st.integers(0, 2**64).map(Random)


def explained(world: World, text: str) -> Explanation:
    query = parse_candidates_query(_NAME.sub(lambda match: uuid_of(match[1]), text), 39).query
    return explain_candidates(world.snapshot(), query, SearchOptions())


def funnel(explanation: Explanation, part: int = 0) -> list[tuple[str, str, int, int, int]]:
    return [
        (
            step.constraint,
            step.asked,
            step.removed_providers,
            step.left_providers,
            step.left_trees,
        )
        for step in explanation.parts[part].steps
    ]


@settings(max_examples=200, deadline=None)
@given(random=randoms)
def test_what_passes_all_steps_is_what_the_search_takes(random: Random) -> None:
    providers, inventories = random_forest(random)
    snapshot = build_snapshot(providers, inventories, Names(classes=frozenset(CLASSES)))
    query = random_query(random, providers)
    options = SearchOptions(hides_fully_held=random.random() < 0.3)
    explanation = explain_candidates(snapshot, query, options)
    for part, mine in zip(query_parts(snapshot, query, options), explanation.parts, strict=True):
        expected = slot_options(
            snapshot, part.slot, part.passing, hides_fully_held=options.hides_fully_held
        )
        assert mine.options.starts.tolist() == expected.starts.tolist()
        assert mine.options.rows.tolist() == expected.rows.tolist()
        removed = sum(step.removed_providers for step in mine.steps)
        if mine.steps:
            assert mine.steps[-1].left_providers == len(providers) - removed
            assert mine.steps[-1].left_providers == len(set(mine.options.rows.tolist()))
            assert mine.steps[-1].left_trees == int(np.count_nonzero(mine.options.counts()))
    found = len(find_candidates(snapshot, query, options))
    assert explanation.candidates == min(found, 1000)
    assert not (found and explanation.remedies)
    assert all(remedy.candidates > 0 for remedy in explanation.remedies)


def test_each_constraint_says_what_it_removes() -> None:
    explanation = explained(
        granular(), "resources=VCPU:8,MEMORY_MB:4096&required=!CUSTOM_FOO&member_of={AGGB}"
    )
    assert (explanation.providers, explanation.trees) == (6, 6)
    assert funnel(explanation) == [
        ("inventory", "VCPU", 3, 3, 3),
        ("inventory", "MEMORY_MB", 0, 3, 3),
        ("room", "VCPU:8", 0, 3, 3),
        ("room", "MEMORY_MB:4096", 0, 3, 3),
        ("forbidden", "!CUSTOM_FOO", 1, 2, 2),
        ("member_of", uuid_of("AGGB"), 0, 2, 2),
    ]
    assert explanation.candidates == 2
    assert explanation.remedies == ()


def test_sharing_providers_count_for_the_trees_they_serve() -> None:
    explanation = explained(shared_storage(), "resources=VCPU:1,DISK_GB:1901")
    assert funnel(explanation, 1) == [
        ("inventory", "DISK_GB", 9, 3, 4),
        ("room", "DISK_GB:1901", 3, 0, 0),
    ]
    assert [remedy.changes for remedy in explanation.remedies] == [
        ("ask for DISK_GB:1900 instead of DISK_GB:1901 in the unsuffixed group",)
    ]


a = ("a", "", "VCPU=8 DISK_GB=100", "A", "CUSTOM_X")
b = ("b", "", "VCPU=4", "B", "")
REMEDIES: tuple[tuple[str, tuple[Any, ...], str, list[tuple[str, ...]]], ...] = (
    (
        "a smaller amount",
        (a, b),
        "resources=VCPU:9",
        [("ask for VCPU:8 instead of VCPU:9 in the unsuffixed group",)],
    ),
    (
        "one trait less, or a smaller amount",
        (a, b),
        "resources=VCPU:5&required=!CUSTOM_X",
        [
            ("leave out required=!CUSTOM_X",),
            ("ask for VCPU:4 instead of VCPU:5 in the unsuffixed group",),
        ],
    ),
    (
        "another aggregate",
        (a, b),
        "resources=VCPU:5&member_of={B}",
        [
            (f"leave out member_of={uuid_of('B')}",),
            ("ask for VCPU:4 instead of VCPU:5 in the unsuffixed group",),
        ],
    ),
    (
        "no isolation",
        (a, b),
        "resources1=VCPU:2&resources2=DISK_GB:1&group_policy=isolate",
        [
            ("group_policy=none instead of isolate",),
            ("leave out group 1",),
            ("leave out group 2",),
        ],
    ),
    (
        "another tree",
        (a, b),
        "resources=DISK_GB:1&in_tree={b}",
        [(f"leave out in_tree={uuid_of('b')}",)],
    ),
    (
        "another root",
        (a, b),
        "resources=DISK_GB:1&root_required=!CUSTOM_X",
        [("leave !CUSTOM_X out of root_required",)],
    ),
    (
        "two changes where one is not enough",
        (a, b),
        "resources=DISK_GB:101&required=!CUSTOM_X",
        [
            (
                "leave out required=!CUSTOM_X",
                "ask for DISK_GB:100 instead of DISK_GB:101 in the unsuffixed group",
            )
        ],
    ),
    ("nothing helps", (b,), "resources=DISK_GB:1", []),
    (
        "a group less",
        (a, b),
        "resources=VCPU:9&required=!CUSTOM_X&resources1=DISK_GB:100",
        [("leave out the unsuffixed group",)],
    ),
    (
        "no other change of a group that is left out",
        (a, b),
        "resources=VCPU:9&resources1=DISK_GB:101",
        [
            (
                "ask for VCPU:8 instead of VCPU:9 in the unsuffixed group",
                "ask for DISK_GB:100 instead of DISK_GB:101 in group 1",
            ),
            ("ask for VCPU:8 instead of VCPU:9 in the unsuffixed group", "leave out group 1"),
            (
                "ask for DISK_GB:100 instead of DISK_GB:101 in group 1",
                "leave out the unsuffixed group",
            ),
        ],
    ),
)


@pytest.mark.parametrize(
    ("lines", "text", "expected"), [pytest.param(*row[1:], id=row[0]) for row in REMEDIES]
)
def test_remedies_are_the_least_changes_that_give_a_candidate(
    lines: tuple[Any, ...], text: str, expected: list[tuple[str, ...]]
) -> None:
    world = small(*lines)()
    world.add("holder", "DISK_GB=1/used:1", traits=SHARING)
    explanation = explained(world, text)
    assert explanation.candidates == 0
    assert [remedy.changes for remedy in explanation.remedies] == expected


def test_nearest_trees_name_the_groups_that_nobody_serves_there() -> None:
    explanation = explained(
        numa_network(),
        "resources_A=VCPU:1&resources_B=CUSTOM_VF:1&resources_C=VGPU:1&group_policy=none",
    )
    assert explanation.candidates == explanation.common_trees == 0
    assert [(tree.root, tree.options, tree.missing) for tree in explanation.nearest] == [
        (uuid_of("cn1"), (2, 0, 1), (1,)),
        (uuid_of("cn2"), (1, 7, 0), (2,)),
    ]


def test_a_subtree_that_nobody_meets_is_a_remedy() -> None:
    explanation = explained(
        numa_network(),
        "resources_A=VGPU:1&resources_B=FPGA:1&group_policy=none&same_subtree=_A,_B",
    )
    assert explanation.common_trees == 1
    assert [remedy.changes for remedy in explanation.remedies] == [
        ("leave out same_subtree=_A,_B",),
        ("leave out group _A",),
        ("leave out group _B",),
    ]
    assert explanation.remedies[0].candidates == 3
