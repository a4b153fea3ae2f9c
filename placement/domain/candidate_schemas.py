"""JSON schemas of the query of allocation candidates, by microversion (spec placement, 6.1)."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from placement.domain.validation import Schema

LIMIT_SINCE: Final = 16
TRAITS_SINCE: Final = 17
MEMBER_OF_SINCE: Final = 21
GROUPS_SINCE: Final = 25
IN_TREE_SINCE: Final = 31
FREE_SUFFIX_SINCE: Final = 33
ROOT_REQUIRED_SINCE: Final = 35
SAME_SUBTREE_SINCE: Final = 36

NUMBER_SUFFIX: Final = "([1-9][0-9]*)?"
FREE_SUFFIX: Final = "([a-zA-Z0-9_-]{1,64})?"
_TEXT: Final = {"type": "string"}
LIMIT_PATTERN: Final = "^[1-9][0-9]*$"
_LIMIT: Final = {"type": ["integer", "string"], "pattern": LIMIT_PATTERN, "minLength": 1}
_POLICY: Final = {"type": "string", "enum": ["none", "isolate"]}

#: First minor version of each shape of the query, newest first.
_BANDS: Final = (
    SAME_SUBTREE_SINCE,
    ROOT_REQUIRED_SINCE,
    FREE_SUFFIX_SINCE,
    IN_TREE_SINCE,
    GROUPS_SINCE,
    MEMBER_OF_SINCE,
    TRAITS_SINCE,
    LIMIT_SINCE,
    0,
)


def candidates_query(minor: int) -> Schema:
    """Return the schema of the query."""
    return _candidates_query(next(since for since in _BANDS if minor >= since))


def group_keys(minor: int) -> tuple[str, ...]:
    """Return the keywords that a group suffix may follow."""
    keys = ("resources", "required", "member_of", "in_tree")
    since = (0, TRAITS_SINCE, MEMBER_OF_SINCE, IN_TREE_SINCE)
    return tuple(key for key, first in zip(keys, since, strict=True) if minor >= first)


@cache
def _candidates_query(band: int) -> Schema:
    properties: dict[str, Any] = {}
    if band >= LIMIT_SINCE:
        properties["limit"] = _LIMIT
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    if band < GROUPS_SINCE:
        properties |= dict.fromkeys(group_keys(band), _TEXT)
        schema["required"] = ["resources"]
    else:
        properties["group_policy"] = _POLICY
        suffix = FREE_SUFFIX if band >= FREE_SUFFIX_SINCE else NUMBER_SUFFIX
        schema["patternProperties"] = {f"^{key}{suffix}$": _TEXT for key in group_keys(band)}
    if band >= ROOT_REQUIRED_SINCE:
        properties["root_required"] = _TEXT
    if band >= SAME_SUBTREE_SINCE:
        properties["same_subtree"] = _TEXT
    schema["properties"] = properties
    return Schema(schema)
