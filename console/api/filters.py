"""Filters of lists: what is not known is refused, never ignored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django_filters import rest_framework as library
from django_filters.fields import IsoDateTimeField
from rest_framework.request import Request

from console.api.paging import PAGE_PARAMETERS
from core.stored_text import shortened
from journal.errors import InvalidInput

LONGEST_TEXT = 255


class TextFilter(library.CharFilter):  # type: ignore[misc]  # no types
    """A whole text, letter by letter."""

    def __init__(self, **options: Any) -> None:  # Any: what a filter takes
        super().__init__(max_length=LONGEST_TEXT, strip=False, **options)


class UUIDFilter(library.UUIDFilter):  # type: ignore[misc]  # no types
    """A uuid, with or without hyphens."""


class FlagFilter(library.TypedChoiceFilter):  # type: ignore[misc]  # no types
    """``true`` or ``false``; anything else is refused."""

    def __init__(self, **options: Any) -> None:  # Any: what a filter takes
        choices = (("true", "true"), ("false", "false"))
        super().__init__(choices=choices, coerce=lambda text: text == "true", **options)


class WordFilter(library.ChoiceFilter):  # type: ignore[misc]  # no types
    """One of a few words."""


class TimeField(IsoDateTimeField):  # type: ignore[misc]  # no types
    """A time in UTC: the database takes fewer offsets than ISO 8601 has."""

    def to_python(self, value: Any) -> datetime | None:  # Any: Django's
        """Return the time.

        Raises:
            ValidationError: it is none, or it is before the first year or behind the last one.
        """
        told: datetime | None = super().to_python(value)
        try:
            return told if told is None else told.astimezone(UTC)
        except OverflowError:
            raise ValidationError(self.error_messages["invalid"], code="invalid") from None


class TimeFilter(library.IsoDateTimeFilter):  # type: ignore[misc]  # no types
    """A time; without an offset it is UTC."""

    field_class = TimeField


class SinceFilter(TimeFilter):
    """Times from this one on."""

    def __init__(self, **options: Any) -> None:  # Any: what a filter takes
        super().__init__(lookup_expr="gte", **options)


class BeforeFilter(TimeFilter):
    """Times before this one."""

    def __init__(self, **options: Any) -> None:  # Any: what a filter takes
        super().__init__(lookup_expr="lt", **options)


class Filters(library.FilterSet):  # type: ignore[misc]  # no types
    """The filters of a list; all that are given hold together."""


class CreatedFilters(Filters):
    """Filters of rows that say when they were made."""

    created_since = SinceFilter(field_name="created_at")
    created_before = BeforeFilter(field_name="created_at")


class StartedFilters(Filters):
    """Filters of runs."""

    started_since = SinceFilter(field_name="started_at")
    started_before = BeforeFilter(field_name="started_at")


class StrictFilterBackend(library.DjangoFilterBackend):  # type: ignore[misc]  # no types
    """Applies the filters of a list to its rows."""

    def filter_queryset(
        self, request: Request, queryset: QuerySet[Model], view: Any
    ) -> Any:  # Any: the library's
        """Return the rows that pass.

        Raises:
            InvalidInput: a parameter is unknown, empty, given twice, or cannot be used.
        """
        known = view.filterset_class.base_filters
        for name, values in request.query_params.lists():
            if name not in known and name not in PAGE_PARAMETERS:
                raise unknown_parameter(name, sorted({*known, *PAGE_PARAMETERS}))
            if len(values) > 1:
                raise InvalidInput(f"{name}: is given {len(values)} times", field=name)
            if not values[0]:
                raise InvalidInput(f"{name}: must not be empty", field=name)
        filters = self.get_filterset(request, queryset, view)
        for name, errors in filters.errors.items():
            raise InvalidInput(f"{name}: {_problem(filters.form.fields[name], errors)}", field=name)
        return filters.qs


def unknown_parameter(name: str, known: list[str]) -> InvalidInput:
    """Return the refusal of a parameter that there is not."""
    shown = shortened(name)
    allowed = f"known are {', '.join(known)}" if known else "there are none here"
    return InvalidInput(f"{shown}: no such parameter; {allowed}", field=shown)


def _problem(field: forms.Field, errors: Any) -> str:  # Any: Django's list of errors
    if isinstance(field, forms.ChoiceField):
        choices: Any = field.choices  # pairs, by the time that a form has it
        return "must be one of " + ", ".join(str(value) for value, _ in choices if value)
    return " ".join(str(error) for error in errors)
