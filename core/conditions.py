"""Conditions of CHECK constraints that are short in the database.

PostgreSQL reads the text of every CHECK of a table anew for each statement that writes it: those of
a table with many rules took longer than the rest of a small write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.db.models import BooleanField, Func, Lookup
from django.db.models.functions import Least
from django.db.models.lookups import GreaterThanOrEqual

WORD = re.compile(r"[a-z_]*")


class OneOf(Func):
    """Whether a text is one of some, which are one constant here and one for each with ``__in``."""

    output_field = BooleanField()
    template = "%(expressions)s = ANY ('{%(words)s}'::text[])"

    def __init__(self, field: str, words: Iterable[str], **extra: Any) -> None:  # Any: Django's
        """Take small letters and underlines.

        Raises:
            ValueError: a word has others.
        """
        words = tuple(words)
        wrong = [word for word in words if not WORD.fullmatch(word)]
        if wrong:
            message = f"no words: {', '.join(wrong)}"
            raise ValueError(message)
        extra["words"] = ",".join(word or '""' for word in words)
        super().__init__(field, **extra)


def none_negative(*fields: str) -> Lookup[bool]:
    """Return the condition that of some numbers none is below zero; NULL is not."""
    return GreaterThanOrEqual(Least(*fields), 0)
