"""Typed access to one element of a region file, with errors that name its JSON path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from journal.errors import InvalidInput

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
UINT64_MAX: Final = (1 << 64) - 1
TEXT_MAX: Final = 255
ID_MAX: Final = 64
MAX_RATIO: Final = Decimal(10_000)

Json = Any  # parsed JSON: its shape is known only after the checks made here
_MISSING: Final = object()
_KINDS: Final = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    Decimal: "a number",
    float: "a number",
    type(None): "null",
}


class RegionFileError(InvalidInput):
    """A region file that cannot be used: names the file, the JSON path and the problem.

    Attributes:
        file_name: File as the operator named it.
        path: JSON path inside the file, such as ``compute.servers[12].flavor``; may be empty.
        problem: What is wrong there.
    """

    code = "malformed_region_file"

    def __init__(self, *, file_name: str, path: str, problem: str) -> None:
        where = f"{file_name}: {path}" if path else file_name
        super().__init__(f"{where}: {problem}", file=file_name, path=path, problem=problem)
        self.file_name = file_name
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Node:
    """One JSON object of a region file and where it stands.

    Attributes:
        fields: The object's members; ``{}`` together with ``scalar`` for map entries.
        file_name: File as the operator named it.
        section: Path of the list or map that holds the object.
        label: Index in the list (``[12]``) or key in the map (``.general``).
    """

    fields: Mapping[str, Json]
    file_name: str
    section: str
    label: str

    @property
    def path(self) -> str:
        """JSON path of the object."""
        return f"{self.section}{self.label}"

    def error(self, key: str, problem: str) -> RegionFileError:
        """Return the error for one member (empty key: for the object itself)."""
        path = f"{self.path}.{key}" if key else self.path
        return RegionFileError(file_name=self.file_name, path=path, problem=problem)

    def has(self, key: str) -> bool:
        """Return whether a member is present and not null."""
        return self.fields.get(key) is not None

    def text(self, key: str, *, default: str | None = None, max_length: int = TEXT_MAX) -> str:
        """Return a text; without a default it must be there and not empty.

        Raises:
            RegionFileError: Missing, of another type, or longer than ``max_length`` characters.
        """
        found = self.fields.get(key, _MISSING)
        if (found is _MISSING or found is None) and default is not None:
            return default
        if found is _MISSING:
            raise self.error(key, "missing")
        if not isinstance(found, str):
            raise self._wrong_type(key, found, "a text")
        if not found and default is None:
            raise self.error(key, "must not be empty")
        if len(found) > max_length:
            raise self.error(key, f"longer than {max_length} characters")
        return found

    def identifier(self, key: str, *, default: str | None = None) -> str:
        """Return an id: a text, or the whole number that old API versions give."""
        found = self.fields.get(key)
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        return self.text(key, default=default, max_length=ID_MAX)

    def integer(
        self,
        key: str,
        *,
        low: int = 0,
        high: int = INT32_MAX,
        default: int | None = None,
    ) -> int:
        """Return a whole number between ``low`` and ``high``.

        Raises:
            RegionFileError: Missing, not a whole number, or out of range.
        """
        found = self.fields.get(key, _MISSING)
        if (found is _MISSING or found is None) and default is not None:
            return default
        if found is _MISSING:
            raise self.error(key, "missing")
        if isinstance(found, Decimal | float) and found == int(found):
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self._wrong_type(key, found, "a whole number")
        number: int = found
        if not low <= found <= high:
            raise self.error(key, f"{found} is not between {low} and {high}")
        return number

    def ratio(self, key: str) -> Decimal:
        """Return an overcommit ratio above 0 and below 10,000; 1 when it is absent."""
        found = self.fields.get(key)
        if found is None:
            return Decimal(1)
        if isinstance(found, bool) or not isinstance(found, int | float | Decimal):
            raise self._wrong_type(key, found, "a number")
        ratio = Decimal(str(found))
        if not 0 < ratio < MAX_RATIO:
            raise self.error(key, f"{found} is not above 0 and below {MAX_RATIO}")
        return ratio

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        found = self.fields.get(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self._wrong_type(key, found, "true or false")
        return found

    def child(self, key: str, *, required: bool = True) -> Node:
        """Return a member object; an empty one when it is absent and not required."""
        found = self.fields.get(key, _MISSING)
        if (found is _MISSING or found is None) and not required:
            found = {}
        if found is _MISSING:
            raise self.error(key, "missing")
        if not isinstance(found, dict):
            raise self._wrong_type(key, found, "an object")
        return Node(found, self.file_name, self.path, f".{key}")

    def texts(self, key: str, *, required: bool = True, max_length: int = TEXT_MAX) -> list[str]:
        """Return a list of texts, sorted and without repetitions."""
        found = self.fields.get(key, _MISSING)
        if (found is _MISSING or found is None) and not required:
            return []
        if found is _MISSING:
            raise self.error(key, "missing")
        if not isinstance(found, list):
            raise self._wrong_type(key, found, "a list")
        for index, entry in enumerate(found):
            if not isinstance(entry, str):
                raise self._wrong_type(f"{key}[{index}]", entry, "a text")
            if len(entry) > max_length:
                raise self.error(f"{key}[{index}]", f"longer than {max_length} characters")
        return sorted(set(found))

    def text_map(self, key: str, *, required: bool = False) -> dict[str, str]:
        """Return a map of texts; numbers and truth values in it become texts."""
        node = self.child(key, required=required)
        result: dict[str, str] = {}
        for name, entry in node.fields.items():
            if isinstance(entry, dict | list):
                raise node.error(name, "must be a text")
            result[name] = entry if isinstance(entry, str) else _as_text(entry)
        return result

    def timestamp(self, key: str) -> datetime | None:
        """Return an ISO 8601 time in UTC; one without zone is UTC, absent is None."""
        found = self.fields.get(key)
        if found is None or found == "":
            return None
        if not isinstance(found, str):
            raise self._wrong_type(key, found, "a time")
        try:
            parsed = datetime.fromisoformat(found)
        except ValueError:
            raise self.error(key, "is not an ISO 8601 time") from None
        try:
            return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
        except OverflowError:
            raise self.error(key, "is not a time that can be stored") from None

    def payload(self, key: str) -> Json:
        """Return a member as plain JSON that can be stored (floats for fractions)."""
        return plain_json(self.fields.get(key))

    def _wrong_type(self, key: str, found: object, expected: str) -> RegionFileError:
        kind = _KINDS.get(type(found), type(found).__name__)
        return self.error(key, f"must be {expected}, not {kind}")


def plain_json(parsed: Json) -> Json:
    """Return parsed JSON with the parser's decimals replaced by floats, ready to be stored."""
    if isinstance(parsed, dict):
        return {key: plain_json(entry) for key, entry in parsed.items()}
    if isinstance(parsed, list):
        return [plain_json(entry) for entry in parsed]
    return float(parsed) if isinstance(parsed, Decimal) else parsed


def _as_text(entry: object) -> str:
    if entry is None:
        return ""
    if isinstance(entry, bool):
        return "true" if entry else "false"
    return str(entry)
