"""Which side does a write while each answers for its own trees of providers (docs/gateway.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from placement.domain.touched import Touched

_PROVIDERS: Final = "resource_providers"
_ALLOCATIONS: Final = "allocations"
_RESHAPER: Final = "reshaper"


class Side(StrEnum):
    """Who does a write."""

    HERE = "here"
    THERE = "there"
    BOTH = "both"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Whose is what a write is about.

    Attributes:
        names_ours: Whether it names a provider of ours.
        names_others: Whether it names one that is not.
        holds_ours: Whether a consumer that it names holds something of ours; always known.
        holds_theirs: Likewise of theirs, as far as it was copied.
        is_unclear: Whether more of what those consumers hold may not have been copied yet.
        waits: Whether the other side has not all of our writes about those consumers yet.
        roots: Ids of trees of ours that it names, or of which those consumers hold something.
    """

    names_ours: bool = False
    names_others: bool = False
    holds_ours: bool = False
    holds_theirs: bool = False
    is_unclear: bool = False
    waits: bool = False
    roots: frozenset[int] = frozenset()


def side_of(method: str, path: str, touched: Touched, standing: Standing) -> Side:
    """Return who does a write: we alone, they alone, they with what is ours, or nobody.

    What changes trees themselves is done over there even if it is about ours alone, since names and
    UUIDs of providers are unique on both sides together. Whatever is unclear is done over there as
    well: that side has everything once our writes have arrived.

    Args:
        method: Of the request.
        path: Below the mount point, decoded; begins with a slash.
        touched: What it names.
        standing: Whose that is.
    """
    first, *rest = path.strip("/").split("/")
    if touched.has_names:
        return Side.BOTH if method == "DELETE" else Side.THERE
    if first == _PROVIDERS:
        return _side_of_tree(method, standing, is_part=len(rest) > 1)
    if first in {_ALLOCATIONS, _RESHAPER}:
        return _side_of_amounts(standing)
    return Side.THERE


def _side_of_tree(method: str, standing: Standing, *, is_part: bool) -> Side:
    if not standing.names_ours:
        return Side.THERE
    if is_part:
        return Side.HERE
    moves_across = method == "PUT" and standing.names_others
    return Side.NEITHER if moves_across else Side.BOTH


def _side_of_amounts(standing: Standing) -> Side:
    is_about_ours = standing.names_ours or standing.holds_ours
    if not (is_about_ours or standing.waits):
        return Side.THERE
    is_about_theirs = standing.names_others or standing.holds_theirs or standing.is_unclear
    # A consumer of which only the mirror knows holds nothing of ours any more.
    return Side.HERE if is_about_ours and not is_about_theirs else Side.BOTH


def changes_trees(path: str) -> bool:
    """Return whether a write may change more of providers than their generations."""
    return path.strip("/").split("/")[0] != _ALLOCATIONS
