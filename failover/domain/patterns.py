"""How many reservations a flavor asks for (spec failover, 6)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

_ANY_RUN, _ANY_ONE = "[^/]*", "[^/]"


class MalformedPatternError(ValueError):
    """A flavor pattern that nothing can match."""


@lru_cache(maxsize=4096)
def compiled_pattern(pattern: str) -> re.Pattern[str]:
    r"""Return a glob as a regular expression.

    ``*`` and ``?`` do not cross ``/``; ``[^...]`` negates and ``!`` does not; ``\`` escapes.

    Raises:
        MalformedPatternError: If a class is open or empty, a range has no end, or the pattern
            ends with a backslash.

    Source: spec failover, 6.
    """
    parts: list[str] = []
    place = 0
    while place < len(pattern):
        sign = pattern[place]
        if sign == "[":
            text, place = _character_class(pattern, place + 1)
            parts.append(text)
            continue
        if sign == "\\":
            place += 1
            if place == len(pattern):
                raise MalformedPatternError(f"{pattern}: nothing follows the last backslash")
            parts.append(re.escape(pattern[place]))
        else:
            parts.append({"*": _ANY_RUN, "?": _ANY_ONE}.get(sign) or re.escape(sign))
        place += 1
    return re.compile("".join(parts), re.DOTALL)


def _character_class(pattern: str, place: int) -> tuple[str, int]:
    """Return the class that starts after ``[`` as a regular expression, and what follows it."""
    is_negated = pattern[place : place + 1] == "^"
    place += is_negated
    ranges: list[tuple[str, str]] = []
    while place < len(pattern) and pattern[place] != "]":
        low, place = _class_character(pattern, place)
        high = low
        if pattern[place : place + 1] == "-":
            high, place = _class_character(pattern, place + 1)
        ranges.append((low, high))
    if place >= len(pattern) or not ranges:
        raise MalformedPatternError(f"{pattern}: a class of characters is open or empty")
    wanted = "|".join(
        f"[{re.escape(low)}-{re.escape(high)}]" for low, high in ranges if low <= high
    )
    text = f"(?:{wanted})" if wanted else "(?!)"
    return (f"(?:(?!{text}).)" if is_negated else text), place + 1


def _class_character(pattern: str, place: int) -> tuple[str, int]:
    if pattern[place : place + 1] == "\\":
        place += 1
    elif pattern[place : place + 1] in {"]", "-", ""}:
        raise MalformedPatternError(f"{pattern}: a range of characters has no end")
    if place >= len(pattern):
        raise MalformedPatternError(f"{pattern}: a class of characters is open")
    return pattern[place], place + 1


def pattern_problem(pattern: str) -> str:
    """Return what is wrong with a pattern, empty if nothing is."""
    try:
        compiled_pattern(pattern)
    except MalformedPatternError as problem:
        return str(problem)
    return ""


def matches(pattern: str, flavor_name: str) -> bool:
    """Return whether a flavor matches; nothing matches a malformed pattern."""
    if not flavor_name or pattern_problem(pattern):
        return False
    return compiled_pattern(pattern).fullmatch(flavor_name) is not None


def required_count(requirements: Mapping[str, int], flavor_name: str) -> int:
    """Return how many reservations VMs of a flavor need: the largest count of what matches.

    Args:
        requirements: Pattern -> count.
        flavor_name: Name of the flavor; an empty one needs none.

    Source: spec failover, 6.
    """
    counts = [count for pattern, count in requirements.items() if matches(pattern, flavor_name)]
    return max(0, *counts) if counts else 0


def required_counts(requirements: Mapping[str, int], flavor_names: Iterable[str]) -> dict[str, int]:
    """Return flavor name -> required count for each distinct name."""
    return {name: required_count(requirements, name) for name in set(flavor_names)}
