"""Admin of the Placement API's rows: trees of providers with bars, consumers, names.

Clients of the API and the reconciliation of hosts write these rows, all of them through services;
nobody edits them here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Count, Exists, F, Model, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from console.base import (
    AnswerFilter,
    ChoiceFilter,
    RowT,
    SystemOwnedAdmin,
    badge,
    json_block,
    link,
    shown,
    with_id,
)
from console.hosts.columns import FoundByName
from console.links import list_url, register_findable, row_link, text_link
from console.names import names_of
from console.placement.candidate_page import PLACEMENT_EMPTY, candidate_explorer_url
from console.placement.cutover_page import cutover_url
from console.placement.page_data import consumer_page, inventory_line, member_links, provider_page
from core.server_checks.results import CheckEnd
from core.text import NOTHING, count_text, percent_text
from hosts.models import Instance, Project
from placement.models import (
    Aggregate,
    Allocation,
    CheckOutcome,
    Consumer,
    ConsumerType,
    HybridReport,
    Inventory,
    ProviderAggregate,
    ProviderTrait,
    ResourceClass,
    ResourceProvider,
    ShadowDifference,
    SplitWrite,
    Trait,
)
from placement.services.audit import flavors_with_unknown_traits

NO_OTHER_PLACEMENT = (
    "Headroom stands in front of no other Placement, or all fits: set "
    "HEADROOM_GATEWAY__UPSTREAM_URL{} to have rows here (docs/gateway.md)."
)
API_NOTE = (
    "Written by clients of the Placement API (nova-compute, nova-scheduler, neutron) and by the "
    "reconciliation of hosts. Change it there; placement_audit repairs what has drifted."
)
#: Colour of how a check ended.
TONES = {CheckEnd.PASSED: "ok", CheckEnd.SKIPPED: "idle", CheckEnd.FAILED: "bad"}
SHOWN_IN_LIST = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")

register_findable("provider", ResourceProvider, "uuid")
register_findable("consumer", Consumer, "uuid")


def _count(links: type[Model], field: str) -> Coalesce:
    """Count the rows of ``links`` that point to the outer row by ``field``, in one subquery."""
    rows = links._default_manager.filter(**{field: OuterRef("pk")}).order_by()  # noqa: SLF001 - API
    return Coalesce(Subquery(rows.values(field).annotate(count=Count("*")).values("count")), 0)


class TraitInUseFilter(ChoiceFilter):
    """Providers that have a trait."""

    title = "trait"
    parameter_name = "trait"
    field = "trait_links__trait__name"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return the traits that a provider has."""
        used = Exists(ProviderTrait.objects.filter(trait=OuterRef("pk")))
        names = Trait.objects.filter(used).order_by("name").values_list("name", flat=True)
        return [(name, name) for name in names]


class ClassInUseFilter(ChoiceFilter):
    """Providers that have inventory of a class."""

    title = "resource class"
    parameter_name = "resource_class"
    field = "inventories__resource_class__name"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return the classes that a provider has."""
        used = Exists(Inventory.objects.filter(resource_class=OuterRef("pk")))
        names = ResourceClass.objects.filter(used).values_list("name", flat=True)
        return [(name, name) for name in names]


class NestingFilter(AnswerFilter):
    """Roots of trees, or what is below them."""

    title = "place in its tree"
    parameter_name = "place"
    answers = {
        "root": ("root", lambda: Q(parent__isnull=True)),
        "nested": ("nested", lambda: Q(parent__isnull=False)),
    }


class OriginOfNameFilter(AnswerFilter):
    """Standard names, or those that operators made."""

    title = "origin"
    parameter_name = "origin"
    answers = {
        "standard": ("standard", lambda: ~Q(name__startswith="CUSTOM_")),
        "custom": ("custom", lambda: Q(name__startswith="CUSTOM_")),
    }


class ConsumerTypeFilter(ChoiceFilter):
    """Consumers of a type."""

    title = "type"
    parameter_name = "type"
    field = "type__name"

    def words(self) -> Sequence[tuple[str, str]]:
        """Return every type, and the word for none."""
        names = ConsumerType.objects.values_list("name", flat=True)
        return [*((name, name) for name in names), ("-", "no type")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep consumers of the chosen type."""
        if self.value() == "-":
            return queryset.filter(type__isnull=True)
        return super().queryset(request, queryset)


