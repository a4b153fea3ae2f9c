"""Admin of commitments and their events."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Case, F, Q, QuerySet, When
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Greatest
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from commitments.domain.statuses import LIVE_STATUSES, UNFINISHED_STATUSES, ResourceType
from commitments.models import Commitment, CommitmentEvent, Condition, ServiceInfoVersion
from console.attention import OVERDUE
from console.base import (
    AnswerFilter,
    SystemOwnedAdmin,
    badge,
    column,
    json_block,
    link,
    shown,
    time_tag,
    with_id,
    wrapped,
)
from console.commitments.commitment_page import commitment_page
from console.commitments.presentation import (
    amount_text,
    change_lines,
    commitment_name,
    condition_title,
    condition_tone,
)
from console.dashboard import unfulfilled_filter
from console.hosts.columns import FoundByName, ZoneFilter, with_project_name
from console.links import find_link, list_url, register_findable, text_link
from console.names import names_of
from console.pages import set_crumbs
from core.text import NOTHING, count_text, gib_number, percent_text
from hosts.models import Project
from journal.clock import database_now

register_findable("commitment", Commitment, "commitment_uuid")

USED_AMOUNT = Case(
    When(resource_type=ResourceType.MEMORY, then=F("used_memory_bytes")), default=F("used_vcpus")
)
USED_SHARE = CombinedExpression(F("used_amount") * 1000, "/", Greatest(F("accepted_amount"), 1))
#: What was asked and accepted, each in the column of its unit.
AMOUNTS = {
    f"{word}_{suffix}": Case(When(resource_type=kind, then=F(f"{word}_amount")))
    for word in ("requested", "accepted")
    for suffix, kind in (
        ("memory_bytes", ResourceType.MEMORY),
        ("vcpus", ResourceType.CORES),
    )
}
USE_KNOWN = Q(
    ready_status=True, accepted_amount__gt=0, last_usage_reconcile_at__isnull=False,
    state__in=LIVE_STATUSES,
)  # fmt: skip


class FulfilledFilter(AnswerFilter):
    """Live commitments by whether they are held as promised."""

    title = "held as promised"
    parameter_name = "fulfilled"
    answers = {
        "no": ("live, not held", lambda: unfulfilled_filter(database_now())),
        "waiting": (
            "live, waiting",
            lambda: unfulfilled_filter(database_now()) & ~Q(ready_reason=Condition.REJECTED),
        ),
        "refused": (
            "live, refused",
            lambda: unfulfilled_filter(database_now()) & Q(ready_reason=Condition.REJECTED),
        ),
        "yes": ("held", lambda: Q(ready_status=True)),
    }


def _ends_within(days: int) -> Q:
    now = database_now()
    return _lasting(now) & Q(end_time__lte=now + timedelta(days=days))


def _ends_next_month() -> Q:
    now = database_now()
    first = _month_after(now)
    return _lasting(now) & Q(end_time__gte=first, end_time__lt=_month_after(first))


def _month_after(moment: datetime) -> datetime:
    """Return the start of the month after that of a moment, UTC."""
    first = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=32)).replace(day=1)


def _lasting(now: datetime) -> Q:
    return Q(state__in=UNFINISHED_STATUSES, end_time__gt=now)


class StuckFilter(AnswerFilter):
    """Commitments that a worker should have taken long ago."""

    title = "due for long"
    parameter_name = "stuck"
    answers = {
        "yes": ("due and not taken", lambda: Q(next_reconcile_at__lt=database_now() - OVERDUE))
    }


class EndsFilter(AnswerFilter):
    """Commitments that are not over by when they end."""

    title = "ends"
    parameter_name = "ends"
    answers = {
        "week": ("within 7 days", lambda: _ends_within(7)),
        "month": ("within 30 days", lambda: _ends_within(30)),
        "next_month": ("in the next calendar month (UTC)", _ends_next_month),
        "quarter": ("within 90 days", lambda: _ends_within(90)),
        "never": ("never", lambda: Q(state__in=UNFINISHED_STATUSES, end_time__isnull=True)),
    }


class UseFilter(AnswerFilter):
    """Held commitments by what their VMs use of them."""

    title = "use"
    parameter_name = "use"
    answers = {
        "idle": ("idle: held, nothing used", lambda: USE_KNOWN & Q(used_amount=0)),
        "partly": (
            "used in part",
            lambda: USE_KNOWN & Q(used_amount__gt=0, used_amount__lt=F("accepted_amount")),
        ),
        "full": ("used up", lambda: USE_KNOWN & Q(used_amount__gte=F("accepted_amount"))),
    }


@admin.register(Commitment)
class CommitmentAdmin(FoundByName[Commitment], SystemOwnedAdmin[Commitment]):
    """Promises, and whether they are kept."""

    owner_note = (
        "Commitments come from Limes, through its API calls and the syncer. Change them in Limes; "
        "Headroom decides, holds the capacity and says here why."
    )
    empty_note = (
        "There is no commitment: Limes asks for them once it knows Headroom (docs/limes.md); "
        "./run manage sync_commitments reads those that it has already."
    )
    change_form_before_template = "admin/commitment_page.html"
    questions = (
        ("Waiting: what blocks them", "fulfilled=waiting"),
        ("Ending next month", "ends=next_month"),
        ("Idle", "use=idle"),
    )
    list_display = (
        "named",
        "project",
        "zone",
        "memory_gib",
        "vcpus",
        "state",
        "ready",
        "used_share",
        "ends",
        "summary",
    )
    list_filter = (
        FulfilledFilter,
        EndsFilter,
        UseFilter,
        StuckFilter,
        "state",
        "ready_reason",
        ZoneFilter,
        "resource_type",
        "flavor_group_name",
        "origin",
    )
    search_fields = ("commitment_uuid", "=project_id", "=domain_id", "=creator_request_id")
    search_help_text = "Part of the uuid; whole name of a project, or its id; domain or request id"
    named_columns = {"project_id": Project}
    not_exported = frozenset({"requested_amount", "accepted_amount", "used_amount"})
    page_columns = (
        "commitment_uuid",
        "limes_id",
        "first_listed_at",
        "origin",
        "state",
        "project_link",
        "requested",
        "accepted",
        "confirm_by",
        "confirmed_at",
        "start_time",
        "end_time",
        "generation",
        "ready_observed_generation",
        "creator_request_id",
        "refusals",
        "last_reconcile_at",
        "next_reconcile_at",
        "last_usage_reconcile_at",
        "status_summary",
        "accepted_spec",
        "limes_record",
        "created_at",
        "updated_at",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Commitment]:
        """Read commitments with the names of their projects and amounts by unit."""
        named = with_project_name(super().get_queryset(request))
        return named.annotate(used_amount=USED_AMOUNT, **AMOUNTS)

    def page_parts(self, request: HttpRequest, row: Commitment) -> dict[str, Any]:
        """Show the page with condition, slots, hosts and events."""
        name = commitment_name(row)
        set_crumbs(request, (("Commitments", list_url(self.opts.label_lower)), (name, "")))
        return {"page": commitment_page(row, database_now()), "subtitle": name}

    named = with_id("flavor_group_name", "commitment_uuid", "commitment of")
    project = shown(
        "project",
        lambda row: find_link("project", row.project_id, getattr(row, "project_name", None) or ""),
        "project_name",
    )
    project_link = link("project", "project_id", "project", ordering="", words="project_name")
    memory_gib = shown(
        "memory, GiB",
        lambda row: gib_number(row.requested_memory_bytes),
        "requested_memory_bytes",
    )
    vcpus = shown("vCPUs", lambda row: count_text(row.requested_vcpus), "requested_vcpus")

    @admin.display(description="asked")
    def requested(self, row: Commitment) -> str:
        """Show what was asked, with the raw number."""
        unit = "bytes" if row.resource_type == "memory" else "vCPUs"
        amount = amount_text(row.resource_type, row.requested_amount)
        return f"{amount} ({count_text(row.requested_amount, unit)})"

    accepted = shown("accepted", lambda row: amount_text(row.resource_type, row.accepted_amount))
    ready = shown(
        "ready",
        lambda row: badge(condition_tone(row), condition_title(row), row.ready_message),
        "ready_reason",
    )

    @admin.display(description="used", ordering=USED_SHARE)
    def used_share(self, row: Commitment) -> SafeString | str:
        """Show which part of what was accepted assigned VMs use; the amount on hover."""
        if row.last_usage_reconcile_at is None or not row.accepted_amount:
            return NOTHING
        used: int = getattr(row, "used_amount", 0)
        if not used:
            return badge("warn", "idle", "held, and no VM uses it")
        words = (
            f"{amount_text(row.resource_type, used)} of "
            f"{amount_text(row.resource_type, row.accepted_amount)}"
        )
        share = percent_text(used, row.accepted_amount)
        return format_html('<span title="{}">{}</span>', words, share)

    ends = column("end_time", "ends")
    refusals = shown(
        "refused requests",
        lambda row: text_link(
            list_url("commitments.refusedchange", q=row.commitment_uuid), "that asked for it"
        ),
    )
    summary = shown("summary", lambda row: wrapped(row.status_summary))


@admin.register(CommitmentEvent)
class CommitmentEventAdmin(SystemOwnedAdmin[CommitmentEvent]):
    """What happened to commitments, also to those that are gone."""

    owner_note = (
        "Append-only: the database refuses to change or delete an event. Services write it in the "
        "transaction of the change."
    )
    empty_note = "Nothing happened to a commitment yet: they come from Limes (docs/limes.md)."
    list_display = ("when", "commitment", "action", "actor", "changes", "why", "request_id")
    names_in = ("commitment_uuid", "reason", "before", "after")
    list_display_links = ("when",)
    list_filter = ("action",)
    search_fields = ("^commitment_uuid", "=request_id", "actor")
    search_help_text = "Commitment uuid (its beginning is enough), whole request id, actor"
    page_columns = (
        "created_at",
        "commitment",
        "action",
        "actor",
        "request_id",
        "why",
        "changes",
        "before",
        "after",
        "explained",
    )

    when = shown("when", lambda row: time_tag(row.created_at), "id")
    commitment = link("commitment", "commitment_uuid", "commitment")

    @admin.display(description="changes")
    def changes(self, row: CommitmentEvent) -> SafeString | str:
        """Show what changed, before and after."""
        names = names_of(row)
        listed = ((names.linked(line),) for line in change_lines(row.before, row.after))
        return format_html_join("", '<span class="hr-wrap">{}</span><br>', listed) or NOTHING

    why = shown("why", lambda row: wrapped(names_of(row).linked(row.reason)))
    explained = shown("explanation", lambda row: json_block(row.explanation))


@admin.register(ServiceInfoVersion)
class ServiceInfoVersionAdmin(SystemOwnedAdmin[ServiceInfoVersion]):
    """The version of what ``info`` tells Limes."""

    owner_note = "Counted up by the system when the content of info changes."
    empty_note = (
        "There is no version yet: the first is written when Limes asks for info (docs/limes.md)."
    )
    list_display = ("version", column("changed_at"), "groups")

    groups = shown(
        "content", lambda row: text_link(list_url("capacity.flavorgroup"), "flavor groups")
    )
