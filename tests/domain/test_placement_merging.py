"""Answers of two Placements made one (spec placement, 8.5)."""

from __future__ import annotations

from typing import Any

import pytest

from placement.domain.merging import (
    VersionRange,
    merged_candidates,
    merged_providers,
    merged_usages,
    version_range,
)


def document(low: str, high: str) -> dict[str, Any]:
    return {"versions": [{"id": "v1.0", "min_version": low, "max_version": high}]}


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        ((0, 39), ("1.0", "1.36"), (0, 36)),
        ((0, 39), ("1.10", "1.50"), (10, 39)),
        ((0, 9), ("1.10", "1.39"), (0, 9)),
        ((9, 39), ("1.10", "1.39"), (10, 39)),
    ],
)
def test_versions_of_both(
    ours: tuple[int, int], theirs: tuple[str, str], both: tuple[int, int]
) -> None:
    found = version_range(document(*theirs))
    assert found is not None
    assert VersionRange(*ours).joined(found) == VersionRange(*both)


@pytest.mark.parametrize(
    "unusable",
    [
        {"versions": []},
        {},
        [],
        None,
        "x",
        document("2.0", "2.1"),
        document("1", "x"),
        {"versions": 1},
    ],
)
def test_documents_that_say_no_versions(unusable: object) -> None:
    assert version_range(unusable) is None


def test_their_providers_that_have_nothing_of_ours() -> None:
    ours = [{"uuid": "1", "name": "b"}]
    theirs = [{"uuid": uuid, "name": name} for uuid, name in (("1", "x"), ("2", "h"), ("3", "a"))]
    merged = merged_providers(ours, theirs, {("1", "b"), ("9", "h")})
    assert [one["name"] for one in merged] == ["a", "b"]


def test_usages_are_sums() -> None:
    assert merged_usages({"usages": {"A": 1, "B": 2}}, {"usages": {"B": 3}}) == {
        "usages": {"A": 1, "B": 5}
    }
    ours = {"usages": {"INSTANCE": {"A": 1, "consumer_count": 1}}}
    theirs = {"usages": {"INSTANCE": {"A": 2, "consumer_count": 2}, "unknown": {"A": 0}}}
    assert merged_usages(ours, theirs)["usages"] == {
        "INSTANCE": {"A": 3, "consumer_count": 3},
        "unknown": {"A": 0},
    }


def candidate(*providers: str) -> dict[str, Any]:
    return {"allocations": {uuid: {"resources": {"VCPU": 1}} for uuid in providers}}


def test_candidates_with_the_trees_that_they_need() -> None:
    def summary(root: str) -> dict[str, Any]:
        return {"resources": {}, "root_provider_uuid": root}

    ours = {
        "allocation_requests": [candidate("o1")],
        "provider_summaries": {"o1": summary("o"), "o": summary("o")},
    }
    theirs = {
        "allocation_requests": [
            candidate("o1"),
            candidate("t1", "o"),
            candidate("t1"),
            candidate("t2"),
        ],
        "provider_summaries": {
            "o": summary("wrong"),
            "t1": summary("t"),
            "t": summary("t"),
            "t2": summary("t2"),
        },
    }
    twice = {**theirs, "allocation_requests": [candidate("t1"), candidate("t1")]}
    assert len(merged_candidates(ours, twice, owned=(), limit=None)["allocation_requests"]) == 3
    merged = merged_candidates(ours, theirs, owned={"o"}, limit=2)
    assert merged["allocation_requests"] == [candidate("o1"), candidate("t1")]
    assert merged["provider_summaries"] == {
        "o1": summary("o"),
        "o": summary("o"),
        "t1": summary("t"),
        "t": summary("t"),
    }
