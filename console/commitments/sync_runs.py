"""Admin of what runs found: syncs, refused changes, covered VMs over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db.models import JSONField, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from commitments.models import AssignmentPeriod, RefusedChange, SyncOutcome, SyncRun, UsageCheck
from commitments.services.sync_runs import accept_shrink, why_not_acceptable
from console.base import (
    AnswerFilter,
    BaseAdmin,
    SystemOwnedAdmin,
    badge,
    column,
    counts_block,
    link,
    plain_counts,
    request_actor,
    shown,
    since_filter,
    text_block,
    time_tag,
    verdict,
)
from console.hosts.columns import FoundByName
from console.links import find_link, list_url
from console.names import names_of
from console.pages import set_crumbs
from core.text import NOTHING, duration_text, plural
from hosts.models import Instance, Project
from journal.middleware import request_id_of

TONES = {
    SyncOutcome.INCOMPLETE.value: "warn",
    SyncOutcome.NOT_READY.value: "warn",
    SyncOutcome.GUARDED.value: "bad",
    SyncOutcome.FAILED.value: "bad",
    SyncOutcome.ABANDONED.value: "bad",
}
PAGE = (
    "source",
    "result",
    "explanation",
    "started_at",
    "finished_at",
    "duration",
    "details",
    "acceptance",
)


class AcceptShrinkForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """Asks before the guard is told that it was wrong."""

    is_accepted = forms.BooleanField(
        required=True,
        label="What is missing is really gone",
        help_text="Later runs are compared with this one. What stays missing then ends, and gives "
        "its capacity back, after the usual number of runs and hours.",
    )

    class Meta:
        model = SyncRun
        fields: list[str] = []

    def clean(self) -> dict[str, Any]:
        """Refuse what the service would refuse."""
        problem = why_not_acceptable(self.instance)
        if problem:
            raise forms.ValidationError(problem)
        return super().clean() or {}


@admin.register(SyncRun)
class SyncRunAdmin(SystemOwnedAdmin[SyncRun]):
    """Runs of importers and of the syncer: how they ended, and what they counted."""

    owner_note = (
        "Every run writes its own row. A run that the guard stopped asks on its page whether what "
        "is missing is really gone."
    )
    empty_note = (
        "Nothing was read yet: ./run manage connect CLOUD reads a cloud (docs/first-day.md), "
        "./run manage sync_commitments what Limes lists (docs/limes.md)."
    )
    form = AcceptShrinkForm
    list_display = (
        "__str__",
        "source",
        "result",
        column("started_at", "started"),
        "duration",
        "counted",
    )
    list_filter = (since_filter("started_at", "started in"), "source", "outcome", "error_code")
    search_fields = ("source", "message", "error_code")
    page_columns = PAGE

    def has_change_permission(self, request: HttpRequest, obj: SyncRun | None = None) -> bool:
        """Let operators accept the shrink that stopped a run; nothing else can be changed."""
        may_change = BaseAdmin.has_change_permission(self, request, obj)
        return may_change and obj is not None and not why_not_acceptable(obj)

    def get_fields(self, request: HttpRequest, obj: SyncRun | None = None) -> Any:
        """Show the run, and the question when there is one."""
        if self.has_change_permission(request, obj):
            return (*PAGE, "is_accepted")
        return super().get_fields(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: SyncRun | None = None) -> Any:
        """Return what is shown and not edited."""
        return PAGE if self.has_change_permission(request, obj) else super().get_readonly_fields(
            request, obj
        )  # fmt: skip

    def save_model(self, request: HttpRequest, obj: SyncRun, form: Any, change: Any) -> None:
        """Accept through the service, which audits."""
        accept_shrink(obj.pk, actor=request_actor(request), request_id=request_id_of(request))

    @admin.display(description="outcome", ordering="outcome")
    def result(self, row: SyncRun) -> SafeString:
        """Show how the run ended."""
        if row.finished_at is None:
            return badge("warn", "running, or it died")
        text = row.error_code or row.outcome or "finished"
        return badge("ok" if row.shrink_accepted_by else outcome_tone(row), text, row.message)

    explanation = shown("why", lambda row: text_block(row.message))

    @admin.display(description="took")
    def duration(self, row: SyncRun) -> str:
        """Show how long the run took."""
        if row.finished_at is None:
            return NOTHING
        return duration_text(row.finished_at - row.started_at)

    counted = shown(
        "counts",
        lambda row: (
            ", ".join(f"{name} {count}" for name, count in plain_counts(row.counts) if count)
            or NOTHING
        ),
    )

    details = shown("counts", lambda row: counts_block(row.counts))

    @admin.display(description="shrink accepted")
    def acceptance(self, row: SyncRun) -> SafeString | str:
        """Show who accepted that the set shrank, and when."""
        if not row.shrink_accepted_by:
            return NOTHING
        moment = time_tag(row.shrink_accepted_at)
        return format_html("by {} {}", row.shrink_accepted_by, moment)


def outcome_tone(row: SyncRun) -> str:
    """Return how the end of a run is to be shown: ``ok``, ``warn`` or ``bad``."""
    return TONES.get(row.outcome, "bad" if row.error_code else "ok")


SHOWN = 3
PROJECTS_SEARCHED = 20
PROJECT_NAMES = """
(SELECT jsonb_object_agg(project.openstack_id, project.name)
   FROM jsonb_array_elements(commitments_refusedchange.asked) AS item
   JOIN hosts_project AS project ON project.openstack_id = item ->> 'project')
