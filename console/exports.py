"""Lists as files: the rows that a list shows, filtered and searched as they are, as CSV or JSON.

django-import-export writes them. It is not an installed app: nothing here imports, and there is no
page, permission or command for it. Columns are those of the table, whose names carry their units,
with the names of what rows refer to. A file is whole or there is none: more than :data:`MOST_ROWS`
rows, or more work than :data:`MOST_SECONDS`, are refused with words.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.contrib.admin.views.main import ALL_VAR, PAGE_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, models, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.views.decorators.http import require_safe
from import_export.fields import Field
from import_export.formats import base_formats
from import_export.resources import Resource
from import_export.widgets import Widget

from journal.clock import database_now

MOST_ROWS: Final = 50_000
MOST_SECONDS: Final = 30.0
CHUNK_ROWS: Final = 2_000
#: Columns that tell nobody anything.
INTERNAL: Final = frozenset({"changed_xid", "singleton"})
#: What a spreadsheet would take for the beginning of a formula (OWASP, "CSV Injection").
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", *"\uff1d\uff0b\uff0d\uff20")
BAD_REQUEST: Final = 400


class ExportRefused(Exception):  # noqa: N818 - says what was decided
    """There is no file; the words say why."""


if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin


class ExportedList(AnyModelAdmin):
    """A list with its files."""

    not_exported: frozenset[str] = frozenset()
    """Columns whose unit differs from row to row; others hold each unit by itself."""

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of the files before those of rows."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_export"
        files = [
            path(
                f"export.{kind}",
                self.admin_site.admin_view(require_safe(partial(self.export_view, kind=kind))),
                name=f"{name}_{kind}",
            )
            for kind in FILES
        ]
        return [*files, *super().get_urls()]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list, with the addresses of its files if it has rows."""
        changelist = super().get_changelist_instance(request)
        asked = changelist.get_query_string(remove=[PAGE_VAR, ALL_VAR])
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_export"
        links = [(kind.upper(), reverse(f"{name}_{kind}") + asked) for kind in FILES]
        changelist.exports = links if changelist.result_count else []  # type: ignore[attr-defined]
        return changelist

    def export_view(self, request: HttpRequest, kind: str) -> HttpResponse:
        """Return the rows of the list as a file; words with status 400 if it cannot be asked so."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        query = request.GET.copy()
        for name in (PAGE_VAR, ALL_VAR):
            query.pop(name, None)
        request.GET = query  # type: ignore[assignment]  # mutable is all that differs
        rows = self.get_changelist_instance(request).queryset
        said = messages.get_messages(request)
        if getattr(said, "added_new", False):
            words = "\n".join(str(one) for one in said)
            return HttpResponse(words, status=BAD_REQUEST, content_type="text/plain; charset=utf-8")
        try:
            content = exported(rows, kind, without=self.not_exported)
        except ExportRefused as error:
            self.message_user(request, str(error), messages.ERROR)
            address = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
            return HttpResponseRedirect(f"{address}?{query.urlencode()}")
        file_name = f"{self.opts.model_name}-{database_now():%Y-%m-%d}.{kind}"
        return HttpResponse(
            content,
            content_type=FILES[kind].CONTENT_TYPE,
            headers={"Content-Disposition": f'attachment; filename="{file_name}"'},
        )


def exported(
    rows: models.QuerySet[Any], kind: str, *, without: frozenset[str] = frozenset()
) -> bytes:
    """Return rows as a file.

    Args:
        rows: Of a list, in its order; what it leaves unread stays unread.
        kind: ``csv`` or ``json``.
        without: Columns to leave out.

    Raises:
        ExportRefused: there are too many, or they take too long.
    """
    columns = {title: source for title, source in columns_of(rows).items() if title not in without}
    names = {title: models.F(source) for title, source in columns.items() if title != source}
    own = [title for title in columns if title not in names]
    chosen = rows.prefetch_related(None).values(*own, **names)
    try:
        with transaction.atomic():
            told = ListResource(columns).export(chosen[: MOST_ROWS + 1])
    except OperationalError as error:  # the deadline of a statement, or no database
        raise ExportRefused("The rows were not read in time: filter the list first") from error
    content: str = FILES[kind]().export_data(told)
    return content.encode()


def columns_of(rows: models.QuerySet[Any]) -> dict[str, str]:
    """Return title and source of each column that a list reads of its table, and its sums."""
    left_out, is_deferring = rows.query.deferred_loading
    columns: dict[str, str] = {}
    for field in rows.model._meta.concrete_fields:  # noqa: SLF001 - public model API
        is_unread = is_deferring and field.name in left_out
        if is_unread or field.name in INTERNAL or isinstance(field, models.BinaryField):
            continue
        columns[field.attname] = field.attname
        if isinstance(field, models.ForeignKey) and _has_name(field.related_model):
            columns[f"{field.name}_name"] = f"{field.name}__name"
    return columns | {name: name for name in rows.query.annotations}


def _has_name(model: Any) -> bool:  # Any: Django's type has the word "self" too
    return any(field.name == "name" for field in model._meta.concrete_fields)  # noqa: SLF001 - API


class ListWidget(Widget):  # type: ignore[misc]  # no types
    """Values of their kind: moments in UTC, spans in seconds."""

    def render(self, value: Any, obj: Any = None, **_: Any) -> Any:  # Any: what columns hold
        """Return what stands in the file."""
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return value.total_seconds() if isinstance(value, timedelta) else value


class ListResource(Resource):  # type: ignore[misc]  # no types
    """Rows as mappings, in columns; for one file."""

    class Meta:
        chunk_size = CHUNK_ROWS

    def __init__(self, columns: Iterable[str]) -> None:
        super().__init__()
        self.fields = {title: Field(title, title, ListWidget()) for title in columns}
        self._until = time.monotonic() + MOST_SECONDS

    def iter_queryset(self, queryset: models.QuerySet[Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the rows.

        Raises:
            ExportRefused: there are too many, or they take too long.
        """
        for number, row in enumerate(super().iter_queryset(queryset)):
            if number == MOST_ROWS:
                raise ExportRefused(
                    f"A file has {MOST_ROWS:,} rows at most: filter the list, or ask /api/v1 page"
                    " by page"
                )
            if number % CHUNK_ROWS == 0 and time.monotonic() > self._until:
                raise ExportRefused(
                    f"The file took longer than {MOST_SECONDS:.0f} s: filter the list first"
                )
            yield row


class CSV(base_formats.CSV):  # type: ignore[misc]  # no types
    """With no text that a spreadsheet takes for a formula: the library's setting knows ``=``."""

    CONTENT_TYPE = "text/csv; charset=utf-8"

    def export_data(self, dataset: Any, **options: Any) -> Any:  # Any: the library's
        """Return the text of the file."""
        dataset.add_formatter(None, _cell)
        return super().export_data(dataset, **options)


def _cell(content: Any) -> Any:  # Any: what columns hold
    """Return what stands in a cell; a text that begins like a formula gets an apostrophe."""
    if isinstance(content, str):
        return f"'{content}" if content.startswith(FORMULA_STARTS) else content
    is_json = isinstance(content, bool | list | dict)
    return json.dumps(content, default=str) if is_json else content


FILES: Final = {"csv": CSV, "json": base_formats.JSON}
