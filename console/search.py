"""One search over all objects, and everything about one of them.

Every look-up reads an index: whole ids and names, the beginnings of names and ids, and parts of
names. Two statements find rows and one what the audit trail says, however many kinds there are; a
limit of time stands over all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.apps import apps
from django.contrib import admin
from django.db import OperationalError, models, transaction
from django.db.models import CharField, F, Func, Q, QuerySet, TextField, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Concat
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse

from console.base import PageData, may_view
from console.links import list_url
from console.names import Names
from journal.statements import Row, execute, fetch_rows

SHOWN = 8
LIMIT_MILLISECONDS = 2000
SHORTEST_BEGINNING = 2
SHORTEST_PART = 3  # letters that the index of parts keeps together
LONGEST = 255
TIME = 'YYYY-MM-DD HH24:MI "UTC"'
Rows = QuerySet[models.Model, tuple[int, str, str]]

AUDITED = """
WITH RECURSIVE kinds AS (
    (SELECT object_type FROM journal_auditentry ORDER BY object_type LIMIT 1)
    UNION ALL
    SELECT (SELECT object_type FROM journal_auditentry
             WHERE object_type > kinds.object_type ORDER BY object_type LIMIT 1)
      FROM kinds WHERE kinds.object_type IS NOT NULL
)
SELECT entry.id, entry.action, entry.object_type, entry.object_id, entry.actor, entry.created_at
  FROM kinds CROSS JOIN LATERAL (
       SELECT * FROM journal_auditentry AS one
        WHERE one.object_type = kinds.object_type AND one.object_id = ANY(%(words)s)
        ORDER BY one.id DESC LIMIT %(limit)s) AS entry
UNION
(SELECT id, action, object_type, object_id, actor, created_at FROM journal_auditentry
  WHERE request_id = %(word)s ORDER BY id DESC LIMIT %(limit)s)
