"""Admin of flavors, flavor groups, what operators decide about them, group capacity and quota."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from capacity.figures.history_reads import recent_history
from capacity.groups import editing as services
from capacity.groups.reading import load_group_settings
from capacity.models import (
    CapacityHistory,
    FlavorCapacity,
    FlavorGroup,
    FlavorGroupMember,
    FlavorGroupRule,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
    GroupCapacity,
    ProjectQuota,
)
from commitments.selectors.timeline import known_memory_changes
from console.base import (
    BaseAdmin,
    PageData,
    ReadOnlyInline,
    SystemOwnedAdmin,
    badge,
    column,
    link,
    may_view,
    request_actor,
    shown,
    time_tag,
)
from console.capacity.page_data import group_bar
from console.capacity.runway_text import runway_sentences
from console.hosts.columns import CLOUD_EMPTY, CLOUD_NOTE, ZoneFilter
from console.links import list_url, register_findable, row_link, text_link
from console.sell.room import sellable_bytes_of
from console.time_charts import GROUP_LAYERS, Unit, history_moments, time_chart
from core.text import NOTHING, count_text, gib_number, gib_text
from hosts.models import Flavor
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.middleware import request_id_of

FLAG_COLUMNS = (
    ("handles_commitments", "commitments"),
    ("handles_dry_run", "dry run"),
    ("has_capacity", "capacity"),
    ("has_quota", "quota"),
)

for _type, _model, _field in (
    ("flavor", Flavor, "name"),
    ("flavor_group", FlavorGroup, "name"),
    ("flavor_group_settings", FlavorGroupSettings, "group_name"),
    ("flavor_group_rule", FlavorGroupRule, "id"),
):
    register_findable(_type, _model, _field)


@admin.register(Flavor)
class FlavorAdmin(SystemOwnedAdmin[Flavor]):
    """Nova flavors and the group each is in."""

    owner_note = CLOUD_NOTE
    empty_note = CLOUD_EMPTY
    list_display = ("name", "memory", "cores", "disk", "group", "is_public", "vms")
    list_filter = ("is_public", "membership__group")
    search_fields = ("name", "=openstack_id")
    list_select_related = ("membership__group",)
    page_columns = (
        "name",
        "openstack_id",
        "group",
        "memory_bytes",
        "vcpus",
        "disk_gib",
        "ephemeral_gib",
        "is_public",
        "extra_specs",
        "vms",
        "created_at",
        "updated_at",
    )

    memory = column("memory_bytes", "memory")
    cores = shown("vCPUs", lambda row: count_text(row.vcpus), "vcpus")
    disk = shown("disk", lambda row: count_text(row.disk_gib, "GiB"), "disk_gib")

    @admin.display(description="flavor group", ordering="membership__group__name")
    def group(self, row: Flavor) -> SafeString | str:
        """Link to the flavor group."""
        membership = getattr(row, "membership", None)
        return NOTHING if membership is None else row_link(membership.group)

    vms = shown(
        "VMs", lambda row: text_link(list_url("hosts.instance", flavor_name__exact=row.name), "VMs")
    )


class MemberInline(ReadOnlyInline[FlavorGroupMember]):
    """Flavors of a group, largest first."""

    model = FlavorGroupMember
    verbose_name_plural = "flavors, largest first"
    fields = ("flavor_link", "memory", "cores", "ratio")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[FlavorGroupMember]:
        """Read members with their flavors."""
        return super().get_queryset(request).select_related("flavor")

    flavor_link = shown("flavor", lambda row: row_link(row.flavor))
    memory = shown("memory", lambda row: gib_text(row.flavor.memory_bytes))
    cores = shown("vCPUs", lambda row: count_text(row.flavor.vcpus))

    @admin.display(description="memory per vCPU")
    def ratio(self, row: FlavorGroupMember) -> str:
        """Show the ratio, rounded down to whole MiB."""
        if row.flavor.vcpus == 0:
            return NOTHING
        return f"{(row.flavor.memory_bytes >> 20) // row.flavor.vcpus} MiB"


@admin.register(FlavorGroup)
class FlavorGroupAdmin(SystemOwnedAdmin[FlavorGroup]):
    """Flavors that share hardware and are committed together."""

    owner_note = (
        "Built from the flavors' extra specs and the flavor group rules. Change those, or the "
        "settings of the group, and the next refresh brings it here."
    )
    empty_note = (
        "No flavor is in a group: flavors come with a cloud, and ./run manage connect CLOUD "
        "proposes which belong together (docs/first-day.md)."
    )
    list_display = (
        "name",
        "smallest",
        "largest",
        "ratio",
        "unit",
        "handles",
        "retired",
        "lists",
    )
    list_filter = ("is_retired",)
    search_fields = ("name", "flavors__name")
    list_select_related = ("smallest_flavor", "largest_flavor")
    inlines = (MemberInline,)
    page_columns = (
        "name",
        "smallest_flavor",
        "largest_flavor",
        "ratio",
        "unit",
        "handles",
        "settings_link",
        "retired",
        "lists",
        "created_at",
        "updated_at",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[FlavorGroup]:
        """Read groups; the settings of all groups are read once per page."""
        self._settings = {row.group_name: row for row in FlavorGroupSettings.objects.all()}
        return super().get_queryset(request)

    def _settings_of(self, row: FlavorGroup) -> FlavorGroupSettings | None:
        return self._settings.get(row.name) or self._settings.get("*")

    smallest = shown(
        "smallest flavor", lambda row: row_link(row.smallest_flavor), "smallest_flavor__name"
    )
    largest = shown(
        "largest flavor", lambda row: row_link(row.largest_flavor), "largest_flavor__name"
    )

    @admin.display(description="memory per vCPU", ordering="ram_core_ratio_mib")
    def ratio(self, row: FlavorGroup) -> str:
        """Show the fixed ratio, or the range."""
        if row.ram_core_ratio_mib is not None:
            return f"{row.ram_core_ratio_mib} MiB (fixed)"
        if row.ram_core_ratio_min_mib is None:
            return NOTHING
        return f"{row.ram_core_ratio_min_mib} to {row.ram_core_ratio_max_mib} MiB"

    @admin.display(description="memory unit")
    def unit(self, row: FlavorGroup) -> str:
        """Show the declared unit of memory towards Limes."""
        settings = self._settings_of(row)
        return f"{(settings.ram_unit_gib if settings else 0) or 1} GiB"

    @admin.display(description="commitments on")
    def handles(self, row: FlavorGroup) -> str:
        """Show which resources take commitments."""
        settings = self._settings_of(row)
        names = [
            resource
            for resource in ("ram", "cores", "instances")
            if settings and getattr(settings, f"{resource}_handles_commitments")
        ]
        return ", ".join(names) or "nothing"

    @admin.display(description="settings")
    def settings_link(self, row: FlavorGroup) -> SafeString | str:
        """Link to the settings that apply."""
        settings = self._settings_of(row)
        if settings is None:
            return text_link(
                list_url("capacity.flavorgroupsettings"), "none: every switch is off, 1 GiB units"
            )
        return row_link(settings, "own settings" if settings.group_name != "*" else "those of *")

    retired = shown(
        "state",
        lambda row: badge("warn", "retired") if row.is_retired else badge("ok", "in use"),
        "is_retired",
    )

    @admin.display(description="related")
    def lists(self, row: FlavorGroup) -> SafeString:
        """Link to commitments, reservations and capacity."""
        links = (
            (list_url("commitments.commitment", flavor_group_name__exact=row.name), "commitments"),
            (list_url("capacity.reservation", flavor_group_name__exact=row.name), "reservations"),
            (list_url("capacity.groupcapacity", group_name__exact=row.name), "capacity"),
        )
        return format_html_join(" · ", "{}", ((text_link(url, text),) for url, text in links))


class SettingsForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """Settings of a group, checked before the service is asked."""

    class Meta:
        model = FlavorGroupSettings
        fields = ("group_name", *services.SETTINGS_FIELDS)

    def clean_group_name(self) -> str:
        """Refuse names that no group can have."""
        name = str(self.cleaned_data["group_name"])
        problem = services.group_name_problem(name)
        if problem is not None:
            raise forms.ValidationError(problem)
        return name

    def clean_ram_unit_gib(self) -> int:
        """Refuse a unit that Limes could not take over."""
        unit_gib = int(self.cleaned_data["ram_unit_gib"] or 0)
        name = str(self.cleaned_data.get("group_name") or self.instance.group_name)
        problem = services.unit_problem(name, unit_gib) if name else None
        if problem is not None:
            raise forms.ValidationError(problem)
        return unit_gib


@admin.register(FlavorGroupSettings)
class FlavorGroupSettingsAdmin(BaseAdmin[FlavorGroupSettings]):
    """What a group's resources do towards Limes: operators edit it here."""

    empty_note = (
        "No group has settings, so that nothing can be committed: ./run manage connect CLOUD "
        "proposes them (docs/first-day.md), or add them here."
    )
    form = SettingsForm
    list_display = ("group_name", "unit", "ram", "cores", "instances", "updated")
    search_fields = ("group_name",)
    list_before_template = "admin/parts/settings_note.html"
    change_form_before_template = "admin/parts/settings_page.html"
    actions = None
    fieldsets = (
        (None, {"fields": ("group_name", "ram_unit_gib")}),
        ("Memory", {"fields": tuple(f"ram_{flag}" for flag, _ in FLAG_COLUMNS)}),
        ("Cores", {"fields": tuple(f"cores_{flag}" for flag, _ in FLAG_COLUMNS)}),
        ("VMs", {"fields": tuple(f"instances_{flag}" for flag, _ in FLAG_COLUMNS)}),
    )

    def get_readonly_fields(
        self, request: HttpRequest, obj: FlavorGroupSettings | None = None
    ) -> Any:
        """Keep the name of settings that exist."""
        if obj is not None and self.has_change_permission(request, obj):
            return ("group_name",)
        return super().get_readonly_fields(request, obj)

    def save_model(
        self, request: HttpRequest, obj: FlavorGroupSettings, form: Any, change: Any
    ) -> None:
        """Save through the service, which audits."""
        saved = services.save_group_settings(
            group_name=obj.group_name,
            settings={name: getattr(obj, name) for name in services.SETTINGS_FIELDS},
            actor=request_actor(request),
            request_id=request_id_of(request),
        )
        obj.pk = saved.pk

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Remove settings, or say why they must stay."""
        try:
            return super().delete_view(request, object_id, extra_context)
        except InvalidInput as refusal:
            self.message_user(request, refusal.message, messages.ERROR)
            return HttpResponseRedirect(
                reverse("admin:capacity_flavorgroupsettings_change", args=[object_id])
            )

    def delete_model(self, request: HttpRequest, obj: FlavorGroupSettings) -> None:
        """Remove through the service, which audits."""
        services.remove_group_settings(
            group_name=obj.group_name,
            actor=request_actor(request),
            request_id=request_id_of(request),
        )

    unit = shown("memory unit", lambda row: f"{row.ram_unit_gib or 1} GiB", "ram_unit_gib")
    ram = shown("memory", lambda row: _flags_text(row, "ram"))
    cores = shown("cores", lambda row: _flags_text(row, "cores"))
    instances = shown("VMs", lambda row: _flags_text(row, "instances"))
    updated = column("updated_at", "changed")


def _flags_text(row: FlavorGroupSettings, resource: str) -> str:
    words = [word for flag, word in FLAG_COLUMNS if getattr(row, f"{resource}_{flag}")]
    return ", ".join(words) or "nothing"


@admin.register(FlavorGroupRule)
class FlavorGroupRuleAdmin(BaseAdmin[FlavorGroupRule]):
    """Rules that group flavors by name: operators edit them here."""

    empty_note = (
        "There is no rule: only flavors whose extra spec quota:hw_version names a group are in "
        "one. ./run manage connect CLOUD proposes rules, or add one here."
    )
    list_display = ("flavor_pattern", "group_name", "position")
    search_fields = ("flavor_pattern", "group_name")
    list_before_template = "admin/parts/rules_note.html"
    actions = None

    def save_model(
        self, request: HttpRequest, obj: FlavorGroupRule, form: Any, change: Any
    ) -> None:
        """Save through the service, which audits."""
        saved = services.save_group_rule(
            rule_id=obj.pk,
            group_name=obj.group_name,
            flavor_pattern=obj.flavor_pattern,
            position=obj.position,
            actor=request_actor(request),
            request_id=request_id_of(request),
        )
        obj.pk = saved.pk

    def delete_model(self, request: HttpRequest, obj: FlavorGroupRule) -> None:
        """Remove through the service, which audits."""
        services.remove_group_rule(
            rule_id=obj.pk, actor=request_actor(request), request_id=request_id_of(request)
        )


@admin.register(FlavorGroupSnapshot)
class FlavorGroupSnapshotAdmin(SystemOwnedAdmin[FlavorGroupSnapshot]):
    """Whether flavor groups were built, and when their content last changed."""

    owner_note = "Written by the refresh of flavor groups."
    empty_note = (
        "Groups were never built: a worker does it once there are flavors (./run serve worker)."
    )
    list_display = (
        "__str__",
        column("last_extracted_at"),
        column("last_content_change_at"),
    )


class FlavorCapacityInline(ReadOnlyInline[FlavorCapacity]):
    """How many VMs of each flavor fit."""

    model = FlavorCapacity
    fields = ("flavor_name", "total_vm_slots", "total_hosts", "placeable_vms", "placeable_hosts")
    readonly_fields = fields


@admin.register(GroupCapacity)
class GroupCapacityAdmin(SystemOwnedAdmin[GroupCapacity]):
    """Capacity of a flavor group in a zone, as reported to Limes."""

    owner_note = (
        "Computed from hosts, VMs and reservations whenever these change; what report-capacity "
        "serves."
    )
    empty_note = (
        "Not computed yet: a worker does it every five minutes, once there are hosts and flavor "
        "groups (./run manage connect CLOUD, docs/first-day.md)."
    )
    list_display = (
        "group",
        "zone",
        "sellable_gib",
        "free",
        "slots",
        "total_gib",
        "running_gib",
        "committed_gib",
        "unused_gib",
        "ready",
        "computed",
    )
    change_form_before_template = "admin/group_capacity_page.html"
    list_filter = (ZoneFilter, "group_name", "is_ready")
    search_fields = ("group_name",)
    inlines = (FlavorCapacityInline,)

    group = shown("group", lambda row: row.group_name, "group_name")

    def get_queryset(self, request: HttpRequest) -> QuerySet[GroupCapacity]:
        """Read rows; the settings of all groups are read once per page."""
        self._configured = load_group_settings()
        return super().get_queryset(request)

    def page_parts(self, request: HttpRequest, row: GroupCapacity) -> dict[str, Any]:
        """Show what the group had over time."""
        if not may_view(request, CapacityHistory):
            return {}
        now = database_now()
        key = (row.zone, row.group_name)
        rows = recent_history(zones=key[:1], groups=key[1:], now=now).get(key, [])
        sees = may_view(request, "commitments.commitment")
        changes = known_memory_changes(*key, now=now) if sees else None
        return {
            "charts": _charts(row, rows),
            "runway": runway_sentences(row, rows, changes=changes, now=now),
        }

    total_gib = shown(
        "installed, GiB", lambda row: gib_number(row.total_memory_bytes), "total_memory_bytes"
    )
    running_gib = shown(
        "running, GiB", lambda row: gib_number(row.running_memory_bytes), "running_memory_bytes"
    )
    committed_gib = shown(
        "committed, not pending, GiB",
        lambda row: gib_number(row.committed_memory_bytes),
        "committed_memory_bytes",
    )
    unused_gib = shown(
        "reserved, unused, GiB",
        lambda row: gib_number(row.reserved_unused_memory_bytes),
        "reserved_unused_memory_bytes",
    )
    free = shown(
        "share told to Limes, GiB",
        lambda row: format_html(
            '<span class="hr-bar-cell">{} {}</span>',
            group_bar(row),
            gib_number(row.exclusively_free_memory_bytes),
        ),
        "exclusively_free_memory_bytes",
    )

    @admin.display(description="sellable now, GiB", ordering="free_memory_bytes")
    def sellable_gib(self, row: GroupCapacity) -> SafeString:
        """Link what a request would get to the page that says what limits it."""
        address = reverse("headroom_sell_group", args=[row.pk])
        return text_link(address, gib_number(sellable_bytes_of(row, self._configured)))

    slots = shown(
        "slots of the share",
        lambda row: f"{row.exclusively_free_slots:,} of {row.smallest_flavor_name}",
        "exclusively_free_slots",
    )

    @admin.display(description="ready", ordering="is_ready")
    def ready(self, row: GroupCapacity) -> SafeString:
        """Say whether the numbers may be served."""
        if row.is_ready:
            return badge("ok", "ready")
        return badge("warn", row.ready_reason or "not computed yet", row.ready_message)

    computed = column("computed_at", "computed")


def _charts(row: GroupCapacity, rows: Sequence[CapacityHistory]) -> tuple[PageData, ...]:
    """Return the pictures of a group in a zone: memory and vCPUs."""
    moments = history_moments(rows)
    name = f"{row.group_name} in {row.zone}"
    drawn: tuple[tuple[str, Unit], ...] = (("Memory", "memory"), ("vCPUs", "vcpus"))
    return tuple(
        time_chart(
            f"group-{unit}",
            f"{words} of {name}",
            moments,
            layers=GROUP_LAYERS,
            total="total",
            unit=unit,
        )
        for words, unit in drawn
    )


@admin.register(ProjectQuota)
class ProjectQuotaAdmin(SystemOwnedAdmin[ProjectQuota]):
    """Quota of projects per zone, as Limes set it, and what is used of it."""

    owner_note = "Set by Limes through the quota endpoint. Change it in Limes."
    empty_note = "Limes has set no quota yet: it does once it knows Headroom (docs/limes.md)."
    list_display = ("project", "zone", "domain", "quota", "usage", "reconciled", "updated")
    list_filter = (ZoneFilter,)
    search_fields = ("=project_id", "project_name", "domain_name")
    search_help_text = "Whole project id, project name, domain name"
    page_columns = (
        "project",
        "domain",
        "zone",
        "quota",
        "usage",
        "limes_quota_summary",
        "limes_usage_summary",
        "generation",
        "observed_generation",
        "last_reconcile_at",
        "last_full_reconcile_at",
        "created_at",
        "updated_at",
    )

    project = link(
        "project", "project_id", "project", ordering="project_name", words="project_name"
    )
    domain = link("domain", "domain_id", "domain", ordering="domain_name", words="domain_name")

    @admin.display(description="quota")
    def quota(self, row: ProjectQuota) -> SafeString | str:
        """Show the quota of each resource; memory is in GiB."""
        entries = sorted(row.quota_by_resource.items())
        return (
            format_html_join("", "{}<br>", ((_quota_text(*entry),) for entry in entries)) or NOTHING
        )

    @admin.display(description="used, pay as you go")
    def usage(self, row: ProjectQuota) -> SafeString | str:
        """Show what the project uses of each resource, and how much no commitment covers."""
        lines = (
            (f"{_quota_text(name, used)}, {row.payg_usage.get(name, 0):,} pay as you go",)
            for name, used in sorted(row.total_usage.items())
            if used
        )
        return format_html_join("", "{}<br>", lines) or NOTHING

    @admin.display(description="counted", ordering="last_reconcile_at")
    def reconciled(self, row: ProjectQuota) -> SafeString | str:
        """Show when the usage was counted, and whether it is of the present quota."""
        if row.observed_generation != row.generation:
            return badge("warn", "not counted yet")
        return time_tag(row.last_reconcile_at)

    updated = column("updated_at", "changed")


def _quota_text(resource: str, quota: int) -> str:
    unit = " GiB" if resource.endswith("_ram") else ""
    return f"{resource}: " + (f"{quota:,}{unit}" if quota >= 0 else "unlimited")
