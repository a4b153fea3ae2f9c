"""Values of query parameters, shared by provider lists and candidates (spec placement, 4.2, 6.1).

Names are not looked up here: an unknown class or trait is refused by whoever knows the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl
from uuid import UUID

from placement.domain.errors import BadRequest

FORBIDDEN_TRAITS_SINCE: Final = 22
REPEATED_MEMBER_OF_SINCE: Final = 24
FORBIDDEN_AGGREGATES_SINCE: Final = 32
ANY_TRAITS_SINCE: Final = 39

#: Amounts above any inventory are valid and match nothing; no larger number is kept.
AMOUNT_CAP: Final = 1 << 31

AMOUNT = re.compile(r"-?[0-9]+")
UUID_LIKE = re.compile(r"[0-9a-f]{32}")
#: As the database writes a UUID.
CANONICAL = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
INVALID_QUERY: Final = "Invalid query string parameters: "
ANY_PREFIX: Final = "in:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraitFilter:
    """Which traits a provider must have and must not have.

    Attributes:
        required: Sets of names; one of every set must be there.
        forbidden: Names of which none may be there.
    """

    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Every name that the filter mentions."""
        return self.forbidden.union(*self.required)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateFilter:
    """Which aggregates a provider must be in and must not be in, as canonical UUIDs.

    Attributes:
        required: Sets of UUIDs; the provider must be in one of every set.
        forbidden: UUIDs of aggregates that it must not be in.
    """

    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()


def parsed_pairs(query: str) -> list[tuple[str, str]]:
    """Return keys and values of a query string, in order, blank values included.

    Args:
        query: The raw query string; bytes that are no UTF-8 become replacement characters.
    """
    return parse_qsl(query, keep_blank_values=True, errors="replace") if query else []


