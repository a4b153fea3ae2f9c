"""Filters of a list that a viewer keeps under a name, alone or for all who may see the list."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.contrib.admin.options import IS_POPUP_VAR, TO_FIELD_VAR
from django.contrib.admin.views.main import ALL_VAR, ERROR_FLAG, PAGE_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    QueryDict,
)
from django.urls import URLPattern, path, reverse

from console.models import LONGEST_NAME, LONGEST_QUERY, SavedFilter
from journal.actors import Actor
from journal.middleware import request_id_of
from journal.services import Change, record_changes

MOST_OF_ONE: Final = 50
MOST_SHOWN: Final = 100
#: Where in a list somebody is, which is no filter.
PLACES: Final = (PAGE_VAR, ALL_VAR, ERROR_FLAG, IS_POPUP_VAR, TO_FIELD_VAR)


class FilterRefused(Exception):  # noqa: N818 - says what was decided
    """Filters that are not kept; the words say why."""


if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin


class FilteredList(AnyModelAdmin):
    """A list with the filters that are kept of it.

    Attributes:
        questions: What operators ask of it, each a click away: words, and the filters.
    """

    questions: tuple[tuple[str, str], ...] = ()

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of kept filters before those of rows."""
        wrap = self.admin_site.admin_view
        return [
            path("filters/keep", wrap(self.keep_view), name=self._url_name("keep")),
            path("filters/<int:key>/remove", wrap(self.remove_view), name=self._url_name("remove")),
            *super().get_urls(),
        ]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list, which asks for its kept filters once it is shown."""
        changelist = super().get_changelist_instance(request)
        asked = changelist.get_query_string(remove=list(PLACES)).removeprefix("?")
        shown = cache(partial(self._panel, request, asked))  # the template asks twice
        changelist.saved_filters = shown  # type: ignore[attr-defined]  # for our template
        return changelist

    def keep_view(self, request: HttpRequest) -> HttpResponse:
        """Keep the filters that were posted; those of the same name are replaced."""
        self._check(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            row = self._kept(request)
        except FilterRefused as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(self._list_url())
        self.message_user(request, f"These filters are kept as {row.name}", messages.SUCCESS)
        return HttpResponseRedirect(f"{self._list_url()}?{row.query}")

    def remove_view(self, request: HttpRequest, key: int) -> HttpResponse:
        """Remove kept filters: one's own, or any as a superuser."""
        self._check(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        with transaction.atomic():
            row = self._visible(request).select_for_update(of=("self",)).filter(pk=key).first()
            if row is not None:
                if not _may_remove(request, row):
                    raise PermissionDenied
                _record("removed", row, request)
                row.delete()
        said = "They were removed already" if row is None else f"{row.name} is removed"
        self.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(self._list_url())

    def _kept(self, request: HttpRequest) -> SavedFilter:
        name = " ".join(request.POST.get("name", "").split())
        asked = QueryDict(request.POST.get("query", ""), mutable=True)
        for place in PLACES:
            asked.pop(place, None)
        query = asked.urlencode()
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise FilterRefused(f"A name has 1 to {LONGEST_NAME} characters: nothing was kept")
        if not query or len(query) > LONGEST_QUERY:
            raise FilterRefused("There are no filters, or too many: nothing was kept")
        of_one: dict[str, Any] = {"list_label": self.opts.label_lower, "owner": request.user}
        with transaction.atomic():
            others = SavedFilter.objects.filter(**of_one).exclude(name=name)
            if others.count() >= MOST_OF_ONE:
                raise FilterRefused(f"You keep {MOST_OF_ONE} of this list already: remove one")
            facts = {"query": query, "is_shared": "is_shared" in request.POST}
            row, _ = SavedFilter.objects.update_or_create(**of_one, name=name, defaults=facts)
            _record("kept", row, request)
        return row

    def _panel(self, request: HttpRequest, asked: str) -> dict[str, Any]:
        """Return what the template shows: kept filters, and whether there are some to keep."""
        rows = [
            {
                "name": row.name,
                "query": row.query,
                "said": _said(request, row),
                "is_open": row.query == asked,
                "remove_url": reverse(f"admin:{self._url_name('remove')}", args=[row.pk])
                if _may_remove(request, row)
                else "",
            }
            for row in self._visible(request)[:MOST_SHOWN]
        ]
        keep_url = reverse(f"admin:{self._url_name('keep')}")
        questions = [
            {"name": words, "query": query, "is_open": query == asked}
            for words, query in self.questions
        ]
        return {
            "rows": rows,
            "questions": questions,
            "asked": asked,
            "keep_url": keep_url,
            "longest": LONGEST_NAME,
        }

    def _visible(self, request: HttpRequest) -> QuerySet[SavedFilter]:
        mine = Q(is_shared=True) | Q(owner=request.user.pk)
        return SavedFilter.objects.select_related("owner").filter(
            mine, list_label=self.opts.label_lower
        )

    def _check(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _list_url(self) -> str:
        return reverse(f"admin:{self._url_name('changelist')}")

    def _url_name(self, page: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{page}"


def _may_remove(request: HttpRequest, row: SavedFilter) -> bool:
    return row.owner_id == request.user.pk or bool(request.user.is_superuser)


def _said(request: HttpRequest, row: SavedFilter) -> str:
    if not row.is_shared:
        return ""
    return "for all" if row.owner_id == request.user.pk else f"by {row.owner.get_username()}"


def _record(what: str, row: SavedFilter, request: HttpRequest) -> None:
    facts = {"list": row.list_label, "query": row.query, "is_shared": row.is_shared}
    change = Change(
        action=f"saved_filter_{what}",
        object_type="SavedFilter",
        object_id=row.name,
        before=facts if what == "removed" else None,
        after=None if what == "removed" else facts,
    )
    actor = Actor(name=f"admin:{request.user.get_username()}")
    record_changes([change], actor=actor, request_id=request_id_of(request))
