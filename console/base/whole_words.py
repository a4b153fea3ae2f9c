"""Searches for whole words, found by the indexes of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models.lookups import In
from django.utils.text import smart_split, unescape_string_literal

WHOLE: Final = "whole"


class Whole(In):  # type: ignore[type-arg]  # not subscriptable at run time
    """A text as it is asked for, or the same in small letters: ``field__whole=text``.

    ``iexact`` compares ``upper()`` of every row; ids and names of the cloud are small letters, and
    their columns have indexes.
    """

    lookup_name = WHOLE

    def get_prep_lookup(self) -> Any:  # Any: Django's
        """Return what the column may hold."""
        self.rhs = self.words(str(self.rhs))
        return super().get_prep_lookup()

    def words(self, asked: str) -> list[str]:
        """Return what is looked for."""
        return list(dict.fromkeys([asked, asked.lower()]))


class WholeUUID(Whole):
    """The same of a column of UUIDs, which no other text can be in."""

    def words(self, asked: str) -> list[str]:
        """Return the UUID; nothing for another text."""
        try:
            return [str(UUID(asked))]
        except ValueError:
            return []


models.CharField.register_lookup(Whole)
models.UUIDField.register_lookup(WholeUUID)


def found_apart(
    rows: models.QuerySet[Any], fields: Sequence[str], search: str
) -> models.QuerySet[Any]:
    """Return the rows that have each word of a search in one of some fields.

    Each field is looked through by itself, by its index; one condition over several tables has
    PostgreSQL read all of them.

    Args:
        fields: Each with its lookup, of this table or of others.
    """
    every = rows.model._default_manager.order_by()  # noqa: SLF001 - public model API
    for bit in smart_split(search):
        is_quoted = bit.startswith(('"', "'")) and bit[0] == bit[-1]
        word = unescape_string_literal(bit) if is_quoted else bit
        first, *others = (every.filter(**{field: word}).values("pk") for field in fields)
        rows = rows.filter(pk__in=first.union(*others))
    return rows