"""


@admin.register(RefusedChange)
class RefusedChangeAdmin(SystemOwnedAdmin[RefusedChange]):
    """Change requests that were answered no: who asked for what, and why not."""

    owner_note = (
        "Every change request that was refused; dry runs are not kept. They are forgotten after "
        "HEADROOM_LIQUID__REFUSAL_RETENTION_DAYS."
    )
    empty_note = (
        "No change was refused: requests come from Limes, once it knows Headroom (docs/limes.md)."
    )
    questions = (("The last 24 hours", "since=day"), ("Ran out of time", "is_timeout__exact=1"))
    list_display = (
        column("created_at", "refused"),
        "zone",
        "verdict",
        "wanted",
        "would_fit",
        "actor",
        "request_id",
    )
    list_filter = (since_filter("created_at", "refused in"), "zone", "is_timeout", "actor")
    search_fields = ("request_id", "actor", "reason", "asked")
    search_help_text = "Commitment uuid, project name or id, request id, who asked, words of why"
    names_in = ("asked", "reason")
    page_columns = (
        "zone",
        "verdict",
        column("created_at", "refused"),
        "actor",
        "request_id",
        "answer",
        column("retry_at", "told to try again"),
        "commitments_asked",
        "commitments_refused",
    )

    @admin.display(description="verdict", ordering="is_timeout")
    def verdict(self, row: RefusedChange) -> SafeString:
        """Show whether it did not fit or took too long."""
        if row.is_timeout:
            return badge("warn", "ran out of time", row.reason)
        return badge("bad", "refused", row.reason)

    def get_queryset(self, request: HttpRequest) -> QuerySet[RefusedChange]:
        """Read refusals with the names of the projects that they are about."""
        return super().get_queryset(request).annotate(
            project_names=RawSQL(  # noqa: S611 - constant text
                PROJECT_NAMES, [], output_field=JSONField()
            )
        )  # fmt: skip

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[RefusedChange], search_term: str
    ) -> tuple[QuerySet[RefusedChange], bool]:
        """Find refusals by the name of a project, too."""
        found, is_doubled = super().get_search_results(request, queryset, search_term)
        named = Project.objects.filter(name=search_term.strip()).values_list("openstack_id")
        for (project_id,) in named[:PROJECTS_SEARCHED] if search_term.strip() else ():
            found |= queryset.filter(asked__contains=[{"project": project_id}])
        return found, is_doubled

    def page_parts(self, request: HttpRequest, row: RefusedChange) -> dict[str, Any]:
        """Show what was refused, why, and what would have fitted."""
        name = _refused_name(row)
        set_crumbs(request, (("Refusals", list_url(self.opts.label_lower)), (name, "")))
        advice = next((item["advice"] for item in row.refused if item["advice"]), "")
        why = next((item["message"] for item in row.refused if item["message"]), row.reason)
        asked_by = format_html("Asked by {} {}.", row.actor, time_tag(row.created_at))
        return {
            "subtitle": name,
            "verdict": verdict(
                "warn" if row.is_timeout else "bad",
                f"{'Not decided in time' if row.is_timeout else 'Refused'}: {name}",
                format_html_join(
                    mark_safe("<br>"),
                    "{}",
                    ((line,) for line in (why, advice, asked_by) if line),
                ),
            ),
        }

    @admin.display(description="asked for")
    def wanted(self, row: RefusedChange) -> SafeString | str:
        """Show the first changes in words."""
        told = [_words(row, item) for item in row.asked[:SHOWN]]
        more = len(row.asked) - SHOWN
        return _lines([*told, *([f"{more} more"] if more > 0 else [])])

    @admin.display(description="what would fit")
    def would_fit(self, row: RefusedChange) -> SafeString | str:
        """Show the first pieces of advice, which were computed with the answer."""
        advice = dict.fromkeys(item["advice"] for item in row.refused if item["advice"])
        return _lines(list(advice)[:SHOWN])

    answer = shown("answer", lambda row: text_block(row.reason))
    commitments_asked = shown(
        "asked for", lambda row: _lines([_words(row, item) for item in row.asked])
    )
    commitments_refused = shown(
        "why not",
        lambda row: _lines(
            [
                format_html(
                    "{} {} {}",
                    _commitment(row, item["commitment"]),
                    item["message"],
                    item["advice"],
                )
                for item in row.refused
            ]
        ),
    )


def _refused_name(row: RefusedChange) -> str:
    """Return what was asked first and where, in words: its id is that of the request."""
    if not row.asked:
        return f"a change in {row.zone}"
    item = row.asked[0]
    names: dict[str, str] = getattr(row, "project_names", None) or {}
    project = names.get(item.get("project", "")) or item.get("project", "")
    more = f" and {len(row.asked) - 1:,} more" if len(row.asked) > 1 else ""
    return f"{_amount(item)} of {item['resource']} for {project} in {row.zone}{more}"


def _amount(item: dict[str, Any]) -> str:
    return plural(item["amount_units"], "unit")


def _words(row: RefusedChange, item: dict[str, Any]) -> SafeString:
    names: dict[str, str] = getattr(row, "project_names", None) or {}
    project_id = item.get("project", "")
    states = f"{item['old_status'] or 'new'} to {item['new_status'] or 'gone'}"
    return format_html(
        "{} of {} for {} ({}, {})",
        _amount(item),
        item["resource"],
        find_link("project", project_id, names.get(project_id, "")),
        _commitment(row, item["commitment"]),
        states,
    )


def _commitment(row: RefusedChange, uuid: str) -> SafeString | str:
    """Link to a commitment that was there before: a new one that is refused is stored nowhere."""
    was_there = any(item["commitment"] == uuid and item["old_status"] for item in row.asked)
    return names_of(row).link("commitment", uuid) if was_there else uuid


def _lines(lines: Sequence[str]) -> SafeString | str:
    if not lines:
        return NOTHING
    return format_html(
        "<ul>{}</ul>", format_html_join("", "<li>{}</li>", ((line,) for line in lines))
    )


class OpenFilter(AnswerFilter):
    """Periods by whether they still last."""

    title = "lasting"
    parameter_name = "lasting"
    answers = {
        "yes": ("still covered", lambda: Q(valid_to__isnull=True)),
        "no": ("over", lambda: Q(valid_to__isnull=False)),
    }


@admin.register(AssignmentPeriod)
class AssignmentPeriodAdmin(FoundByName[AssignmentPeriod], SystemOwnedAdmin[AssignmentPeriod]):
    """From when to when commitments covered VMs."""

    owner_note = (
        "Written by the database with every assignment, and never changed after its end. Ids stay "
        "when VMs and commitments go. Periods are forgotten "
        "HEADROOM_USAGE__HISTORY_RETENTION_DAYS after their end."
    )
    empty_note = (
        "No VM was covered by a commitment yet: workers assign them once there are VMs and "
        "accepted commitments (docs/commitments.md)."
    )
    list_display = (
        "vm",
        "commitment",
        column("resource_type", "resource"),
        "project",
        column("valid_from", "from"),
        "until",
        "lasted",
    )
    list_filter = (OpenFilter, "resource_type")
    search_fields = ("=vm_uuid", "=commitment_uuid", "=project_id")
    search_help_text = "Whole id of a VM, commitment or project; whole name of a VM or project"
    page_columns = (
        "vm",
        "commitment",
        "resource_type",
        "project",
        "valid_from",
        "valid_to",
        "lasted",
    )

    names_in = ("vm_uuid", "commitment_uuid", "project_id")
    named_columns = {"vm_uuid": Instance, "project_id": Project}
    vm = link("vm", "vm_uuid", "VM")
    commitment = link("commitment", "commitment_uuid", "covered by")
    project = link("project", "project_id", "project")
    until = shown(
        "until",
        lambda row: badge("ok", "still") if row.valid_to is None else time_tag(row.valid_to),
        "valid_to",
    )
    lasted = shown(
        "lasted",
        lambda row: (
            NOTHING if row.valid_to is None else duration_text(row.valid_to - row.valid_from)
        ),
    )


@admin.register(UsageCheck)
class UsageCheckAdmin(SystemOwnedAdmin[UsageCheck]):
    """From which state of the database the next usage run follows changes."""

    owner_note = (
        "One row, written after every whole usage run. Runs that follow changes come every "
        "HEADROOM_USAGE__CHANGES_INTERVAL_SECONDS, runs over all projects every "
        "HEADROOM_USAGE__COOLDOWN_SECONDS; a run that does not come is seen here first."
    )
    empty_note = (
        "No usage run has ended yet: workers make them (./run serve worker, ./run serve beat)."
    )
    list_display = (
        column("checked_at", "last run"),
        column("fully_checked_at", "last run over all projects"),
        "intervals",
    )
    page_columns = ("checked_at", "fully_checked_at", "intervals", "snapshot", "group_fingerprint")

    @admin.display(description="runs come")
    def intervals(self, row: UsageCheck) -> SafeString:
        """Show how often runs should come."""
        chosen = settings.HEADROOM.usage
        return format_html(
            "every {} s, over all projects every {} s",
            chosen.changes_interval_seconds,
            chosen.cooldown_seconds,
        )
