"""What a request for allocation candidates asks for (spec placement, 6.1 to 6.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

UNSUFFIXED = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFilter:
    """What providers of a group must be, apart from having room. Hashable.

    Attributes:
        required: Sets of traits of which at least one each must be there.
        forbidden: Traits that must not be there.
        member_of: Sets of aggregates of which at least one each must be theirs.
        forbidden_aggregates: Aggregates that must not be theirs.
        in_tree: Uuid of any provider of the only tree that counts.
    """

    required: frozenset[frozenset[str]] = frozenset()
    forbidden: frozenset[str] = frozenset()
    member_of: frozenset[frozenset[str]] = frozenset()
    forbidden_aggregates: frozenset[str] = frozenset()
    in_tree: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """One group: the unsuffixed one may be spread over a tree, others are on one provider.

    Attributes:
        suffix: Whatever follows the keyword; empty for the unsuffixed group.
        resources: Resource class -> amount; empty for a group that only names a provider.
        filter: What its providers must be.
    """

    suffix: str = UNSUFFIXED
    resources: Mapping[str, int] = field(default_factory=dict)
    filter: ProviderFilter = field(default_factory=ProviderFilter)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFilter:
    """Traits that the root of a candidate's tree must and must not have."""

    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateQuery:
    """A request as it was parsed and found well-formed.

    Attributes:
        groups: In the order of the request.
        isolate: Whether suffixed groups must be on different providers.
        same_subtree: Sets of suffixes; a provider among those of a set must be an ancestor of all.
        root: Filter of the anchors, None for none.
        limit: Most candidates wanted, None for all.
        one_provider_per_tree: Whether nested trees are unknown to the client (before 1.29).
    """

    groups: tuple[RequestGroup, ...]
    isolate: bool = False
    same_subtree: tuple[frozenset[str], ...] = ()
    root: RootFilter | None = None
    limit: int | None = None
    one_provider_per_tree: bool = False


class Strategy(Enum):
    """In which order candidates are found, which matters where there is a limit."""

    BREADTH_FIRST = "breadth-first"
    DEPTH_FIRST = "depth-first"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchOptions:
    """How a site wants candidates to be searched; equal to itself only, as answers are kept by it.

    Attributes:
        strategy: One candidate of each tree in turn, or all of a tree before the next.
        most_candidates: Where enumeration stops whatever the request says, None for nowhere.
        most_tried: Partial candidates after which enumeration stops, None for never. Groups that
            exclude each other have far more of these than candidates.
        strict_reference: Whether groups without resources behave as in the reference, which
            ignores their tree and finds nothing for those that only forbid.
        hides_fully_held: Whether providers all of whose free room is held are left out.
        seed: Of the order of trees and providers; None keeps the order of their keys.
        turn: How often a request like this was cut at its limit before, see ``fair_shares``.

    Source: spec placement, sections 6.5, 6.7 and 10.1.
    """

    strategy: Strategy = Strategy.BREADTH_FIRST
    most_candidates: int | None = None
    most_tried: int | None = None
    strict_reference: bool = False
    hides_fully_held: bool = False
    seed: int | None = None
    turn: int = 0
