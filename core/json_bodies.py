"""Bodies of requests as models, read the way Go reads JSON (spec liquid, 2.3).

A missing or ``null`` field is its zero value, an unknown field is ignored; a field of the wrong
type, a number out of range or a text that cannot be stored is an
:class:`~journal.errors.InvalidInput` whose message starts with the path of the field, such as
``byProject.<id>.byResource.<name>.commitments[0].amount``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from core.stored_text import shortened, text_problem
from journal.errors import InvalidInput

MAX_SIGNED = (1 << 63) - 1
MIN_SIGNED = -(1 << 63)
MICROSECOND_DIGITS = 6

_OF_THE_KEY = "[key]"
_STORABLE = r"^[^\x00]*$"
_TEXT_PROBLEMS = {"string_pattern_mismatch", "string_too_long", "string_unicode"}
_PROBLEMS = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "model_type": "must be an object",
    "string_type": "must be a string",
    "too_long": "has more than {max_length} elements",
    "tuple_type": "must be a list",
}
_TIME = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?"
    r"(?:(Z)|([+-])([01]\d|2[0-3]):([0-5]\d))",
    re.ASCII,
)
_ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)
_Element = TypeVar("_Element")
_Key = TypeVar("_Key")
_Read = TypeVar("_Read")
_Model = TypeVar("_Model", bound=BaseModel)


class Body(BaseModel, strict=True, frozen=True, allow_inf_nan=False):
    """An object of a request; its fields have their zero values as defaults."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: object) -> object:
        if isinstance(content, dict):
            return {name: one for name, one in content.items() if one is not None}
        return {} if content is None else content


def problem(text: str) -> PydanticCustomError:
    """Return the error for validators to raise: what is wrong where they look."""
    return PydanticCustomError("problem", "{problem}", {"problem": text})


def wrong(path: str, text: str) -> InvalidInput:
    """Return the error that says what is wrong at a path; empty for the whole body."""
    return InvalidInput(f"{path or 'body'}: {text}", field=path)


def whole(lowest: int, highest: int) -> BeforeValidator:
    """Check an integer."""

    def checked(number: object) -> int:
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if not is_whole or not lowest <= number <= highest:  # type: ignore[operator]  # it is one
            raise problem(f"must be an integer from {lowest} to {highest}")
        return number  # type: ignore[return-value]  # it is one

    return BeforeValidator(checked)


def one_of(words: type[Enum], otherwise: str = "") -> BeforeValidator:
    """Make a text a member of an enumeration.

    Args:
        words: Its members are texts.
        otherwise: What the message adds to its list of them.
    """
    known = {word.value: word for word in words}
    listed = ", ".join(word or "''" for word in known)

    def member(text: object) -> object:
        if not isinstance(text, str) or text not in known:
            raise problem(f"must be one of {listed}{otherwise}")
        return known[text]

    return BeforeValidator(member)


def given(otherwise: str) -> AfterValidator:
    """Check that a text is more than blanks; ``otherwise`` is what is said if not."""

    def checked(found: str) -> str:
        if not found.strip():
            raise problem(otherwise)
        return found

    return AfterValidator(checked)


def text(max_length: int) -> StringConstraints:
    """Check that a text can be stored and has at most so many characters."""
    return StringConstraints(max_length=max_length, pattern=_STORABLE)


def _time(content: object) -> datetime | None:
    """Return an RFC 3339 time in UTC, cut to microseconds; None for Go's zero time."""
    if content is None:
        return None
    match = _TIME.fullmatch(content) if isinstance(content, str) else None
    if match is None:
        raise problem("must be a time such as 2026-03-01T12:00:00Z")
    try:
        moment = _moment(match)
    except (ValueError, OverflowError):
        raise problem("is not a time between the years 1 and 9999") from None
    return None if moment == _ZERO_TIME else moment


def _moment(match: re.Match[str]) -> datetime:
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, is_utc, sign, offset_hours, offset_minutes = match.groups()[6:]
    microsecond = int((fraction or "0")[:MICROSECOND_DIGITS].ljust(MICROSECOND_DIGITS, "0"))
    offset = timedelta(0)
    if not is_utc:
        offset = timedelta(hours=int(offset_hours), minutes=int(offset_minutes))
        offset = -offset if sign == "-" else offset
    return datetime(
        year, month, day, hour, minute, second, microsecond, tzinfo=timezone(offset)
    ).astimezone(UTC)


EMPTY_FOR_NULL = BeforeValidator(lambda content: "" if content is None else content)
Id = Annotated[str, text(64), EMPTY_FOR_NULL]
Name = Annotated[str, text(255), EMPTY_FOR_NULL]
Text = Annotated[str, text(4096), EMPTY_FOR_NULL]
Unsigned = Annotated[int, whole(0, MAX_SIGNED)]
Signed = Annotated[int, whole(MIN_SIGNED, MAX_SIGNED)]
Moment = Annotated[datetime | None, BeforeValidator(_time)]
#: Lists and maps end with their first element that is wrong: errors take more room than elements.
Elements = Annotated[tuple[_Element, ...], Field(strict=False, fail_fast=True)]
Members = Annotated[dict[_Key, _Element], Field(fail_fast=True)]


def read_body(model: type[_Model], body: bytes) -> _Model:
    """Return what a body says.

    Args:
        model: The fields that are looked at.
        body: JSON in UTF-8, nested at most 1024 deep. Of a repeated key the last one counts.

    Raises:
        InvalidInput: It is not JSON, or not of this shape; the message says where.
    """
    return checked(model.model_validate, parsed(body))


def parsed(body: bytes) -> Any:
    """Return decoded JSON, of any shape.

    Raises:
        InvalidInput: It is none.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise wrong("", f"is not valid JSON: {error}") from None


def checked(read: Callable[[object], _Read], content: object, *, path: str = "") -> _Read:
    """Return what decoded JSON says to a validator of pydantic.

    Args:
        path: Where the content stands.

    Raises:
        InvalidInput: It is not of the shape; the first field that is wrong is named.
    """
    try:
        return read(content)
    except ValidationError as refused:
        raise _first_error(refused, path) from None


def _first_error(refused: ValidationError, path: str) -> InvalidInput:
    error = refused.errors(include_url=False)[0]
    place = error["loc"]
    is_key = bool(place) and place[-1] == _OF_THE_KEY
    for part in place[:-1] if is_key else place:
        path += f"[{part}]" if isinstance(part, int) else f".{shortened(part)}"
    path = path.removeprefix(".")
    return wrong(path, f"the name: {_problem(error)}" if is_key else _problem(error))


def _problem(error: ErrorDetails) -> str:
    facts = error.get("ctx", {})
    if error["type"] in _TEXT_PROBLEMS:
        return text_problem(error["input"], facts.get("max_length"))
    template = _PROBLEMS.get(error["type"])
    return error["msg"] if template is None else template.format(**facts)


def unknown_fields(model: BaseModel) -> Iterator[str]:
    """Yield the paths of fields that a model does not have; it was told to keep them."""
    yield from model.model_extra or ()
    for name, field in type(model).model_fields.items():
        for path, inner in _models(getattr(model, name), field.alias or name):
            yield from (f"{path}.{unknown}" for unknown in unknown_fields(inner))


def _models(content: object, path: str) -> Iterator[tuple[str, BaseModel]]:
    if isinstance(content, BaseModel):
        yield path, content
    elif isinstance(content, dict):
        for name, one in content.items():
            yield from _models(one, f"{path}.{name}")
    elif isinstance(content, tuple):
        for number, one in enumerate(content):
            yield from _models(one, f"{path}[{number}]")
