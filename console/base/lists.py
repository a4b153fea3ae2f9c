"""Admin classes of lists and pages; only here is known what the theme calls its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import (
    IS_FACETS_VAR,
    IS_POPUP_VAR,
    TO_FIELD_VAR,
    IncorrectLookupParameters,
)
from django.contrib.admin.views.main import (
    ALL_VAR,
    ERROR_FLAG,
    ORDER_VAR,
    PAGE_VAR,
    SEARCH_VAR,
    ChangeList,
)
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin as UnfoldModelAdmin
from unfold.admin import TabularInline as UnfoldTabularInline

from console.base.columns import Column, column, is_field
from console.base.filters import ChoiceFilter
from console.base.whole_words import found_apart
from console.exports import INTERNAL, ExportedList
from console.links import everything_url
from console.names import name_rows
from console.saved_filters import FilteredList
from core.stored_text import shortened
from core.text import count_text
from journal.statements import fetch_value

NO_FILTERS = frozenset(
    {
        ALL_VAR,
        ERROR_FLAG,
        IS_FACETS_VAR,
        IS_POPUP_VAR,
        ORDER_VAR,
        PAGE_VAR,
        SEARCH_VAR,
        TO_FIELD_VAR,
    }
)
"""Parameters of a list that choose no rows by a column."""
REFUSED_FILTER = "headroom_refused_filter"
COUNT_CAP = 10_000
MAX_SEARCH_WORDS = 20
MAX_SEARCH_CHARACTERS = 1000
RowT = TypeVar("RowT", bound=models.Model)
if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]

    class ThemeModelAdmin(admin.ModelAdmin[RowT]):
        """The theme's admin class, as far as types go."""

    class ThemeTabularInline(admin.TabularInline[RowT, Any]):
        """The theme's inline class, as far as types go."""

else:
    AnyPaginator = Paginator

    class ThemeModelAdmin(UnfoldModelAdmin):
        """The theme's admin class."""

        def __class_getitem__(cls, _row_type):
            return cls

    class ThemeTabularInline(UnfoldTabularInline):
        """The theme's inline class."""

        def __class_getitem__(cls, _row_type):
            return cls


class CappedPaginator(AnyPaginator):
    """Counts at most :data:`COUNT_CAP` rows; a whole large table is estimated from statistics.

    An exact count of a table of VMs or audit entries reads all of it on every page view.
    """

    template_name = "admin/parts/pagination.html"

    @cached_property
    def count(self) -> int:
        """Number of rows that pages can reach."""
        return self._counted[0]

    @property
    def count_text(self) -> str:
        """The count for people, saying when it is not exact."""
        count, prefix = self._counted
        return f"{prefix}{count_text(count)}"

    @cached_property
    def _counted(self) -> tuple[int, str]:
        queryset = self.object_list
        if not isinstance(queryset, models.QuerySet):
            return len(queryset), ""
        if not queryset.query.where:
            estimate = _estimated_rows(queryset.model)
            if estimate > COUNT_CAP:
                return estimate, "about "
        counted = queryset.order_by().values("pk")[: COUNT_CAP + 1].count()
        return (COUNT_CAP, "more than ") if counted > COUNT_CAP else (counted, "")


def _estimated_rows(model: type[models.Model]) -> int:
    estimate = fetch_value(
        "SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass",
        [f'"{model._meta.db_table}"'],  # noqa: SLF001 - Django's documented model API
    )
    return int(estimate or 0)


class BoundedSearch(ThemeModelAdmin[RowT]):
    """Refuses searches that PostgreSQL could not plan: each word is a condition a field."""

    is_searched_apart = False
    """Whether each of the fields, which have lookups, is searched by an index of its own."""

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[RowT], search_term: str
    ) -> tuple[models.QuerySet[RowT], bool]:
        """Return the rows found; none, with a message, where too much is asked for."""
        is_long = len(search_term) > MAX_SEARCH_CHARACTERS
        if is_long or len(search_term.split()) > MAX_SEARCH_WORDS or "\0" in search_term:
            problem = f"A search has {MAX_SEARCH_WORDS} words at most: no rows are shown"
            self.message_user(request, problem, messages.ERROR)
            return queryset.none(), False
        if self.is_searched_apart:
            fields = [str(field) for field in self.get_search_fields(request)]
            return found_apart(queryset, fields, search_term), False
        return super().get_search_results(request, queryset, search_term)


