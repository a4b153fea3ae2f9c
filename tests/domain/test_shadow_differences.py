"""Two answers to one search, compared (spec placement, 8.5)."""

from __future__ import annotations

from typing import Any

import pytest

from placement.domain.shadow import candidate_difference


def answer(*providers: str, used: int = 0, as_list: bool = False) -> dict[str, Any]:
    def held(uuid: str) -> Any:
        if as_list:
            return [{"resource_provider": {"uuid": uuid}, "resources": {"VCPU": 1}}]
        return {uuid: {"resources": {"VCPU": 1}}}

    return {
        "allocation_requests": [{"allocations": held(uuid), "mappings": {}} for uuid in providers],
        "provider_summaries": {
            uuid: {"resources": {"VCPU": {"used": used}}, "traits": ["B", "A"]}
            for uuid in providers
        },
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "limit", "reason"),
    [
        (answer("a", "b"), answer("a", "b"), None, None),
        (answer(), answer(), None, None),
        (answer("a", as_list=True), answer("a", as_list=True), None, None),
        (answer("a", "b"), answer("b", "a"), None, "order"),
        (answer("a", "b"), answer("a"), None, "other candidates"),
        (answer("a"), answer("a", "b"), None, "other candidates"),
        (answer("a", "b", "c"), answer("c"), 1, None),
        (answer("a", "b", "c"), answer("c"), 2, "other candidates"),
        (answer("a"), answer("c"), 1, "other candidates"),
        (answer("a"), answer("a", used=1), None, "other summaries"),
    ],
)
def test_what_differs(
    ours: dict[str, Any], theirs: dict[str, Any], limit: int | None, reason: str | None
) -> None:
    found = candidate_difference(ours, theirs, limit=limit)
    assert (found.reason if found else None) == reason