ORDER BY id DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is searched, and how a row found is told.

    Attributes:
        model: Label ``app.model``.
        whole: Columns that hold the whole word; each has an index.
        beginning: Columns whose values begin with the word; each has an index for that.
        parts: Columns whose values have the word in them, of any case; an index each.
        words: Columns that name a row, joined by blanks.
        is_object: Whether a row is the thing asked for, which a whole id leads to. The others tell
            something about it. What stands earlier goes before what stands later.
        is_uuid: Whether the columns are uuids by type: other words are not looked for.
        within: A JSON column, a list of objects; ``whole`` are keys of theirs then.
        is_newest_first: Whether an index gives the newest rows of each of ``whole``.
        page: Name of the address that a row leads to; empty for its columns in the admin.
        page_key: Column that this address takes.
    """

    title: str
    model: str
    whole: tuple[str, ...]
    beginning: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    words: tuple[str, ...]
    is_object: bool = True
    is_uuid: bool = False
    within: str = ""
    is_newest_first: bool = False
    page: str = ""
    page_key: str = "pk"

    @property
    def row_model(self) -> type[models.Model]:
        """Its model."""
        return apps.get_model(self.model)

    @property
    def is_log(self) -> bool:
        """Whether its rows are told by their time first."""
        return isinstance(self.field(self.words[0]), models.DateTimeField)

    @property
    def has_name(self) -> bool:
        """Whether its rows are told by a name of theirs: their ids stand beside it."""
        return "name" in self.words

    def field(self, name: str) -> Any:  # Any: a field of any kind
        """Return a column of the model."""
        return self.row_model._meta.get_field(name)  # noqa: SLF001 - public model API

    def address(self, key: str) -> str:
        """Return where a row leads to."""
        return reverse(self.page or f"admin:{self.model.replace('.', '_')}_change", args=[key])

    def conditions(self, words: Sequence[str]) -> list[Q]:
        """Return what to look for, an index each, for rows that hold one of the words whole."""
        if self.is_uuid:
            words = [word for word in words if _uuid(word) is not None][:1]
        if self.within:
            return [
                Q(**{f"{self.within}__contains": [{key: word}]})
                for key in self.whole
                for word in words
            ]
        return [Q(**{column: word}) for column in self.whole for word in words]

    def beginnings(self, word: str) -> list[Q]:
        """Return what to look for, an index each: names that begin with a word or have it.

        Ids, and most names, are in small letters: a word with capitals is looked for as such, too.
        """
        parts = self.parts if len(word) >= SHORTEST_PART else ()
        spellings = dict.fromkeys((word, word.lower()))
        return [
            *(
                Q(**{f"{column}__startswith": spelling})
                for column in self.beginning
                for spelling in spellings
            ),
            *(Q(**{f"{column}__icontains": word}) for column in parts),
        ]


SOURCES = (
    Source(
        title="VMs",
        model="hosts.instance",
        whole=("openstack_id",),
        beginning=("name", "openstack_id"),
        parts=("name",),
        words=("name", "openstack_id", "zone"),
        page="headroom_vm",
        page_key="openstack_id",
    ),
    Source(
        title="Hosts",
        model="hosts.host",
        whole=("name", "openstack_id"),
        beginning=("name", "openstack_id"),
        parts=("name",),
        words=("name", "zone"),
    ),
    Source(
        title="Projects",
        model="hosts.project",
        whole=("openstack_id",),
        beginning=("name", "openstack_id"),
        parts=("name",),
        words=("name", "openstack_id"),
    ),
    Source(
        title="Domains",
        model="hosts.domain",
        whole=("openstack_id",),
        beginning=("openstack_id",),
        parts=("name",),
        words=("name", "openstack_id"),
    ),
    Source(
        title="Commitments",
        model="commitments.commitment",
        whole=("commitment_uuid",),
        beginning=("commitment_uuid",),
        words=("commitment_uuid", "state"),
    ),
    Source(
        title="Flavor groups",
        model="capacity.flavorgroup",
        whole=("name",),
        beginning=("name",),
        parts=("name",),
        words=("name",),
    ),
    Source(
        title="Flavors",
        model="hosts.flavor",
        whole=("name", "openstack_id"),
        beginning=("name",),
        parts=("name",),
        words=("name", "openstack_id"),
    ),
    Source(
        title="Reservations",
        model="capacity.reservation",
        whole=("uuid",),
        words=("uuid", "kind", "zone"),
        is_uuid=True,
    ),
    Source(
        title="Failover reservations",
        model="failover.failoverreservation",
        whole=("name",),
        beginning=("name",),
        words=("name",),
    ),
    Source(
        title="Server groups",
        model="hosts.servergroup",
        whole=("openstack_id",),
        parts=("name",),
        words=("name", "openstack_id"),
    ),
    Source(
        title="Images",
        model="hosts.image",
        whole=("openstack_id",),
        parts=("name",),
        words=("name", "openstack_id"),
    ),
    Source(
        title="Host aggregates",
        model="hosts.aggregate",
        whole=("uuid",),
        parts=("name",),
        words=("name", "uuid"),
    ),
    Source(
        title="Providers in Placement",
        model="placement.resourceprovider",
        whole=("uuid",),
        words=("name", "uuid"),
        is_uuid=True,
    ),
    Source(
        title="Consumers in Placement",
        model="placement.consumer",
        whole=("uuid",),
        words=("uuid",),
        is_uuid=True,
    ),
    Source(
        title="Refused requests",
        model="commitments.refusedchange",
        whole=("request_id",),
        words=("created_at", "zone", "actor", "request_id"),
        is_object=False,
    ),
    Source(
        title="Refused requests that asked for it",
        model="commitments.refusedchange",
        within="asked",
        whole=("commitment", "project"),
        words=("created_at", "zone", "actor", "request_id"),
        is_object=False,
    ),
    Source(
        title="Commitments of the project",
        model="commitments.commitment",
        whole=("project_id",),
        words=("commitment_uuid", "state"),
        is_object=False,
    ),
    Source(
        title="VMs of the project",
        model="hosts.instance",
        whole=("project_id",),
        words=("name", "openstack_id", "zone"),
        is_object=False,
        page="headroom_vm",
        page_key="openstack_id",
    ),
    Source(
        title="What covered it over time",
        model="commitments.assignmentperiod",
        whole=("vm_uuid", "commitment_uuid"),
        words=("vm_uuid", "commitment_uuid", "valid_from"),
        is_object=False,
        is_newest_first=True,
    ),
    Source(
        title="Events of the commitment",
        model="commitments.commitmentevent",
        whole=("commitment_uuid",),
        words=("created_at", "action", "actor"),
        is_object=False,
    ),
    Source(
        title="Scheduling decisions",
        model="capacity.schedulingdecision",
        whole=("vm_uuid", "project_id", "target_host_name"),
        words=("created_at", "flavor_name", "zone", "target_host_name"),
        is_object=False,
        is_newest_first=True,
    ),
    Source(
        title="Failover decisions",
        model="failover.failoverdecision",
        whole=("vm_uuid",),
        words=("vm_uuid", "zone", "reason"),
        is_object=False,
    ),
    Source(
        title="Events of the failover reservation",
        model="failover.failoverevent",
        whole=("reservation_name",),
        words=("happened_at", "reason", "host_name"),
        is_object=False,
        is_newest_first=True,
    ),
    Source(
        title="Quota",
        model="capacity.projectquota",
        whole=("project_id",),
        words=("project_name", "zone"),
        is_object=False,
    ),
)
"""Everything that is searched; objects in the order in which one whole id leads to them."""


def search_view(request: HttpRequest) -> HttpResponse:
    """Show what a word finds; a whole id leads to its object unless all about it is asked for."""
    word = request.GET.get("q", "").strip()[:LONGEST]
    is_everything = "everything" in request.GET
    problem = ""
    groups: tuple[PageData, ...] = ()
    if word:
        try:
            with transaction.atomic():
                execute(
                    "SELECT set_config('statement_timeout', %s, true)", [str(LIMIT_MILLISECONDS)]
                )
                found = (*_whole(request, word), *_audited(request, word))
                target = None if is_everything else _target(found)
                if target is not None:
                    return target
                begun = () if is_everything else _beginnings(request, word, found)
                groups = (*found, *begun)
                _put_names(groups)
        except OperationalError:
            problem = "The search took too long and was ended: ask for a whole id or name."
    context = {
        **admin.site.each_context(request),
        "title": f"Everything about {word}" if is_everything and word else "Search",
        "word": word,
        "groups": groups,
        "problem": problem,
        "is_everything": is_everything,
        "shortest": SHORTEST_BEGINNING,
    }
    return TemplateResponse(request, "admin/search_page.html", context)


def _whole(request: HttpRequest, word: str) -> tuple[PageData, ...]:
    words = _spellings(word)
    return _groups(request, word, [(source, source.conditions(words)) for source in SOURCES])


def _beginnings(request: HttpRequest, word: str, known: Sequence[PageData]) -> tuple[PageData, ...]:
    if len(word) < SHORTEST_BEGINNING:
        return ()
    asked = [(source, source.beginnings(word)) for source in SOURCES]
    shown = {line.url for group in known for line in group.lines}
    return _groups(request, word, asked, shown=shown)


def _groups(
    request: HttpRequest,
    word: str,
    asked: Iterable[tuple[Source, Sequence[Q]]],
    *,
    shown: Set[str] = frozenset(),
) -> tuple[PageData, ...]:
    """Return what the conditions find, by source, in one statement.

    Args:
        shown: Addresses of rows that are on the page already.
    """
    chosen = [(source, some) for source, some in asked if some and may_view(request, source.model)]
    branches = [
        branch(number, source, condition)
        for number, (source, conditions) in enumerate(chosen)
        for condition in conditions
    ]
    if not branches:
        return ()
    rows = branches[0].union(*branches[1:], all=True) if len(branches) > 1 else branches[0]
    found: dict[int, dict[str, str]] = {}
    for number, key, words in rows:
        source = chosen[number][0]
        address = source.address(key)
        if address not in shown:
            found.setdefault(number, {})[address] = words.strip() or key
    return tuple(
        _group(source, word, found[number])
        for number, (source, _) in enumerate(chosen)
        if number in found
    )


def _put_names(groups: Iterable[PageData]) -> None:
    """Say names in place of the ids of objects that have one; those stay on hover."""
    lines = [line for group in groups if not group.has_name for line in group.lines]
    names = Names(word for line in lines for word in line.text.split(" "))
    for line in lines:
        line.hint, line.text = line.text, names.plain(line.text)


def _group(source: Source, word: str, found: Mapping[str, str]) -> PageData:
    lines = sorted(found.items(), key=lambda line: line[1], reverse=source.is_log)
    lines.sort(key=lambda line: not line[1].startswith(word))
    return PageData(
        title=source.title,
        is_object=source.is_object,
        has_name=source.has_name,
        lines=[PageData(url=url, text=text, hint="") for url, text in lines[:SHOWN]],
        has_more=len(lines) > SHOWN,
        list_url=list_url(source.model, q=word),
    )


def branch(number: int, source: Source, condition: Q) -> Rows:
    """Return the rows of a look-up: number of the source, key, words; one more than is shown."""
    parts: list[Combinable] = []
    for name in source.words:
        is_time = isinstance(source.field(name), models.DateTimeField)
        told = Func(F(name), Value(TIME), function="to_char") if is_time else F(name)
        parts += [Cast(told, TextField()), Value("  ")]
    return (
        source.row_model._default_manager.filter(condition)  # noqa: SLF001 - public model API
        .order_by(*(["-pk"] if source.is_newest_first else []))
        .values_list(
            Value(number),
            Cast(source.page_key, CharField()),
            Concat(*parts, output_field=TextField()),
        )[: SHOWN + 1]
    )


def _target(groups: Sequence[PageData]) -> HttpResponseRedirect | None:
    """Return the way to what a whole id names: the first kind of object, or all that is found."""
    if not groups:
        return None
    first = groups[0]
    is_one = len(first.lines) == 1 and (first.is_object or len(groups) == 1)
    return redirect(first.lines[0].url) if is_one else None


def _audited(request: HttpRequest, word: str) -> tuple[PageData, ...]:
    if not may_view(request, "journal.auditentry"):
        return ()
    rows = audit_entries(word, SHOWN + 1)
    if not rows:
        return ()
    lines = [
        PageData(
            text=f"{moment:%Y-%m-%d %H:%M} UTC  {action}  {kind} {public_id}  {actor}",
            url=reverse("admin:journal_auditentry_change", args=[key]),
            hint="",
        )
        for key, action, kind, public_id, actor, moment in rows[:SHOWN]
    ]
    return (
        PageData(
            title="Audit entries",
            has_name=False,
            is_object=False,
            lines=lines,
            has_more=len(rows) > SHOWN,
            list_url=list_url("journal.auditentry", q=word),
        ),
    )


def audit_entries(word: str, limit: int) -> list[Row]:
    """Return what the audit trail says of an id, newest first.

    Returns:
        Rows of key, action, type and id of the object, actor, time.
    """
    return fetch_rows(AUDITED, {"words": list(_spellings(word)), "word": word, "limit": limit})


def _spellings(word: str) -> tuple[str, ...]:
    """Return a word, and for a uuid how else it is written: with hyphens, and without."""
    parsed = _uuid(word)
    return (word,) if parsed is None else tuple(dict.fromkeys((word, str(parsed), parsed.hex)))


def _uuid(word: str) -> UUID | None:
    try:
        return UUID(word)
    except ValueError:
        return None
