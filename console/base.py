"""The one module that knows the admin theme: every admin class, inline and filter stands on it.

Rows that the system writes are shown read-only, with their explanation; rows that operators edit
are written through services, which audit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
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
from django.db.models.expressions import Combinable
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin as UnfoldModelAdmin
from unfold.admin import TabularInline as UnfoldTabularInline

from console.exports import INTERNAL, ExportedList
from console.links import everything_url, find_link, row_link
from console.names import name_rows, names_of
from console.saved_filters import FilteredList
from console.theme import may_view_label
from core.text import NOTHING, count_text, gib_text, moment_text, relative_text
from journal.actors import Actor
from journal.clock import database_now
from journal.json_node import shortened
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
TONE_ICONS = {
    "ok": "check_circle",
    "warn": "schedule",
    "bad": "error",
    "idle": "radio_button_unchecked",
}

RowT = TypeVar("RowT", bound=models.Model)
TextColumn = Callable[[Any], SafeString | str]

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


class PageData(SimpleNamespace):
    """What a template shows, by name."""


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

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[RowT], search_term: str
    ) -> tuple[models.QuerySet[RowT], bool]:
        """Return the rows found; none, with a message, where too much is asked for."""
        is_long = len(search_term) > MAX_SEARCH_CHARACTERS
        if is_long or len(search_term.split()) > MAX_SEARCH_WORDS or "\0" in search_term:
            problem = f"A search has {MAX_SEARCH_WORDS} words at most: no rows are shown"
            self.message_user(request, problem, messages.ERROR)
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)


class BaseAdmin(ExportedList, FilteredList, BoundedSearch[RowT]):
    """What every list and page has in common."""

    show_full_result_count = False
    paginator = CappedPaginator
    list_per_page = 50
    list_max_show_all = 200
    list_fullwidth = True
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
        if hasattr(self, name) or not _is_field(self.model, name):
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
            column(name) if isinstance(name, str) and _is_field(self.model, name)
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


def request_actor(request: HttpRequest) -> Actor:
    """Return who is signed in, as the audit trail names them."""
    return Actor(name=f"admin:{request.user.get_username()}")


def may_view(request: HttpRequest, model: type[models.Model] | str) -> bool:
    """Return whether who is signed in may see rows of a model.

    Args:
        request: Theirs.
        model: The model, or its label ``app.model`` where it lives on a higher floor.
    """
    label = model if isinstance(model, str) else model._meta.label_lower  # noqa: SLF001 - public
    return may_view_label(request, label)


def badge(tone: str, text: str, hint: str = "") -> SafeString:
    """Show a state as icon and word, never by colour alone.

    Args:
        tone: ``ok``, ``warn``, ``bad`` or ``idle``.
        text: The word.
        hint: Longer text on hover.
    """
    return format_html(
        '<span class="hr-badge hr-{}" title="{}"><span class="material-symbols-outlined"'
        ' aria-hidden="true">{}</span> {}</span>',
        tone,
        hint,
        TONE_ICONS[tone],
        text,
    )


def verdict(tone: str, title: str, sentence: SafeString | str = "") -> PageData:
    """Return what stands on top of a page and says the state: ``admin/parts/verdict.html``."""
    return PageData(tone=tone, icon=TONE_ICONS[tone], title=title, sentence=sentence)


def wrapped(text: SafeString | str) -> SafeString | str:
    """Show a long text in a cell of a list, on several lines; a dash for nothing."""
    return format_html('<span class="hr-wrap">{}</span>', text) if text else NOTHING


def text_block(text: str) -> SafeString | str:
    """Show text of several lines as it is, long ones broken; a dash for nothing."""
    return format_html('<pre class="hr-json" tabindex="0">{}</pre>', text) if text else NOTHING


def plain_counts(counts: Mapping[str, object]) -> list[tuple[str, int]]:
    """Return what a run counted, with names in words; what is no number is left out."""
    return [
        (name.replace("_", " "), count) for name, count in counts.items() if isinstance(count, int)
    ]


def counts_block(counts: Mapping[str, object]) -> SafeString | str:
    """Show what a run counted, one a line; a dash for nothing."""
    return text_block(
        "\n".join(f"{count_text(count):>12}  {name}" for name, count in plain_counts(counts))
    )


def json_block(content: object) -> SafeString | str:
    """Show structured content readably; a dash for nothing."""
    if content in (None, {}, [], ""):
        return NOTHING
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, default=str)
    return text_block(text)


def time_tag(moment: datetime | None) -> SafeString | str:
    """Show a moment in UTC with how long ago or ahead it is; a dash for None."""
    if moment is None:
        return NOTHING
    return format_html(
        '<time datetime="{}" class="hr-time">{} <span class="hr-ago">({})</span></time>',
        moment.isoformat(),
        moment_text(moment),
        relative_text(moment, database_now()),
    )


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


def _is_field(model: type[models.Model], name: str) -> bool:
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
