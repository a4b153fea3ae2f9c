"""Addresses of objects and of lists, and links to them."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import models
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from core.text import NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTarget:
    """Where an object type of the audit trail is found.

    Attributes:
        model: Its model, with an admin page.
        field: The column that holds the public id.
        page: Name of the address of a page of its own, which takes the public id.
    """

    model: type[models.Model]
    field: str
    page: str = ""


_find_targets: dict[str, FindTarget] = {}


def register_findable(
    object_type: str, model: type[models.Model], field: str, page: str = ""
) -> None:
    """Make objects reachable by their public id; each app registers its own."""
    _find_targets[_find_key(object_type)] = FindTarget(model=model, field=field, page=page)


def find_target(object_type: str) -> FindTarget | None:
    """Return where objects of a type are found, or None for a type without a page."""
    return _find_targets.get(_find_key(object_type))


def _find_key(object_type: str) -> str:
    return object_type.lower().replace("_", "").replace(" ", "")


def find_link(object_type: str, public_id: str, text: str = "") -> SafeString | str:
    """Link to an object by its public id; the page is looked up when the link is followed.

    Args:
        text: Its name, if it has one: the id is seen on hover then.
    """
    if not public_id:
        return NOTHING
    is_known = find_target(object_type) is not None
    if not text.strip() or text == public_id:
        return text_link(find_url(object_type, public_id), public_id) if is_known else public_id
    if not is_known:
        return format_html('<span title="{}">{}</span>', public_id, text)
    return format_html(
        '<a class="hr-link" href="{}" title="{}">{}</a>',
        find_url(object_type, public_id),
        public_id,
        text,
    )


def find_url(object_type: str, public_id: str) -> str:
    """Return the address that leads to an object by its public id."""
    return reverse("admin:headroom_find", args=[object_type, public_id])


def everything_url(row: models.Model) -> str:
    """Return the address of everything about a row; empty for one that has no public id."""
    for target in _find_targets.values():
        if type(row) is target.model:
            asked = urlencode({"q": getattr(row, target.field), "everything": "1"})
            return f"{reverse('headroom_search')}?{asked}"
    return ""


def row_link(row: models.Model | None, text: str = "", hint: str = "") -> SafeString | str:
    """Link to a row's page; a dash for None.

    Args:
        hint: What is seen on hover, such as its id.
    """
    if row is None:
        return NOTHING
    if not hint:
        return text_link(row_url(row), text or str(row))
    link = '<a class="hr-link" href="{}" title="{}">{}</a>'
    return format_html(link, row_url(row), hint, text or str(row))


def row_url(row: models.Model) -> str:
    """Return the address of a row's page: the one of its own where its kind has one."""
    for target in _find_targets.values():
        if target.page and type(row) is target.model:
            return reverse(target.page, args=[getattr(row, target.field)])
    return columns_url(row)


def columns_url(row: models.Model) -> str:
    """Return the address of a row's columns in the admin."""
    meta = row._meta  # noqa: SLF001 - Django's documented model API
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk])


def list_url(model_label: str, **lookups: str | int) -> str:
    """Return the address of a model's list with filters.

    Args:
        model_label: ``app.model`` in lower case; a label, because lists link up the floors too.
        lookups: Query parameters of the list.
    """
    address = reverse(f"admin:{model_label.replace('.', '_')}_changelist")
    return f"{address}?{urlencode(lookups)}" if lookups else address


def text_link(url: str, text: str) -> SafeString:
    """Link a text to an address of ours."""
    return format_html('<a class="hr-link" href="{}">{}</a>', url, text)
