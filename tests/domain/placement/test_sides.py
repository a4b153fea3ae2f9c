from __future__ import annotations

from typing import Any

import pytest

from placement.domain.sides import Side, Standing, changes_trees, side_of
from placement.domain.touched import Touched

NAMES = Touched(has_names=True)
PROVIDER = "/resource_providers/a"
CLAIM = "/allocations/c"


def standing(*facts: str) -> Standing:
    known: dict[str, Any] = dict.fromkeys(facts, True)  # Any: all that are named are booleans
    return Standing(**known)


@pytest.mark.parametrize(
    ("method", "path", "facts", "side"),
    [
        # Trees: names and UUIDs of providers are unique on both sides together.
        ("POST", "/resource_providers", (), Side.THERE),
        ("POST", "/resource_providers", ("names_others",), Side.THERE),
        ("POST", "/resource_providers", ("names_ours", "names_others"), Side.BOTH),
        ("PUT", PROVIDER, ("names_others",), Side.THERE),
        ("PUT", PROVIDER, ("names_ours",), Side.BOTH),
        ("PUT", PROVIDER, ("names_ours", "names_others"), Side.NEITHER),
        ("DELETE", PROVIDER, ("names_ours",), Side.BOTH),
        # What is below one provider is whose it is.
        ("PUT", f"{PROVIDER}/inventories", ("names_ours",), Side.HERE),
        ("PUT", f"{PROVIDER}/traits", ("names_others",), Side.THERE),
        ("DELETE", f"{PROVIDER}/inventories/VCPU", ("names_ours",), Side.HERE),
        # Allocations: named and held.
        ("PUT", CLAIM, ("names_ours",), Side.HERE),
        ("PUT", CLAIM, ("names_ours", "holds_ours"), Side.HERE),
        ("PUT", CLAIM, ("names_ours", "waits"), Side.HERE),
        ("PUT", CLAIM, ("names_ours", "is_unclear"), Side.BOTH),
        ("PUT", CLAIM, ("names_ours", "names_others"), Side.BOTH),
        ("PUT", CLAIM, ("names_ours", "holds_theirs"), Side.BOTH),
        ("PUT", CLAIM, ("names_others",), Side.THERE),
        ("PUT", CLAIM, ("names_others", "holds_theirs", "is_unclear"), Side.THERE),
        ("PUT", CLAIM, ("names_others", "holds_ours"), Side.BOTH),
        ("PUT", CLAIM, ("names_others", "waits"), Side.BOTH),
        ("DELETE", CLAIM, (), Side.THERE),
        ("DELETE", CLAIM, ("holds_ours",), Side.HERE),
        ("DELETE", CLAIM, ("holds_theirs",), Side.THERE),
        ("DELETE", CLAIM, ("holds_ours", "holds_theirs"), Side.BOTH),
        ("DELETE", CLAIM, ("waits",), Side.BOTH),
        ("POST", "/allocations", ("names_ours", "holds_theirs"), Side.BOTH),
        ("POST", "/reshaper", ("names_ours", "holds_ours"), Side.HERE),
        ("POST", "/reshaper", ("names_ours", "names_others"), Side.BOTH),
        ("POST", "/reshaper", ("names_others",), Side.THERE),
        ("POST", "/no/such/path", ("names_ours",), Side.THERE),
    ],
)
def test_a_write_is_done_by(method: str, path: str, facts: tuple[str, ...], side: Side) -> None:
    assert side_of(method, path, Touched(), standing(*facts)) is side


@pytest.mark.parametrize(
    ("method", "side"), [("PUT", Side.THERE), ("POST", Side.THERE), ("DELETE", Side.BOTH)]
)
def test_names_are_theirs_and_go_only_if_nobody_here_uses_them(method: str, side: Side) -> None:
    assert side_of(method, "/traits/CUSTOM_A", NAMES, Standing()) is side


def test_allocations_alone_leave_trees_as_they_are() -> None:
    assert not changes_trees("/allocations")
    assert not changes_trees("/allocations/c")
    assert changes_trees("/resource_providers")
    assert changes_trees("/reshaper")