class BaseAdmin(ExportedList, FilteredList, BoundedSearch[RowT]):
    """What every list and page has in common."""

    show_full_result_count = False
    paginator = CappedPaginator
    list_per_page = 50
    list_max_show_all = 200
    list_fullwidth = True
    empty_note = ""
    """Why a list without rows has none, and what would put some there."""
    compressed_fields = True
    page_columns: tuple[str | Column, ...] = ()
    """Fields of the page in order, raw columns formatted with units; every field when empty."""
    names_in: tuple[str, ...] = ()
    """Columns with ids, or texts with uuids in them, whose names are read for a whole page."""

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[RowT]:
        """Return the rows; none for a list whose filter was refused."""
        rows: models.QuerySet[RowT] = super().get_queryset(request)
        return rows.none() if hasattr(request, REFUSED_FILTER) else rows

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list; an empty one with a message where a filter is not understood.

        Django's own shows all rows then.
        """
        changelist = self._understood_changelist(request)
        if self.names_in:
            name_rows(changelist.result_list, self.names_in)
        return changelist

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> RowT | None:
        """Return the row of a page, with the names of what it mentions."""
        row: RowT | None = super().get_object(request, object_id, from_field)
        if row is not None and self.names_in:
            name_rows([row], self.names_in)
        return row

    def _understood_changelist(self, request: HttpRequest) -> ChangeList:
        asked = request.GET
        try:
            changelist = super().get_changelist_instance(request)
        except (IncorrectLookupParameters, DisallowedModelAdminLookup):
            unknown = sorted(set(asked) - NO_FILTERS)
        else:
            unknown = self._unknown_words(request, changelist)
            if not unknown:
                return changelist
        if unknown:
            shown = ", ".join(shortened(f"{name}={asked.get(name, '')}") for name in unknown)
            problem = f"No rows are shown: this list cannot be filtered by {shown}"
            setattr(request, REFUSED_FILTER, unknown)
        else:
            problem = "There is no such page or order: the list is shown from its start"
        self.message_user(request, problem, messages.ERROR)
        searched = QueryDict(mutable=True)
        if SEARCH_VAR in asked:
            searched[SEARCH_VAR] = asked[SEARCH_VAR]
        request.GET = searched  # type: ignore[assignment]  # mutable is all that differs
        return super().get_changelist_instance(request)

    def _unknown_words(self, request: HttpRequest, changelist: ChangeList) -> list[str]:
        """Return the parameters of filters of this list that have no such word, or none at all."""
        shown = {type(spec): spec for spec in changelist.filter_specs}
        unknown = []
        for kind in self.get_list_filter(request):
            if not (isinstance(kind, type) and issubclass(kind, admin.SimpleListFilter)):
                continue
            name = str(kind.parameter_name)
            spec = shown.get(kind)
            if name not in request.GET:
                continue
            is_known = isinstance(spec, ChoiceFilter) or (
                isinstance(spec, admin.SimpleListFilter)
                and request.GET[name] in {str(word) for word, _ in spec.lookup_choices}
            )
            if not is_known:
                unknown.append(name)
        return unknown

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns: moments in UTC with how long ago, amounts of bytes with a unit."""
        return tuple(
            column(name) if isinstance(name, str) and self._needs_words(name) else name
            for name in super().get_list_display(request)
        )

    def _needs_words(self, name: str) -> bool:
        if hasattr(self, name) or not is_field(self.model, name):
            return False
        field = self.model._meta.get_field(name)  # noqa: SLF001 - Django's documented model API
        return name.endswith("_bytes") or isinstance(field, models.DateTimeField)

    def get_list_display_links(self, request: HttpRequest, list_display: Any) -> Any:
        """Return the column that leads to a row: the first that is no link itself."""
        if self.list_display_links or self.list_display_links is None:
            return super().get_list_display_links(request, list_display)
        own = [name for name in list_display if not self._is_link(name)]
        return (own or list(list_display))[:1]

    def _is_link(self, name: Any) -> bool:
        shown_by = getattr(self, name, None) if isinstance(name, str) else name
        return bool(getattr(shown_by, "is_link", False))

    def page_parts(self, request: HttpRequest, row: RowT) -> dict[str, Any]:
        """Return what the template of a row's page shows beside its columns."""
        return {}

    def render_change_form(  # noqa: PLR0917 - signature of Django
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,  # noqa: FBT001, FBT002 - signature of Django
        change: bool = False,  # noqa: FBT001, FBT002 - signature of Django
        form_url: str = "",
        obj: RowT | None = None,
    ) -> HttpResponse:
        """Show a row's page with the parts of its template."""
        if obj is not None:
            context["everything_url"] = everything_url(obj)
            context |= self.page_parts(request, obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def get_fields(self, request: HttpRequest, obj: RowT | None = None) -> Any:
        """Return the page's fields; read-only ones formatted by type and name."""
        if self.has_change_permission(request, obj):
            return super().get_fields(request, obj)
        chosen = self.page_columns or tuple(
            field.name
            for field in self.model._meta.concrete_fields  # noqa: SLF001 - public model API
            if field.name not in INTERNAL
        )
        return [
            column(name) if isinstance(name, str) and is_field(self.model, name)
            else name
            for name in chosen
        ]  # fmt: skip

    def get_readonly_fields(
        self, request: HttpRequest, obj: RowT | None = None
    ) -> list[str] | tuple[Any, ...]:
        """Return the computed fields of the page, which the form must not look for."""
        if self.has_change_permission(request, obj):
            return super().get_readonly_fields(request, obj)
        return tuple(self.get_fields(request, obj))


class SystemOwnedAdmin(BaseAdmin[RowT]):
    """Rows that only services write: nobody adds, edits or deletes them here."""

    owner_note = "Written by the system."
    """Who writes these rows and where to change what they say."""
    change_form_before_template: str | None = "admin/parts/page_before.html"
    list_before_template: str | None = "admin/parts/owner_note.html"
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: see :attr:`owner_note`."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: RowT | None = None) -> bool:
        """Refuse: see :attr:`owner_note`."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: RowT | None = None) -> bool:
        """Refuse: see :attr:`owner_note`."""
        return False


class ReadOnlyInline(ThemeTabularInline[RowT]):
    """Related rows on a page, to look at."""

    extra = 0
    can_delete = False
    show_change_link = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: inlines only show."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: inlines only show."""
        return False


class CheckedActions(BoundedSearch[RowT]):
    """Actions that refuse forged row keys with a message; Django's own fails on them."""

    def response_action(
        self, request: HttpRequest, queryset: models.QuerySet[RowT]
    ) -> HttpResponse | None:
        """Run an action on the chosen rows if their keys can be keys at all."""
        try:
            for key in request.POST.getlist(ACTION_CHECKBOX_NAME):
                self.opts.pk.clean(key, None)
        except ValidationError as error:
            self.message_user(request, "; ".join(error.messages), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return super().response_action(request, queryset)
