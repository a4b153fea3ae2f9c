"""Columns of lists and lines of pages: fields in words, with units and links."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models.expressions import Combinable
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.base.pieces import badge, json_block, time_tag
from console.links import find_link, row_link
from console.names import names_of
from core.text import NOTHING, count_text, gib_text

TextColumn = Callable[[Any], SafeString | str]


class Column:
    """A read-only column of a list, or a line of a page."""

    is_link = False
    """Whether what it shows is a link, which no link to the row can go around."""

    def __init__(
        self, title: str, text: TextColumn, ordering: str | Combinable = "", name: str = ""
    ) -> None:
        self.short_description = title
        self.text = text
        self.admin_order_field = ordering
        self.__name__ = name

    def __call__(self, row: Any) -> str:
        """Return what it shows of a row."""
        return self.text(row)


def shown(title: str, text: TextColumn, ordering: str | Combinable = "") -> Column:
    """Return a column of what a function says of a row; it sorts where it has an order."""
    return Column(title, text, ordering)


def column(name: str, title: str = "") -> Column:
    """Return a column of a field, formatted with its unit, that sorts by the field.

    A field of a related row that is always there is named ``related__field``.

    Bytes become binary units, times UTC with a hint, JSON a block, foreign keys links, lists
    words with commas.
    """
    words = name.removesuffix("_bytes").replace("_", " ")
    for raw, written in (("vcpus", "vCPUs"), (" gib", " (GiB)"), ("uuid", "UUID"), (" id", " ID")):
        words = words.replace(raw, written)
    return Column(title or words, lambda row: _formatted(name, row), name, name.replace("__", "_"))


def link(
    object_type: str, name: str, title: str, *, ordering: str | None = None, words: str = ""
) -> Column:
    """Return a column that links to an object by the public id that a field holds.

    Args:
        words: Annotation that holds the object's name; without one it is a name of the page's
            (``names_in``). The id is shown where there is none.
    """
    order = name if ordering is None else ordering

    def linked(row: Any) -> SafeString | str:
        public_id = getattr(row, name) or ""
        said = getattr(row, words, None) if words else names_of(row).of(object_type, public_id)
        return find_link(object_type, public_id, said or "")

    shown_link = Column(title, linked, order)
    shown_link.is_link = True
    return shown_link


def with_id(name: str, public_id: str, title: str = "") -> Column:
    """Return a column of the name that a field holds; the id is seen on hover, or without a name.

    Args:
        public_id: Field that holds the id.
    """

    def named(row: Any) -> SafeString | str:
        uuid = str(getattr(row, public_id))
        return format_html('<span title="{}">{}</span>', uuid, getattr(row, name) or uuid)

    return Column(title or name, named, name)


def is_field(model: type[models.Model], name: str) -> bool:
    """Return whether a model has a column of this name."""
    return any(field.name == name for field in model._meta.concrete_fields)  # noqa: SLF001 - API


def _formatted(name: str, row: models.Model) -> SafeString | str:
    related, _, own = name.partition("__")
    if own:
        return _formatted(own, getattr(row, related))
    field: Any = row._meta.get_field(name)  # noqa: SLF001 - Django's documented model API
    content = getattr(row, name)
    if isinstance(field, models.ForeignKey):
        return row_link(content)
    if content is None or content == "":
        return NOTHING
    if isinstance(field, models.JSONField):
        return json_block(content)
    shows = [show for kind, show in _TYPE_FORMATS if isinstance(content, kind)]
    if not shows and isinstance(content, int):
        shows = [show for ending, show in _NAME_FORMATS if name.endswith(ending)]
    if not shows and field.choices:
        return str(getattr(row, f"get_{name}_display")())
    return shows[0](content) if shows else str(content)


_TYPE_FORMATS: tuple[tuple[type, TextColumn], ...] = (
    (bool, lambda content: badge("ok", "yes") if content else badge("idle", "no")),
    (datetime, time_tag),
    (list, lambda content: ", ".join(map(str, content)) or NOTHING),
)
_NAME_FORMATS: tuple[tuple[str, TextColumn], ...] = (
    ("_bytes", gib_text),
    ("vcpus", lambda content: count_text(content, "vCPUs")),
    ("_gib", lambda content: count_text(content, "GiB")),
    ("_seconds", lambda content: count_text(content, "s")),
)
