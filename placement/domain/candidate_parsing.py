"""From the text of a candidates query to what it asks for (spec placement, 6.1 and 6.2)."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from placement.domain.candidate_query import (
    UNSUFFIXED,
    CandidateQuery,
    ProviderFilter,
    RequestGroup,
    RootFilter,
)
from placement.domain.candidate_schemas import (
    LIMIT_PATTERN,
    SAME_SUBTREE_SINCE,
    candidates_query,
    group_keys,
)
from placement.domain.errors import (
    QUERY_BAD_VALUE,
    QUERY_DUPLICATE_KEY,
    QUERY_MISSING_VALUE,
    BadRequest,
)
from placement.domain.querystring import (
    AMOUNT_CAP,
    ANY_TRAITS_SINCE,
    FORBIDDEN_TRAITS_SINCE,
    INVALID_QUERY,
    capped_number,
    grouped_values,
    last_values,
    parse_in_tree,
    parse_member_of,
    parse_required,
    parse_resources,
    parsed_pairs,
)

TREES_SINCE: Final = 29
LIMIT: Final = re.compile("[1-9][0-9]*")
_ISOLATE: Final = "isolate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQuery:
    """A well-formed request; the names in it may be unknown.

    Attributes:
        query: What is asked for.
        traits: Every trait that is named.
        classes: Every resource class that is named.
    """

    query: CandidateQuery
    traits: frozenset[str]
    classes: frozenset[str]


@dataclass(slots=True)
class _GroupParts:
    """Values of one group while they are gathered."""

    resources: dict[str, int] = field(default_factory=dict)
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    forbidden_aggregates: frozenset[str] = frozenset()
    in_tree: str | None = None

    def conflicts(self) -> frozenset[str]:
        """Return the traits of required sets that are forbidden altogether."""
        return frozenset[str]().union(
            *(names for names in self.required if names <= self.forbidden)
        )


def parse_candidates_query(text: str, minor: int) -> ParsedQuery:
    """Return what a query asks for.

    Args:
        text: The raw query string.
        minor: Minor number of the microversion, from 10.

    Raises:
        BadRequest: the query breaks a rule; the first one in the order of section 6.2.

    Source: spec placement, sections 6.1 and 6.2.
    """
    values = grouped_values(parsed_pairs(text))
    candidates_query(minor).check_query(last_values(values))
    limit = _limit(values["limit"][0]) if "limit" in values else None
    policy = values["group_policy"][0] if "group_policy" in values else None
    root = _root_filter(values.get("root_required", ()), minor)
    terms = _subtree_terms(values.get("same_subtree", ()))
    groups = _groups(values, minor)
    _check_groups(groups, terms, minor)
    suffixed = [suffix for suffix in groups if suffix != UNSUFFIXED]
    if len(suffixed) > 1 and policy is None:
        raise BadRequest(
            'The "group_policy" parameter is required when specifying more than one '
            '"resources{N}" parameter.'
        )
    query = CandidateQuery(
        groups=tuple(_request_group(suffix, parts) for suffix, parts in groups.items()),
        isolate=policy == _ISOLATE,
        same_subtree=terms,
        root=root,
        limit=limit,
        one_provider_per_tree=minor < TREES_SINCE,
    )
    return ParsedQuery(query=query, traits=_traits(query), classes=_classes(query))


def _limit(text: str) -> int:
    """Return the limit that counts, which is the first; the schema saw the last."""
    if LIMIT.fullmatch(text) is None:
        raise BadRequest(f"{INVALID_QUERY}{text!r} does not match '{LIMIT_PATTERN}'")
    return capped_number(text, limit=AMOUNT_CAP)


def _root_filter(values: Sequence[str], minor: int) -> RootFilter | None:
    if not values:
        return None
    if len(values) > 1:
        raise BadRequest(
            "Query parameter 'root_required' may be specified only once.",
            wire_code=QUERY_DUPLICATE_KEY,
        )
    parsed = parse_required(values, minor=min(minor, ANY_TRAITS_SINCE - 1))
    required = frozenset[str]().union(*parsed.required)
    conflicts = required & parsed.forbidden
    if conflicts:
        raise BadRequest(
            "Conflicting required and forbidden traits found in root_required: "
            f"{', '.join(sorted(conflicts))}",
            wire_code=QUERY_BAD_VALUE,
        )
    return RootFilter(required=required, forbidden=parsed.forbidden)


def _subtree_terms(values: Sequence[str]) -> tuple[frozenset[str], ...]:
    terms = []
    for value in values:
        term = frozenset(suffix.strip() for suffix in value.split(","))
        if UNSUFFIXED in term:
            raise BadRequest(
                "Empty string (unsuffixed group) can not be specified in `same_subtree` "
                "queryparam.",
                wire_code=QUERY_BAD_VALUE,
            )
        terms.append(term)
    return tuple(dict.fromkeys(terms))


def _groups(values: Mapping[str, Sequence[str]], minor: int) -> dict[str, _GroupParts]:
    """Return the groups by suffix, in the order in which they appear."""
    keywords = group_keys(minor)
    groups: dict[str, _GroupParts] = {}
    for key, listed in values.items():
        keyword = next((word for word in keywords if key.startswith(word)), None)
        if keyword is not None:
            suffix = key.removeprefix(keyword)
            _PARSERS[keyword](groups.setdefault(suffix, _GroupParts()), listed, suffix, minor)
    return groups


def _parse_resources(parts: _GroupParts, listed: Sequence[str], _suffix: str, _minor: int) -> None:
    parts.resources = parse_resources(listed[-1])


def _parse_required(parts: _GroupParts, listed: Sequence[str], _suffix: str, minor: int) -> None:
    parsed = parse_required(listed, minor=minor)
    parts.required, parts.forbidden = parsed.required, parsed.forbidden


def _parse_member_of(parts: _GroupParts, listed: Sequence[str], suffix: str, minor: int) -> None:
    parsed = parse_member_of(listed, minor=minor, suffix=suffix)
    parts.member_of, parts.forbidden_aggregates = parsed.required, parsed.forbidden


def _parse_in_tree(parts: _GroupParts, listed: Sequence[str], _suffix: str, _minor: int) -> None:
    parts.in_tree = parse_in_tree(listed[-1])


_PARSERS: Final[Mapping[str, Callable[[_GroupParts, Sequence[str], str, int], None]]] = {
    "resources": _parse_resources,
    "required": _parse_required,
    "member_of": _parse_member_of,
    "in_tree": _parse_in_tree,
}


def _check_groups(
    groups: Mapping[str, _GroupParts], terms: Iterable[frozenset[str]], minor: int
) -> None:
    if minor >= SAME_SUBTREE_SINCE:
        _check_resources_somewhere(groups, frozenset[str]().union(*terms))
    else:
        _check_resources_everywhere(groups)
    if minor >= FORBIDDEN_TRAITS_SINCE:
        _check_conflicts(groups)


def _check_resources_everywhere(groups: Mapping[str, _GroupParts]) -> None:
    """Refuse groups without resources, which versions before 1.36 do not know."""
    bare = {suffix: parts for suffix, parts in groups.items() if not parts.resources}
    orphans = sorted(
        f"required{suffix}" for suffix, parts in bare.items() if parts.required or parts.forbidden
    )
    if orphans:
        raise BadRequest(
            "All traits parameters must be associated with resources.  Found the following "
            f"orphaned traits keys: {', '.join(orphans)}"
        )
    orphans = sorted(
        f"member_of{suffix}"
        for suffix, parts in bare.items()
        if parts.member_of or parts.forbidden_aggregates
    )
    if orphans:
        raise BadRequest(
            "All member_of parameters must be associated with resources. Found the following "
            f"orphaned member_of keys: {', '.join(orphans)}"
        )
    if bare:
        raise BadRequest("All request groups must specify resources.")
    if not groups:
        raise BadRequest("At least one request group (`resources` or `resources{$S}`) is required.")


def _check_resources_somewhere(
    groups: Mapping[str, _GroupParts], in_subtrees: frozenset[str]
) -> None:
    """Refuse groups without resources that no ``same_subtree`` names, and unknown names in it."""
    if not any(parts.resources for parts in groups.values()):
        raise BadRequest(
            "There must be at least one resources or resources[$S] parameter.",
            wire_code=QUERY_MISSING_VALUE,
        )
    bare = {suffix for suffix, parts in groups.items() if not parts.resources}
    if bare - in_subtrees:
        raise BadRequest(
            "Resourceless suffixed group request should be specified in `same_subtree` query "
            f"param: bad group(s) - {', '.join(sorted(bare - in_subtrees))}.",
            wire_code=QUERY_BAD_VALUE,
        )
    if in_subtrees - groups.keys():
        raise BadRequest(
            "Real suffixes should be specified in `same_subtree`: "
            f"{', '.join(sorted(in_subtrees - groups.keys()))} not found in "
            f"{', '.join(sorted(groups))}.",
            wire_code=QUERY_BAD_VALUE,
        )


def _check_conflicts(groups: Mapping[str, _GroupParts]) -> None:
    conflicts = [
        f"required{suffix}: ({', '.join(sorted(parts.conflicts()))})"
        for suffix, parts in sorted(groups.items())
        if parts.conflicts()
    ]
    if conflicts:
        raise BadRequest(
            "Conflicting required and forbidden traits found in the following traits keys: "
            f"{', '.join(conflicts)}"
        )


def _request_group(suffix: str, parts: _GroupParts) -> RequestGroup:
    return RequestGroup(
        suffix=suffix,
        resources=parts.resources,
        filter=ProviderFilter(
            required=frozenset(parts.required),
            forbidden=parts.forbidden,
            member_of=frozenset(parts.member_of),
            forbidden_aggregates=parts.forbidden_aggregates,
            in_tree=parts.in_tree,
        ),
    )


def _traits(query: CandidateQuery) -> frozenset[str]:
    names = [query.root.required, query.root.forbidden] if query.root else []
    for group in query.groups:
        names += [group.filter.forbidden, *group.filter.required]
    return frozenset[str]().union(*names)


def _classes(query: CandidateQuery) -> frozenset[str]:
    return frozenset(name for group in query.groups for name in group.resources)


# -- queries that differ in amounts only

_AMOUNT = re.compile(r"(:|%3[Aa])([1-9][0-9]{0,9})(?=,|%2[Cc]|$)")
_PLAIN_RESOURCES = re.compile(
    r"resources[\w-]*="
    r"[A-Z0-9_]+(?::|%3[Aa])[1-9][0-9]{0,9}(?:(?:,|%2[Cc])[A-Z0-9_]+(?::|%3[Aa])[1-9][0-9]{0,9})*"
)


@dataclass(frozen=True, slots=True)
class _Known:
    """A parsed query, and for each amount of its text which group and class it belongs to."""

    parsed: ParsedQuery
    places: tuple[tuple[int, str], ...]

    def with_amounts(self, amounts: Sequence[int]) -> ParsedQuery:
        """Return the query with other amounts."""
        resources: list[dict[str, int]] = [{} for _ in self.parsed.query.groups]
        for (number, name), amount in zip(self.places, amounts, strict=True):
            resources[number][name] = amount
        groups = tuple(
            RequestGroup(suffix=group.suffix, resources=asked, filter=group.filter)
            for group, asked in zip(self.parsed.query.groups, resources, strict=True)
        )
        known = self.parsed.query
        query = CandidateQuery(
            groups=groups,
            isolate=known.isolate,
            same_subtree=known.same_subtree,
            root=known.root,
            limit=known.limit,
            one_provider_per_tree=known.one_provider_per_tree,
        )
        return ParsedQuery(query=query, traits=self.parsed.traits, classes=self.parsed.classes)


#: Characters of a query that is remembered as it is; flavors are few, but anybody may ask.
_LONGEST_KEPT: Final = 2000


class QueryCache:
    """Parses queries, and those that differ from an earlier one only in amounts much faster.

    Schedulers send the same few queries with other amounts. Safe for threads.
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._texts: dict[tuple[int, str], ParsedQuery] = {}
        self._known: OrderedDict[tuple[int, str], _Known] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of remembered queries."""
        return len(self._known)

    def parse(self, text: str, minor: int) -> ParsedQuery:
        """Return what a query asks for, as :func:`parse_candidates_query` does."""
        parsed = self._texts.get((minor, text))
        if parsed is None:
            parsed = self._parse(text, minor)
            if len(self._texts) >= self._most:
                self._texts.clear()
            if len(text) <= _LONGEST_KEPT:
                self._texts[minor, text] = parsed
        return parsed

    def _parse(self, text: str, minor: int) -> ParsedQuery:
        split = _without_amounts(text)
        if split is None:
            return parse_candidates_query(text, minor)
        shape, amounts = split
        known = self._known.get((minor, shape))
        if known is not None:
            return known.with_amounts(amounts)
        parsed = parse_candidates_query(text, minor)
        places = _places(text, parsed.query)
        if len(places) == len(amounts) == sum(len(one.resources) for one in parsed.query.groups):
            self._known[minor, shape] = _Known(parsed, places)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return parsed


def _without_amounts(text: str) -> tuple[str, Sequence[int]] | None:
    """Return a query text without its amounts, and these; None where they are written oddly."""
    amounts: list[int] = []
    parts = text.split("&")
    for number, part in enumerate(parts):
        if part.startswith("resources"):
            if _PLAIN_RESOURCES.fullmatch(part) is None:
                return None
            amounts += [min(int(found), AMOUNT_CAP) for _, found in _AMOUNT.findall(part)]
            parts[number] = _AMOUNT.sub(r"\1", part)
    return "&".join(parts), amounts


def _places(text: str, query: CandidateQuery) -> tuple[tuple[int, str], ...]:
    """Return group number and class of each amount, in the order of the text."""
    number_of = {group.suffix: number for number, group in enumerate(query.groups)}
    places = []
    for key, value in parsed_pairs(text):
        if key.startswith("resources"):
            number = number_of[key.removeprefix("resources")]
            places += [(number, item.partition(":")[0]) for item in value.split(",")]
    return tuple(dict.fromkeys(places)) if len(set(places)) == len(places) else ()
