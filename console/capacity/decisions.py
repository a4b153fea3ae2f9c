"""Admin of scheduling decisions: who was removed by what, who won and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from capacity.models import Pipeline, SchedulingDecision
from capacity.nova.stored_decisions import decisions_about_host
from console.base import ChoiceFilter, SystemOwnedAdmin, link, shown, since_filter, time_tag
from console.capacity.decision_page import decision_page, outcome_badge, refusal_lines, step_title
from console.charts import funnel_bar
from console.hosts.columns import FoundByName, ZoneFilter, with_project_name, with_vm_name
from console.links import find_link, list_url
from console.pages import set_crumbs
from core.text import NOTHING, gib_number
from hosts.models import Instance, Project
from scheduling.intents import Intent

HOST_PARAMETER = "about_host"
MENTIONS_LISTED = 200


class PipelineFilter(ChoiceFilter):
    """Decisions of one pipeline."""

    title = "pipeline"
    parameter_name = "pipeline"
    field = "pipeline_name"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return the pipelines."""
        return [(name, name) for name in Pipeline.objects.values_list("name", flat=True)]


class IntentFilter(ChoiceFilter):
    """Decisions for one purpose."""

    title = "intent"
    parameter_name = "intent"
    field = "intent"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return the intents."""
        return [(intent.value, intent.value.replace("_", " ")) for intent in Intent]


class HostFilter(admin.SimpleListFilter):
    """Recent decisions that considered one host; reached from the page of the host."""

    title = "host that was considered"
    parameter_name = HOST_PARAMETER

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> Sequence[tuple[str, str]]:
        """Return the host that is asked about, so that the choice can be seen and undone."""
        host_name = request.GET.get(HOST_PARAMETER, "")
        return [(host_name, host_name)] if host_name else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep decisions in which the host was a candidate."""
        host_name = self.value()
        if not host_name:
            return queryset
        mentions = decisions_about_host(host_name, limit=MENTIONS_LISTED)
        return queryset.filter(pk__in=[mention.row.pk for mention in mentions])


@admin.register(SchedulingDecision)
class SchedulingDecisionAdmin(
    FoundByName[SchedulingDecision], SystemOwnedAdmin[SchedulingDecision]
):
    """Runs of pipelines, newest first."""

    owner_note = (
        "Recorded after each scheduling run, and forgotten after the retention of "
        "HEADROOM_DECISIONS__RETENTION_DAYS."
    )
    empty_note = (
        "Nova has not asked where a VM may go yet: it does once its scheduler calls Headroom "
        "(docs/api/scheduler.md)."
    )
    list_before_template = "admin/decision_list_before.html"
    # Outside the admin's own form: the page has one to ask about a host.
    change_form_outer_before_template = "admin/decision_page.html"
    list_display = (
        "when",
        "outcome",
        "host",
        "vm",
        "project",
        "flavor",
        "memory_gib",
        "zone",
        "intent",
        "funnel",
        "decisive",
    )
    list_filter = (
        since_filter("created_at", "decided in"),
        ZoneFilter,
        "is_successful",
        PipelineFilter,
        IntentFilter,
        HostFilter,
    )
    search_fields = ("=vm_uuid", "=project_id", "=target_host_name", "=request_id")
    search_help_text = (
        "Whole id or name of the VM or project, id of the request, or name of the chosen host"
    )
    named_columns = {"vm_uuid": Instance, "project_id": Project}
    ordering = ("-id",)
    page_columns = ("request_id", "outcome_class", "hosts_in", "hosts_out", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[SchedulingDecision]:
        """Read decisions without their masks, which only pages need."""
        rows = super().get_queryset(request).defer("masks", "message")
        return with_vm_name(with_project_name(rows))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show above the list why VMs were refused lately."""
        context = {**(extra_context or {}), "refusals": refusal_lines()}
        return super().changelist_view(request, context)

    def page_parts(self, request: HttpRequest, row: SchedulingDecision) -> dict[str, Any]:
        """Show the funnel, the ranking and the answer to "why not this host?"."""
        asked_host = request.GET.get("host", "").strip()
        whom = getattr(row, "vm_name", None) or row.vm_uuid or row.flavor_name
        name = f"{row.intent.replace('_', ' ') or 'decision'} of {whom}"
        set_crumbs(request, (("Decisions", list_url(self.opts.label_lower)), (name, "")))
        return {
            "subtitle": name,
            "page": decision_page(row, asked_host=asked_host),
            "host_parameter": "host",
        }

    when = shown("when", lambda row: time_tag(row.created_at), "id")
    outcome = shown("outcome", outcome_badge, "is_successful")
    host = link("host", "target_host_name", "host")

    @admin.display(description="VM", ordering="vm_uuid")
    def vm(self, row: SchedulingDecision) -> SafeString | str:
        """Link to the VM."""
        short = f"{row.vm_uuid[:8]}…" if row.vm_uuid else ""
        return find_link("vm", row.vm_uuid, getattr(row, "vm_name", None) or short)

    project = link("project", "project_id", "project", words="project_name")
    flavor = link("flavor", "flavor_name", "flavor")
    memory_gib = shown("memory, GiB", lambda row: gib_number(row.memory_bytes), "memory_bytes")

    @admin.display(description="hosts", ordering="hosts_out")
    def funnel(self, row: SchedulingDecision) -> SafeString:
        """Draw how many hosts were left."""
        words = f"{row.hosts_in:,} → {row.hosts_out:,}"
        bar = funnel_bar(
            before=row.hosts_in, remaining=row.hosts_out, started=row.hosts_in, title=words
        )
        return format_html('<span class="hr-bar-cell">{} {}</span>', bar, words)

    @admin.display(description="most removed by")
    def decisive(self, row: SchedulingDecision) -> str:
        """Name the filter that removed most hosts, or the last ones."""
        entries = [entry for entry in row.removals if entry["removed"]]
        if not entries:
            return NOTHING
        last = next((entry for entry in entries if not entry["remaining"]), None)
        chosen = last or max(entries, key=lambda entry: entry["removed"])
        return f"{step_title(chosen['step'])} (−{chosen['removed']:,})"  # noqa: RUF001 - a minus