def grouped_values(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return all values of each key, keys and values in order of appearance."""
    values: dict[str, list[str]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values


def last_values(values: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the last value of each key, which is the one that schemas check."""
    return {key: listed[-1] for key, listed in values.items()}


def canonical_uuid(text: str) -> str | None:
    """Return the canonical form of anything like a UUID, or ``None``.

    Upper case, missing dashes, braces and the URN prefix are accepted, as clients of the reference
    may send them.
    """
    if CANONICAL.fullmatch(text) is not None:
        return text
    plain = text.replace("urn:", "").replace("uuid:", "").strip("{}").replace("-", "").lower()
    if UUID_LIKE.fullmatch(plain) is None:
        return None
    return str(UUID(plain))


def parse_resources(value: str) -> dict[str, int]:
    """Return the amounts asked for, by class name.

    Raises:
        BadRequest: the value is not ``CLASS:AMOUNT[,CLASS:AMOUNT...]``.

    Source: spec placement, section 4.2.
    """
    if not value.strip():
        raise _bad_resources("empty string")
    amounts: dict[str, int] = {}
    for item in value.split(","):
        name, colon, amount = item.partition(":")
        if not colon or ":" in amount:
            raise _bad_resources(item)
        if AMOUNT.fullmatch(amount.strip()) is None:
            raise BadRequest(
                f"Requested resource {name} expected positive integer amount. Got: {amount}."
            )
        number = _capped(amount.strip())
        if number < 1:
            raise BadRequest(f"Requested resource {name} requires amount >= 1. Got: {number}.")
        amounts[name] = number
    return amounts


def parse_required(values: Sequence[str], *, minor: int) -> TraitFilter:
    """Return the trait filter of the ``required`` values of one request group.

    Args:
        values: Every value of the parameter; before 1.39 only the last one counts.
        minor: Negotiated version.

    Raises:
        BadRequest: a value does not follow the grammar of the version.

    Source: spec placement, section 4.2.
    """
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values if minor >= ANY_TRAITS_SINCE else values[-1:]:
        if value.startswith(ANY_PREFIX):
            required.append(_any_of(value, minor=minor))
            continue
        for item in value.split(","):
            name = _trait_item(item, value, minor=minor)
            if name.startswith("!"):
                forbidden.add(name.lstrip("!"))
            else:
                required.append(frozenset({name}))
    return TraitFilter(required=tuple(dict.fromkeys(required)), forbidden=frozenset(forbidden))


def parse_member_of(values: Sequence[str], *, minor: int, suffix: str = "") -> AggregateFilter:
    """Return the aggregate filter of the ``member_of`` values of one request group.

    Raises:
        BadRequest: a value does not follow the grammar of the version.

    Source: spec placement, section 4.2.
    """
    if minor < REPEATED_MEMBER_OF_SINCE and len(values) > 1:
        raise BadRequest(f"Multiple member_of{suffix} parameters are not supported")
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        uuids, is_forbidden = _member_of_value(value, minor=minor, suffix=suffix)
        if is_forbidden:
            forbidden |= uuids
        else:
            required.append(uuids)
    return AggregateFilter(required=tuple(dict.fromkeys(required)), forbidden=frozenset(forbidden))


def parse_in_tree(value: str) -> str:
    """Return the canonical UUID of an ``in_tree`` value of a candidates request.

    Raises:
        BadRequest: it is not like a UUID.
    """
    uuid = canonical_uuid(value.strip())
    if uuid is None:
        raise BadRequest(
            f"{INVALID_QUERY}Expected 'in_tree' parameter to be a format of uuid. Got: {value}"
        )
    return uuid


def capped_number(text: str, *, limit: int) -> int:
    """Return the number that a text of ASCII digits says, at most ``limit``.

    A number of thousands of digits is not worked out; the interpreter would refuse to.
    """
    digits = text.lstrip("0") or "0"
    return limit if len(digits) > len(str(limit)) else min(int(digits), limit)


def _capped(text: str) -> int:
    number = capped_number(text.removeprefix("-"), limit=AMOUNT_CAP)
    return -number if text.startswith("-") else number


def _bad_resources(got: str) -> BadRequest:
    return BadRequest(
        "Badly formed resources parameter. Expected resources query string parameter in form: "
        f"?resources=VCPU:2,MEMORY_MB:1024. Got: {got}."
    )


def _trait_item(item: str, value: str, *, minor: int) -> str:
    name = item.strip()
    allows_forbidden = minor >= FORBIDDEN_TRAITS_SINCE
    bare = name.lstrip("!") if allows_forbidden else name
    if not bare or (name.startswith("!") and not allows_forbidden):
        example = (
            "HW_CPU_X86_VMX,!CUSTOM_MAGIC" if allows_forbidden else "HW_CPU_X86_VMX,CUSTOM_MAGIC"
        )
        raise BadRequest(
            f"{INVALID_QUERY}Expected 'required' parameter value of the form: "
            f"{example}. Got: {value}"
        )
    return name


def _any_of(value: str, *, minor: int) -> frozenset[str]:
    if minor < ANY_TRAITS_SINCE:
        raise BadRequest(
            f"{INVALID_QUERY}The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' only supported since "
            "microversion 1.39."
        )
    names = [name.strip() for name in value.removeprefix(ANY_PREFIX).split(",")]
    if any(name.startswith("!") for name in names):
        raise BadRequest(
            f"{INVALID_QUERY}The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' does not support "
            f"forbidden traits. Got: {value}"
        )
    if not all(names):
        raise BadRequest(
            f"{INVALID_QUERY}Expected 'required' parameter value of the form: "
            f"in:HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: {value}"
        )
    return frozenset(names)


def _member_of_value(value: str, *, minor: int, suffix: str) -> tuple[frozenset[str], bool]:
    is_forbidden = value.startswith("!")
    if is_forbidden and minor < FORBIDDEN_AGGREGATES_SINCE:
        raise BadRequest(
            f"Forbidden member_of{suffix} parameters are not supported in the specified "
            "microversion"
        )
    rest = value.removeprefix("!")
    if rest.startswith(ANY_PREFIX):
        items = rest.removeprefix(ANY_PREFIX).split(",")
    elif "," in rest:
        raise BadRequest(
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' "
            "keyword using the valid microversion."
        )
    else:
        items = [rest]
    uuids = [canonical_uuid(item) for item in items]
    if None in uuids:
        raise BadRequest(f"{INVALID_QUERY}Expected 'member_of' parameter to contain valid UUID(s).")
    return frozenset(uuid for uuid in uuids if uuid), is_forbidden
