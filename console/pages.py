"""Pages that answer a question instead of showing a row: how each is shown, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import models
from django.forms.utils import flatatt
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from console.base import PageData, may_view
from journal.errors import HeadroomError
from journal.heavy import ComputationTooLong, TooManyComputations

Crumb = tuple[str, str]
"""Text and address; the address is empty for the page itself."""
RowT = TypeVar("RowT", bound=models.Model)
AnswerT = TypeVar("AnswerT")


class LongSelect(forms.Select):
    """A select of thousands: it writes its options itself, a template for each takes long."""

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        """Return the element."""
        chosen = set(self.format_value(value))
        options = format_html_join(
            "",
            '<option value="{}"{}>{}</option>',
            (
                (key, flatatt({"selected": str(key) in chosen}), words)
                for key, words in self.choices
            ),
        )
        own = self.build_attrs(self.attrs, {**(attrs or {}), "name": name})
        return format_html("<select{}>{}</select>", flatatt(own), options)


def seen_row(request: HttpRequest, model: type[RowT], pk: int) -> RowT:
    """Return a row whose page was asked for.

    Raises:
        PermissionDenied: rows of the model may not be seen.
        Http404: there is no such row.
    """
    check_view(request, model)
    row = model._default_manager.filter(pk=pk).first()  # noqa: SLF001 - Django's documented API
    if row is None:
        raise Http404
    return row


def check_view(request: HttpRequest, *needed: type[models.Model]) -> None:
    """Check that who is signed in may see rows of all these models.

    Raises:
        PermissionDenied: of one they may not.
    """
    if not all(may_view(request, model) for model in needed):
        raise PermissionDenied


def show_page(
    request: HttpRequest,
    template: str,
    *,
    title: str,
    model: type[models.Model],
    page: PageData,
    crumbs: Sequence[Crumb] = (),
) -> HttpResponse:
    """Show a page among those of a model: its entry of the sidebar and its tabs.

    Args:
        template: Extends ``admin/question_base.html``.
        crumbs: From the list that the page belongs to, to the page itself.
    """
    context = {
        **admin.site.each_context(request),
        "title": title,
        "opts": model._meta,  # noqa: SLF001 - Django's documented model API
        "page": page,
    }
    set_crumbs(request, crumbs or ((title, ""),))
    return TemplateResponse(request, template, context)


def set_crumbs(request: HttpRequest, crumbs: Sequence[Crumb]) -> None:
    """Say where a page is, for the header: the theme hands its template nothing but the request."""
    request.headroom_crumbs = crumbs  # type: ignore[attr-defined]  # read by header_title.html


def answered(ask: Callable[[], AnswerT]) -> tuple[AnswerT | None, str]:
    """Return an answer that takes work, or why there is none now."""
    try:
        return ask(), ""
    except (TooManyComputations, ComputationTooLong) as error:
        return None, f"Not now: {error.message}"
    except HeadroomError as error:
        return None, error.message
