"""Operators in extra specs, as Nova evaluates them (spec scheduling, 7.6)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

_NUMBER_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.ge,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_TEXT_OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}


def satisfies(actual: str | None, wanted: str) -> bool:
    """Return whether a host's property satisfies an extra spec.

    The expression is split at blanks; if its first word is an operator it is applied, else the
    whole text is compared. A missing property satisfies nothing, a text that is no number no
    comparison of numbers.

    Args:
        actual: What the host has, None if it lacks the property.
        wanted: Value of the extra spec.
    """
    if actual is None:
        return False
    words = wanted.split()
    if not words or not is_operator(words[0]):
        return actual == wanted
    return _applied(words[0], actual, words[1:])


def is_operator(word: str) -> bool:
    """Return whether a word is an operator."""
    return word in _NUMBER_OPERATORS or word in _TEXT_OPERATORS or word in _SET_OPERATORS


def is_unreadable(actual: str | None, wanted: str) -> bool:
    """Return whether an expression compares numbers and one of them is none."""
    words = wanted.split()
    if actual is None or not words or words[0] not in _NUMBER_OPERATORS:
        return False
    return any(_number(word) is None for word in (actual, words[1] if len(words) > 1 else ""))


def _applied(name: str, actual: str, operands: Sequence[str]) -> bool:
    if name in _SET_OPERATORS:
        return _SET_OPERATORS[name](actual, operands)
    operand = operands[0] if operands else ""
    if name in _TEXT_OPERATORS:
        return _TEXT_OPERATORS[name](actual, operand)
    left, right = _number(actual), _number(operand)
    return left is not None and right is not None and _NUMBER_OPERATORS[name](left, right)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_in(actual: str, operands: Sequence[str]) -> bool:
    return bool(operands) and operands[0] in actual


def _all_in(actual: str, operands: Sequence[str]) -> bool:
    return bool(operands) and all(operand in actual for operand in operands)


def _is_one_of(actual: str, operands: Sequence[str]) -> bool:
    return actual in [operand for operand in operands if operand != "<or>"]


_SET_OPERATORS: Mapping[str, Callable[[str, Sequence[str]], bool]] = {
    "<in>": _is_in,
    "<all-in>": _all_in,
    "<or>": _is_one_of,
}