class HolderFilter(admin.SimpleListFilter):
    """Consumers that hold something of one provider; reached from the provider's page."""

    title = "provider"
    parameter_name = "provider"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> Sequence[tuple[str, str]]:
        """Return the provider that the address names: a region has too many to list."""
        return [(given, f"provider {given}")] if (given := self._given(request)) else []

    def has_output(self) -> bool:
        """Take part in the query even when there is nothing to choose from."""
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep consumers with an allocation of the provider."""
        given = self._given(request)
        if not given:
            return queryset
        held = Allocation.objects.filter(consumer=OuterRef("pk"), provider=int(given))
        return queryset.filter(Exists(held))

    def _given(self, request: HttpRequest) -> str:
        given = request.GET.get(self.parameter_name, "")
        return given if given.isascii() and given.isdigit() and len(given) < 19 else ""  # noqa: PLR2004 - bigint


class FoundByUuid(SystemOwnedAdmin[RowT]):
    """Rows that a search finds by their uuid when the text is one."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[RowT], search_term: str
    ) -> tuple[QuerySet[RowT], bool]:
        """Find by uuid, else by the fields of the list."""
        try:
            return queryset.filter(uuid=UUID(search_term.strip())), False
        except ValueError:
            return super().get_search_results(request, queryset, search_term)


