"""Filters of lists: by words of a column, by conditions, by how long ago something was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest

from journal.clock import database_now


class ChoiceFilter(admin.SimpleListFilter):
    """A filter over a fixed or queried list of words: subclasses give ``words`` and ``field``."""

    field = ""

    def words(self) -> Sequence[tuple[str, str]]:
        """Return pairs of query value and label; none unless a subclass has some."""
        return ()

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> Sequence[tuple[str, str]]:
        """Return the choices of the filter."""
        return self.words()

    def queryset(
        self, request: HttpRequest, queryset: models.QuerySet[Any]
    ) -> models.QuerySet[Any]:
        """Keep the rows that have the chosen word."""
        chosen = self.value()
        return queryset if chosen is None else queryset.filter(**{self.field: chosen})


class AnswerFilter(admin.SimpleListFilter):
    """A filter over words that stand for conditions."""

    answers: Mapping[str, tuple[str, Callable[[], models.Q]]] = {}
    """Query value to its label and the condition of the rows to keep."""

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> Sequence[tuple[str, str]]:
        """Return the choices of the filter."""
        return [(word, label) for word, (label, _) in self.answers.items()]

    def queryset(
        self, request: HttpRequest, queryset: models.QuerySet[Any]
    ) -> models.QuerySet[Any]:
        """Keep the rows that the chosen word stands for."""
        chosen = self.answers.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(chosen[1]())


def since_filter(field_name: str, label: str) -> type[AnswerFilter]:
    """Return a filter of a list by how long ago a moment was; days are of UTC.

    Args:
        field_name: The moment's column; has an index, or the table is small.
    """

    def since(**ago: int) -> Callable[[], models.Q]:
        return lambda: models.Q(**{f"{field_name}__gte": database_now() - timedelta(**ago)})

    def yesterday() -> models.Q:
        today = database_now().replace(hour=0, minute=0, second=0, microsecond=0)
        bounds = {f"{field_name}__gte": today - timedelta(days=1), f"{field_name}__lt": today}
        return models.Q(**bounds)

    class SinceFilter(AnswerFilter):
        title = label
        parameter_name = "since"
        answers = {
            "hour": ("the last hour", since(hours=1)),
            "day": ("the last 24 hours", since(days=1)),
            "yesterday": ("yesterday (UTC)", yesterday),
            "week": ("the last 7 days", since(days=7)),
            "month": ("the last 30 days", since(days=30)),
        }

    return SinceFilter
