"""Pages by key: a page begins behind the last row of the one before, and counts nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson
from django.core.exceptions import ValidationError
from django.db.models import F, Field, Func, Model, QuerySet, TextField, Value
from django.db.models.lookups import GreaterThan, LessThan
from django.http import QueryDict
from rest_framework.pagination import BasePagination

from core.stored_text import check_text, shortened
from journal.errors import InvalidInput

LIMIT, ORDERING, CURSOR = "limit", "ordering", "cursor"
PAGE_PARAMETERS: Final = frozenset({LIMIT, ORDERING, CURSOR})
DEFAULT_LIMIT: Final = 100
MOST_ROWS: Final = 1000
LONGEST_CURSOR: Final = 2048

RowT = TypeVar("RowT", bound=Model)


class Row(Func):
    """Columns or values that the database compares as one."""

    function = "ROW"
    output_field = TextField()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """In which order a list is told.

    Attributes:
        name: As it was asked for, with a minus in front of a descending one.
        columns: Fields of the model, none of which may be NULL; together they are unique.
    """

    name: str
    columns: tuple[str, ...]

    @property
    def is_descending(self) -> bool:
        """Whether the largest come first."""
        return self.name.startswith("-")

    def applied(self, rows: QuerySet[RowT]) -> QuerySet[RowT]:
        """Return the rows in this order."""
        sign = "-" if self.is_descending else ""
        return rows.order_by(*(sign + column for column in self.columns))

    def behind(self, rows: QuerySet[RowT], values: Sequence[object]) -> QuerySet[RowT]:
        """Return the rows that come after one with these values of the columns."""
        lookup = LessThan if self.is_descending else GreaterThan
        here = Row(*(F(column) for column in self.columns))
        return rows.filter(lookup(here, Row(*(Value(value) for value in values))))

    def cursor(self, row: Model) -> str:
        """Return where a page ends whose last row this is."""
        values = [_field(type(row), column).value_to_string(row) for column in self.columns]
        return base64.urlsafe_b64encode(orjson.dumps([self.name, *values])).decode().rstrip("=")

    def values(self, model: type[Model], cursor: str) -> list[object]:
        """Return what a cursor says of the row before the page.

        Raises:
            InvalidInput: no list gave this cursor, or one in another order did.
        """
        try:
            padded = cursor.encode() + b"=" * (-len(cursor) % 4)
            name, *texts = orjson.loads(base64.b64decode(padded, b"-_", validate=True))
            given = texts if name == self.name else ()
            return [
                _in_utc(
                    _field(model, column).clean(
                        check_text(text, path=CURSOR, max_length=1024), None
                    )
                )
                for column, text in zip(self.columns, given, strict=True)
            ]
        except (binascii.Error, ValueError, TypeError, OverflowError, ValidationError):
            raise InvalidInput(
                "cursor: no list in this order gave it; begin without one", field=CURSOR
            ) from None


class KeysetPagination(BasePagination):
    """A page of a list: ``limit`` rows behind ``cursor`` in the order of ``ordering``."""

    def paginate_queryset(self, queryset: QuerySet[RowT], request: Any, view: Any = None) -> Any:  # type: ignore[override]  # Any: DRF's; a list of rows
        """Return the rows of a page, and remember where the next one begins.

        Raises:
            InvalidInput: limit, ordering or cursor cannot be used.
        """
        asked: QueryDict = request.query_params
        limit = _limit(asked)
        order = _order(asked, view.orderings, view.default_ordering)
        rows = order.applied(queryset)
        cursor = asked.get(CURSOR)
        if cursor is not None:
            check_text(cursor, path=CURSOR, max_length=LONGEST_CURSOR)
            rows = order.behind(rows, order.values(queryset.model, cursor))
        found = list(rows[: limit + 1])
        self.next_page: str | None = None
        if len(found) > limit:
            further = asked.copy()
            further[CURSOR] = order.cursor(found[limit - 1])
            self.next_page = f"{request.path}?{further.urlencode()}"
        return found[:limit]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a page for the OpenAPI document."""
        return {
            "type": "object",
            "required": ["items", "next"],
            "additionalProperties": False,
            "properties": {
                "items": schema,
                "next": {
                    "type": ["string", "null"],
                    "description": "Path and query of the next page; null on the last.",
                },
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Return the parameters of a page for the OpenAPI document."""
        names = [sign + name for name in view.orderings for sign in ("", "-")]
        return [
            {
                "name": LIMIT,
                "in": "query",
                "description": "Most rows of a page.",
                "schema": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MOST_ROWS,
                    "default": DEFAULT_LIMIT,
                },
            },
            {
                "name": ORDERING,
                "in": "query",
                "description": "Order of the rows; a minus turns it round.",
                "schema": {"type": "string", "enum": names, "default": view.default_ordering},
            },
            {
                "name": CURSOR,
                "in": "query",
                "description": "Where the page begins: only as `next` of the page before has it.",
                "schema": {"type": "string"},
            },
        ]


def _in_utc(value: object) -> object:
    """Return a time in UTC, for the database takes fewer offsets than ISO 8601 has."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _limit(asked: QueryDict) -> int:
    text = asked.get(LIMIT, str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST_ROWS))):
        limit = 0
    else:
        limit = int(text)
    if not 1 <= limit <= MOST_ROWS:
        raise InvalidInput(f"limit: must be from 1 to {MOST_ROWS}", field=LIMIT)
    return limit


def _order(asked: QueryDict, orderings: Mapping[str, tuple[str, ...]], default: str) -> Order:
    name = asked.get(ORDERING, default)
    columns = orderings.get(name.removeprefix("-"))
    if columns is None:
        known = ", ".join(orderings)
        raise InvalidInput(
            f"ordering: {shortened(name)} is none of {known}, with or without a minus in front",
            field=ORDERING,
        )
    return Order(name=name, columns=columns)


def _field(model: type[Model], column: str) -> Field[Any, Any]:  # Any: of every type
    field: Field[Any, Any] = model._meta.get_field(column)  # type: ignore[assignment]  # noqa: SLF001
    return field