@admin.register(ResourceProvider)
class ResourceProviderAdmin(FoundByUuid[ResourceProvider]):
    """Providers with their trees and what is used of them."""

    owner_note = API_NOTE
    empty_note = PLACEMENT_EMPTY
    change_form_before_template = "admin/provider_page.html"
    list_display = ("named", "parent_link", "usage", "consumers", "origin", "generation")
    list_filter = (NestingFilter, "origin", "is_retiring", ClassInUseFilter, TraitInUseFilter)
    search_fields = ("name",)
    search_help_text = "Name, or whole uuid"
    list_select_related = ("parent",)
    page_columns = (
        "name",
        "uuid",
        "parent",
        "root",
        "generation",
        "origin",
        "inventory_source",
        "zone",
        "is_retiring",
        "created_at",
        "updated_at",
    )

    def get_urls(self) -> list[URLPattern]:
        """Add the candidate explorer, and where a cut-over stands."""
        pages = (candidate_explorer_url(self.admin_site), cutover_url(self.admin_site))
        return [*pages, *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[ResourceProvider]:
        """Read providers with their inventories, in two queries."""
        rows: QuerySet[ResourceProvider] = super().get_queryset(request)
        return rows.prefetch_related("inventories__resource_class")

    def page_parts(self, request: HttpRequest, row: ResourceProvider) -> dict[str, Any]:
        """Show the page with the tree and the consumers."""
        return {"page": provider_page(row)}

    named = with_id("name", "uuid")
    parent_link = shown("parent", lambda row: row_link(row.parent), "parent__name")

    @admin.display(description="used")
    def usage(self, row: ResourceProvider) -> SafeString | str:
        """Draw what is used of the classes that every host has."""
        lines = [
            (inventory.resource_class.name, inventory_line(inventory).bar, _share(inventory))
            for inventory in row.inventories.all()
            if inventory.resource_class.name in SHOWN_IN_LIST
        ]
        cell = '<span class="hr-bar-cell">{} {} <span class="hr-sub">{}</span></span>'
        return format_html_join(
            SafeString("<br>"), cell, ((bar, share, name) for name, bar, share in lines)
        ) or (
            count_text(len(row.inventories.all()), "classes") if row.inventories.all() else NOTHING
        )

    consumers = shown(
        "held by",
        lambda row: text_link(list_url("placement.consumer", provider=row.pk), "consumers"),
    )


@admin.register(Consumer)
class ConsumerAdmin(FoundByName[Consumer], FoundByUuid[Consumer]):
    """Consumers with what they hold."""

    owner_note = API_NOTE
    empty_note = PLACEMENT_EMPTY
    change_form_before_template = "admin/consumer_page.html"
    list_display = (
        "named",
        "kind",
        "project_link",
        "user_name",
        "holds",
        "generation",
        "updated_at",
    )
    list_filter = (ConsumerTypeFilter, HolderFilter)
    search_fields = ("project__external_id",)
    search_help_text = "Whole uuid or name of a VM, part of a project's id, or its whole name"
    named_columns = {"project__external_id": Project, "uuid": Instance}
    names_in = ("uuid", "project_id_there")
    list_select_related = ("type", "project", "user")
    page_columns = (
        "uuid",
        "kind",
        "project_link",
        "user_name",
        "generation",
        "created_at",
        "updated_at",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Consumer]:
        """Read consumers with what they hold."""
        rows: QuerySet[Consumer] = (
            super().get_queryset(request).annotate(project_id_there=F("project__external_id"))
        )
        return rows.prefetch_related("allocations__provider", "allocations__resource_class")

    def page_parts(self, request: HttpRequest, row: Consumer) -> dict[str, Any]:
        """Show the page with the allocations."""
        return {"page": consumer_page(row)}

    kind = shown("type", lambda row: row.type.name if row.type else NOTHING, "type__name")
    named = shown(
        "consumer",
        lambda row: format_html(
            '<span title="{}">{}</span>',
            row.uuid,
            names_of(row).of("vm", str(row.uuid)) or str(row.uuid),
        ),
        "uuid",
    )
    project_link = link("project", "project_id_there", "project", ordering="project__external_id")
    user_name = shown("user", lambda row: row.user.external_id, "user__external_id")

    @admin.display(description="holds")
    def holds(self, row: Consumer) -> SafeString | str:
        """Say what it holds where."""
        by_provider: dict[str, list[str]] = {}
        for held in row.allocations.all():
            amount = f"{held.resource_class.name} {count_text(held.used)}"
            by_provider.setdefault(held.provider.name, []).append(amount)
        lines = [(name, ", ".join(amounts)) for name, amounts in sorted(by_provider.items())]
        return format_html_join(SafeString("<br>"), "{}: {}", lines) or NOTHING


class NameAdmin(SystemOwnedAdmin[RowT]):
    """Names, standard or custom, and how many providers use each."""

    list_display = ("name", "is_standard_badge", "used_by")
    list_filter = (OriginOfNameFilter,)
    search_fields = ("name",)
    links: type[Model]
    """Rows that link providers to names."""
    parameter = ""
    """Their foreign key to the name, and the filter of the list of providers."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[RowT]:
        """Read names with their number of providers."""
        counted = _count(self.links, self.parameter)
        rows: QuerySet[RowT] = super().get_queryset(request).annotate(provider_count=counted)
        return rows

    is_standard_badge = shown("origin", lambda row: origin_badge(is_standard=row.is_standard))

    @admin.display(description="used by", ordering="provider_count")
    def used_by(self, row: Any) -> SafeString:
        """Link to the providers that have it."""
        url = list_url("placement.resourceprovider", **{self.parameter: row.name})
        return text_link(url, count_text(row.provider_count, "providers"))


@admin.register(Trait)
class TraitAdmin(NameAdmin[Trait]):
    """Traits and how many providers have them."""

    owner_note = (
        "Standard traits come with the os-traits package; custom ones are made and deleted by "
        "clients of the Placement API."
    )
    empty_note = "Standard traits are missing: ./run manage placement_sync_standards inserts them."
    list_before_template = "admin/trait_list_before.html"
    ordering = ("name",)
    page_columns = ("name", "is_standard_badge", "used_by", "created_at")
    links, parameter = ProviderTrait, "trait"

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show above the list the traits that flavors ask for and nobody created."""
        context = {**(extra_context or {}), "unknown_traits": flavors_with_unknown_traits()}
        return super().changelist_view(request, context)


@admin.register(ResourceClass)
class ResourceClassAdmin(NameAdmin[ResourceClass]):
    """Resource classes and how many providers have inventory of them."""

    owner_note = (
        "Standard classes come with the os-resource-classes package; custom ones are made and "
        "deleted by clients of the Placement API."
    )
    empty_note = "Standard classes are missing: ./run manage placement_sync_standards inserts them."
    page_columns = ("name", "id", "is_standard_badge", "used_by", "created_at", "updated_at")
    links, parameter = Inventory, "resource_class"


@admin.register(Aggregate)
class AggregateAdmin(FoundByUuid[Aggregate]):
    """Labels that group providers."""

    owner_note = API_NOTE
    empty_note = PLACEMENT_EMPTY
    list_display = ("named", "members")
    search_fields = ("name",)
    search_help_text = "Name, or whole uuid"
    page_columns = ("name", "uuid", "members", "member_names", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Aggregate]:
        """Read aggregates with their number of providers."""
        rows: QuerySet[Aggregate] = super().get_queryset(request)
        return rows.annotate(provider_count=_count(ProviderAggregate, "aggregate"))

    named = with_id("name", "uuid")
    members = shown(
        "providers", lambda row: count_text(getattr(row, "provider_count", 0)), "provider_count"
    )

    @admin.display(description="providers")
    def member_names(self, row: Aggregate) -> SafeString | str:
        """Link to the first providers."""
        links = ((text_link(url, name),) for name, url in member_links(row))
        return format_html_join(", ", "{}", links) or NOTHING


@admin.register(ShadowDifference)
class ShadowDifferenceAdmin(SystemOwnedAdmin[ShadowDifference]):
    """Searches that we would have answered otherwise than the Placement behind the gateway."""

    owner_note = (
        "Kept by the gateway while HEADROOM_GATEWAY__SHADOW_PERCENT is above 0, the newest 1,000. "
        "A search right after a write may differ only because copies follow with a delay."
    )
    empty_note = NO_OTHER_PLACEMENT.format(" and HEADROOM_GATEWAY__SHADOW_PERCENT")
    list_display = ("created_at", "reason", "version", "query")
    list_filter = ("reason",)
    search_fields = ("query",)
    page_columns = ("created_at", "reason", "version", "query", "request_id", "what_differs")
    version = shown("version", lambda row: f"1.{row.minor}", "minor")
    what_differs = shown("what differs", lambda row: json_block(row.sample))


@admin.register(HybridReport)
class HybridReportAdmin(SystemOwnedAdmin[HybridReport]):
    """Looks at both sides of mode hybrid, and what did not fit."""

    owner_note = (
        "Kept by a task every 15 minutes in mode hybrid, the newest 100; placement_drift looks now."
    )
    empty_note = NO_OTHER_PLACEMENT.format(" and a group of mode hybrid")
    list_display = ("created_at", "verdict", "providers_there", "split_consumers", "taken")
    page_columns = (
        "created_at", "verdict", "providers_there", "split_consumers", "taken", "what_differs",
    )  # fmt: skip
    taken = shown("took", lambda row: f"{row.seconds:.1f} s", "seconds")
    what_differs = shown("what does not fit", lambda row: json_block(row.findings))

    @admin.display(description="verdict")
    def verdict(self, row: HybridReport) -> SafeString:
        """Say how many findings of which kind there are."""
        found = {kind: count for kind, count in sorted(row.counts.items()) if count}
        if not found:
            return badge("ok", "fits")
        return badge("bad", ", ".join(f"{count} {kind}" for kind, count in found.items()))


@admin.register(CheckOutcome)
class CheckOutcomeAdmin(SystemOwnedAdmin[CheckOutcome]):
    """How the checks of the served Placement API ended last."""

    owner_note = (
        "Kept by a task every five minutes where HEADROOM_GATEWAY__CHECKS_URL is set; "
        "placement_e2e runs the same checks now."
    )
    empty_note = (
        "No served Placement API is checked: set HEADROOM_GATEWAY__CHECKS_URL (docs/gateway.md)."
    )
    list_display = ("test", "asked_mode", "ended", "checked_at", "detail")
    list_filter = ("outcome",)
    search_fields = ("test", "detail")
    page_columns = ("test", "asked_mode", "ended", "checked_at", "detail")
    asked_mode = shown("mode", lambda row: row.mode or "as configured", "mode")
    ended = shown("ended", lambda row: badge(TONES[CheckEnd(row.outcome)], row.outcome), "outcome")


@admin.register(SplitWrite)
class SplitWriteAdmin(SystemOwnedAdmin[SplitWrite]):
    """Writes of both sides that are under way, or whose outcome nobody knows yet."""

    owner_note = (
        "Written by the gateway in mode hybrid before it asks the other Placement, and gone once "
        "both sides agree. What stays here is asked about every 15 s; the error says why."
    )
    empty_note = NO_OTHER_PLACEMENT.format(" and a group of mode hybrid")
    list_display = ("created_at", "actor", "error", "ends_at")
    search_fields = ("actor", "request_id")
    page_columns = (
        "created_at", "ends_at", "actor", "request_id", "error", "ours_before", "ours_after",
        "theirs_asked",
    )  # fmt: skip
    ours_before = shown("held here before", lambda row: json_block(row.before))
    ours_after = shown("to be held here", lambda row: json_block(row.after))
    theirs_asked = shown("held there, and to be held", lambda row: json_block(row.theirs))


def origin_badge(*, is_standard: bool) -> SafeString:
    """Show where a name comes from."""
    return badge("ok", "standard") if is_standard else badge("idle", "custom")


def _share(row: Inventory) -> SafeString:
    """Write how much of an inventory is used; marked when that is more than it has."""
    capacity = int((row.total - row.reserved) * row.allocation_ratio)
    text = percent_text(row.used, capacity)
    return badge("bad", text, "over capacity") if row.used > capacity else format_html("{}", text)
