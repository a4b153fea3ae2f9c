"""Reading JSON the way Go reads it, with errors that name the field (spec liquid, 2.3).

A missing or ``null`` field is its zero value, an unknown field is ignored; a field of the wrong
type, a number out of range or a text that cannot be stored is an
:class:`~journal.errors.InvalidInput` whose message starts with the path of the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import orjson

from journal.errors import InvalidInput

MAX_SIGNED = (1 << 63) - 1
MIN_SIGNED = -(1 << 63)
MICROSECOND_DIGITS = 6

_TIME = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?"
    r"(?:(Z)|([+-])([01]\d|2[0-3]):([0-5]\d))",
    re.ASCII,
)
_ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class JSONNode:
    """A place in a JSON document.

    Attributes:
        path: Where it is, such as ``byProject.<id>.byResource.<name>.commitments[0].amount``.
        content: What stands there; ``None`` for ``null`` and for a missing field.
    """

    path: str
    content: object

    def member(self, name: str) -> JSONNode:
        """Return a field of an object; a missing one is a node without content.

        Raises:
            InvalidInput: this is not an object.
        """
        return JSONNode(f"{self.path}.{name}" if self.path else name, self._object().get(name))

    def members(self, *, max_key_length: int) -> Iterator[tuple[str, JSONNode]]:
        """Yield the fields of an object that is a map.

        Args:
            max_key_length: Longest key accepted, in characters.

        Raises:
            InvalidInput: this is not an object, or a key is too long or cannot be stored.
        """
        for key, content in self._object().items():
            where = f"{self.path}.{shortened(key)}" if self.path else shortened(key)
            check_text(key, path=where, max_length=max_key_length, what="the name")
            yield key, JSONNode(where, content)

    def items(self) -> Iterator[JSONNode]:
        """Yield the elements of a list; nothing for ``null``.

        Raises:
            InvalidInput: this is not a list.
        """
        if self.content is None:
            return
        if not isinstance(self.content, list):
            raise self.wrong("must be a list")
        for index, content in enumerate(self.content):
            yield JSONNode(f"{self.path}[{index}]", content)

    def texts(self, *, max_length: int, most: int | None = None) -> tuple[str, ...]:
        """Return a list of names; empty for ``null``.

        Args:
            max_length: Longest name accepted, in characters.
            most: Most names accepted.

        Raises:
            InvalidInput: this is not a list of such strings, or there are too many.
        """
        found = tuple(item.text(max_length=max_length) for item in self.items())
        if most is not None and len(found) > most:
            raise self.wrong(f"at most {most} names are allowed")
        return found

    @property
    def is_set(self) -> bool:
        """Whether something other than ``null`` stands here."""
        return self.content is not None

    def text(self, *, max_length: int) -> str:
        """Return a string; empty when unset.

        Raises:
            InvalidInput: not a string, longer than ``max_length`` characters, or not storable.
        """
        if self.content is None:
            return ""
        if not isinstance(self.content, str):
            raise self.wrong("must be a string")
        return check_text(self.content, path=self.path, max_length=max_length)

    def flag(self) -> bool:
        """Return a boolean; false when unset.

        Raises:
            InvalidInput: neither ``true`` nor ``false``.
        """
        if self.content is None:
            return False
        if not isinstance(self.content, bool):
            raise self.wrong("must be true or false")
        return self.content

    def unsigned(self) -> int:
        """Return an integer from 0 to 2^63-1; 0 when unset.

        Raises:
            InvalidInput: not an integer, negative or too large.
        """
        return self._integer(0)

    def signed(self) -> int:
        """Return an integer of 64 bits; 0 when unset.

        Raises:
            InvalidInput: not an integer, or out of range.
        """
        return self._integer(MIN_SIGNED)

    def time(self) -> datetime | None:
        """Return an RFC 3339 time in UTC, cut to microseconds; None when unset or Go's zero time.

        Raises:
            InvalidInput: not such a time, or outside the years 1 to 9999.
        """
        if self.content is None:
            return None
        match = _TIME.fullmatch(self.content) if isinstance(self.content, str) else None
        if match is None:
            raise self.wrong("must be a time such as 2026-03-01T12:00:00Z")
        try:
            moment = _moment(match)
        except (ValueError, OverflowError):
            raise self.wrong("is not a time between the years 1 and 9999") from None
        return None if moment == _ZERO_TIME else moment

    def wrong(self, problem: str) -> InvalidInput:
        """Return the error that says what is wrong here."""
        return InvalidInput(f"{self.path or 'body'}: {problem}", field=self.path)

    def _object(self) -> Mapping[str, object]:
        if self.content is None:
            return {}
        if not isinstance(self.content, dict):
            raise self.wrong("must be an object")
        return self.content

    def _integer(self, lowest: int) -> int:
        number = self.content
        if number is None:
            return 0
        if isinstance(number, float) and not MIN_SIGNED <= number < MAX_SIGNED:
            raise self.wrong(f"must be between {lowest} and {MAX_SIGNED}")
        if isinstance(number, bool) or not isinstance(number, int):
            raise self.wrong("must be an integer")
        if not lowest <= number <= MAX_SIGNED:
            raise self.wrong(f"must be between {lowest} and {MAX_SIGNED}")
        return number


def parse_json(body: bytes) -> JSONNode:
    """Return the top of a JSON document.

    Args:
        body: UTF-8, nested at most 1024 deep. Of a repeated key the last one counts.

    Raises:
        InvalidInput: not JSON; the message says where.
    """
    try:
        return JSONNode("", orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"body: is not valid JSON: {error}") from None


def check_text(text: str, *, path: str, max_length: int, what: str = "") -> str:
    """Return a text that can be stored.

    Args:
        path: Where it stands, for the message.
        max_length: Longest accepted, in characters.
        what: What the text is, when the path alone does not say.

    Raises:
        InvalidInput: too long, or with a NUL character or half a surrogate pair.
    """
    subject = f"{path}: {what}".rstrip(": ")
    if len(text) > max_length:
        raise InvalidInput(
            f"{subject}: has {len(text)} characters, at most {max_length} are allowed", field=path
        )
    if any(char == "\x00" or "\ud800" <= char <= "\udfff" for char in text):
        raise InvalidInput(f"{subject}: contains a character that cannot be stored", field=path)
    return text


def shortened(text: str, max_length: int = 64) -> str:
    """Return a text for a message: printable, on one line, and not longer than needed."""
    shown = "".join(char if char.isprintable() else "?" for char in text[: max_length + 1])
    return shown if len(shown) <= max_length else f"{shown[:max_length]}…"


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
