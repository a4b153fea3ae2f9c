"""Admin of projects, domains, aggregates, images and server groups.

Hosts and flavors show room and groups, so ``capacity`` registers them; VMs show the commitment
that covers them, so ``commitments`` does.
"""

from __future__ import annotations

from typing import Final

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from console.base import (
    BaseAdmin,
    SystemOwnedAdmin,
    badge,
    column,
    json_block,
    link,
    request_actor,
    shown,
    with_id,
)
from console.charts import natural
from console.hosts.columns import CLOUD_EMPTY, CLOUD_NOTE, FoundByName, enabled_badge
from console.links import find_link, list_url, register_findable, row_link, text_link
from console.names import names_of
from core.text import NOTHING
from hosts.models import (
    Aggregate,
    Domain,
    Eviction,
    FeedPass,
    Host,
    HostLifecycle,
    Image,
    Instance,
    OvercommitRule,
    PlannedHostChange,
    Project,
    Region,
    ServerGroup,
    ServerMigration,
)
from hosts.services.overcommit_rules import remove_rule, save_rule
from hosts.services.planned_changes import remove_planned_change, save_planned_change
from journal.middleware import request_id_of

#: Members of an aggregate that its page links to.
MEMBERS_SHOWN: Final = 200

register_findable("vm", Instance, "openstack_id", page="headroom_vm")
register_findable("instance", Instance, "openstack_id", page="headroom_vm")
for _type, _model, _field in (
    ("host", Host, "name"),
    ("project", Project, "openstack_id"),
    ("domain", Domain, "openstack_id"),
    ("aggregate", Aggregate, "uuid"),
    ("planned_host_change", PlannedHostChange, "id"),
    ("overcommit_rule", OvercommitRule, "id"),
):
    register_findable(_type, _model, _field)


@admin.register(Project)
class ProjectAdmin(SystemOwnedAdmin[Project]):
    """Keystone projects."""

    owner_note = CLOUD_NOTE
    empty_note = CLOUD_EMPTY
    list_display = ("named", "domain", "enabled", "lists")
    list_filter = ("is_enabled",)
    search_fields = ("name", "=openstack_id", "=domain_id")
    search_help_text = "Name, or whole project or domain id"
    page_columns = (
        "name",
        "openstack_id",
        "domain",
        "parent",
        "enabled",
        "lists",
        "created_at",
        "updated_at",
    )

    named = with_id("name", "openstack_id")
    domain = link("domain", "domain_id", "domain", words="domain_name")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Project]:
        """Read projects with the names of what they are in."""
        domains = Domain.objects.filter(openstack_id=OuterRef("domain_id")).values("name")[:1]
        parents = Project.objects.filter(openstack_id=OuterRef("parent_id")).values("name")[:1]
        named: QuerySet[Project] = (
            super()
            .get_queryset(request)
            .annotate(domain_name=Subquery(domains), parent_name=Subquery(parents))
        )
        return named

    @admin.display(description="parent project")
    def parent(self, row: Project) -> SafeString | str:
        """Link to the parent, which is the domain for a top project."""
        is_top = row.parent_id == row.domain_id
        name = getattr(row, "domain_name" if is_top else "parent_name", None)
        return find_link("domain" if is_top else "project", row.parent_id, name or "")

    enabled = shown("state", lambda row: enabled_badge(is_enabled=row.is_enabled), "is_enabled")

    @admin.display(description="related")
    def lists(self, row: Project) -> SafeString:
        """Link to what the project has."""
        links = (
            ("commitments.commitment", "commitments"),
            ("hosts.instance", "VMs"),
            ("capacity.reservation", "reservations"),
            ("capacity.projectquota", "quota"),
        )
        listed = [
            text_link(list_url(label, project_id__exact=row.openstack_id), words)
            for label, words in links
        ]
        page = text_link(reverse("headroom_project", args=[row.pk]), "held and idle")
        listed.insert(0, page)
        refusals = list_url("commitments.refusedchange", q=row.openstack_id)
        listed.append(text_link(refusals, "refused requests"))
        return format_html_join(" · ", "{}", ((one,) for one in listed))


@admin.register(Domain)
class DomainAdmin(SystemOwnedAdmin[Domain]):
    """Keystone domains."""

    owner_note = CLOUD_NOTE
    empty_note = CLOUD_EMPTY
    list_display = ("named", "enabled", "projects")
    search_fields = ("name", "=openstack_id")
    page_columns = ("name", "openstack_id", "enabled", "projects", "created_at", "updated_at")

    named = with_id("name", "openstack_id")
    enabled = shown("state", lambda row: enabled_badge(is_enabled=row.is_enabled), "is_enabled")

    @admin.display(description="related")
    def projects(self, row: Domain) -> SafeString:
        """Link to its projects and commitments."""
        projects = text_link(
            list_url("hosts.project", domain_id__exact=row.openstack_id), "projects"
        )
        commitments = text_link(
            list_url("commitments.commitment", domain_id__exact=row.openstack_id), "commitments"
        )
        return format_html_join(" · ", "{}", ((projects,), (commitments,)))


@admin.register(Eviction)
class EvictionAdmin(SystemOwnedAdmin[Eviction]):
    """Hosts that are to become empty, and what is left on them."""

    owner_note = (
        "Opened by an order about a host; what is left is counted every 10 seconds. VMs are told "
        "to move by Nova where HEADROOM_FEED__MOVES_VMS says so."
    )
    empty_note = (
        "No host was ordered to become empty: hosts in maintenance are, from the list of hosts."
    )
    list_select_related = ("host",)
    list_display = (
        "id",
        column("host"),
        shown("stands", lambda row: row.get_end_display() or "open", "closed_at"),
        column("outstanding_vms", "VMs left"),
        column("outstanding_memory_bytes", "memory left"),
        "opened_by",
        "opened_at",
        "closed_at",
    )
    list_filter = ("end",)
    search_fields = ("host__name",)
    search_help_text = "Name of a host"
    page_columns = (
        column("host"),
        "reason",
        "opened_by",
        "opened_at",
        "looked_at",
        column("outstanding_vms", "VMs left"),
        column("outstanding_memory_bytes", "memory left"),
        shown("first of them", lambda row: json_block(row.outstanding)),
        column("moving_uuid", "told to move"),
        shown("did not move", lambda row: json_block(row.failed)),
        column("trouble", "why Nova could not be asked"),
        column("service_disabled", "service of Nova disabled for it"),
        "closed_at",
        "end",
    )


@admin.register(HostLifecycle)
class HostLifecycleAdmin(SystemOwnedAdmin[HostLifecycle]):
    """Hosts that are brought into service through Nova, or taken out."""

    owner_note = (
        "Opened by an order that a host comes in, and for hosts that are to go for good; where "
        "HEADROOM_FEED__ONBOARDS_HOSTS and OFFBOARDS_HOSTS say so, what comes next is done every "
        "10 seconds."
    )
    empty_note = (
        "No host was brought in or taken out through Nova: with HEADROOM_FEED__ONBOARDS_HOSTS "
        "./run manage onboard_host has one brought in, with OFFBOARDS_HOSTS maintenance "
        "termination has one taken out (docs/hosts.md)."
    )
    host = link("host", "host_name", "host")
    stands = shown("stands", lambda row: row.trouble or row.waits_for or row.phase, "phase")
    list_display = (
        "id",
        host,
        "kind",
        "phase",
        stands,
        "opened_by",
        "opened_at",
        "looked_at",
        "closed_at",
    )
    list_filter = ("kind", "phase")
    search_fields = ("host_name",)
    search_help_text = "Name of a host"
    page_columns = (
        host,
        "kind",
        "phase",
        "reason",
        "opened_by",
        "opened_at",
        "looked_at",
        column("waits_for", "waits for"),
        column("trouble", "why the cloud could not be asked, or refused"),
        shown("wanted", lambda row: json_block(row.wanted)),
        column("tests", "test VMs asked for"),
        column("tried_at", "the last one"),
        "service_host",
        "provider_uuid",
        "closed_at",
    )


@admin.register(Aggregate)
class AggregateAdmin(SystemOwnedAdmin[Aggregate]):
    """Host aggregates."""

    owner_note = CLOUD_NOTE
    empty_note = CLOUD_EMPTY
    list_display = ("named", "zone", "host_count")
    search_fields = ("name", "=uuid")
    page_columns = ("name", "uuid", "zone", "host_count", "hosts", "metadata", "updated_at")

    named = with_id("name", "uuid")
    zone = shown("zone it gives", lambda row: str(row.metadata.get("availability_zone") or NOTHING))
    host_count = shown("hosts", lambda row: str(len(row.host_names)))

    @admin.display(description="members")
    def hosts(self, row: Aggregate) -> SafeString | str:
        """Link to the first hosts, and to the list of all."""
        names = sorted(row.host_names, key=natural)
        links = [find_link("host", name) for name in names[:MEMBERS_SHOWN]]
        if len(names) > MEMBERS_SHOWN:
            address = list_url("hosts.host", aggregate=row.uuid)
            links.append(text_link(address, f"all {len(names):,}"))
        return format_html_join(", ", "{}", ((link,) for link in links)) or NOTHING


@admin.register(Image)
class ImageAdmin(SystemOwnedAdmin[Image]):
    """Glance images."""

    owner_note = CLOUD_NOTE
    empty_note = CLOUD_EMPTY
    list_display = ("named", "os_type")
    list_filter = ("os_type",)
    search_fields = ("name", "=openstack_id")
    page_columns = ("name", "openstack_id", "os_type", "properties")

    named = with_id("name", "openstack_id")


@admin.register(ServerGroup)
class ServerGroupAdmin(FoundByName[ServerGroup], SystemOwnedAdmin[ServerGroup]):
    """Nova server groups."""

    owner_note = CLOUD_NOTE
    empty_note = CLOUD_EMPTY
    list_display = ("named", "policy", "project", "member_count")
    list_filter = ("policy",)
    search_fields = ("name", "=openstack_id", "=project_id")
    search_help_text = "Part of the name; whole id, or project's id or name"
    named_columns = {"project_id": Project}
    page_columns = ("name", "openstack_id", "policy", "rules", "project", "member_links")

    names_in = ("project_id", "members")
    named = with_id("name", "openstack_id")
    project = link("project", "project_id", "project")
    member_count = shown("VMs", lambda row: str(len(row.members)))

    @admin.display(description="VMs")
    def member_links(self, row: ServerGroup) -> SafeString | str:
        """Link to the VMs."""
        links = ((names_of(row).link("vm", uuid),) for uuid in row.members)
        return format_html_join(", ", "{}", links) or NOTHING


@admin.register(Region)
class RegionAdmin(SystemOwnedAdmin[Region]):
    """Where the rows came from."""

    owner_note = "Written by the import."
    empty_note = CLOUD_EMPTY
    list_display = ("__str__", "taken_at", "source")


@admin.register(PlannedHostChange)
class PlannedHostChangeAdmin(BaseAdmin[PlannedHostChange]):
    """Hosts that will come or go; refused commitments learn from it when they would fit."""

    empty_note = (
        "No host is expected to come or to go: add one that will, and refusals say whether it "
        "would help."
    )
    list_display = ("edit", "when", "host_link", "host_count", "note")
    list_filter = ("edit", "at")
    list_select_related = ("host",)
    search_fields = ("host__name", "note")
    search_help_text = "Name of a host, or words of the note"
    autocomplete_fields = ("host",)
    fields = ("edit", "at", "host", "host_count", "note")
    actions = None

    when = column("at", "when")
    host_link = shown("host", lambda row: row_link(row.host), "host__name")

    def save_model(
        self, request: HttpRequest, obj: PlannedHostChange, form: object, change: object
    ) -> None:
        """Save through the service, which audits."""
        save_planned_change(obj, actor=request_actor(request), request_id=request_id_of(request))

    def delete_model(self, request: HttpRequest, obj: PlannedHostChange) -> None:
        """Remove through the service, which audits."""
        remove_planned_change(
            pk=obj.pk, actor=request_actor(request), request_id=request_id_of(request)
        )


@admin.register(OvercommitRule)
class OvercommitRuleAdmin(BaseAdmin[OvercommitRule]):
    """What hosts with a trait may promise of what they have; hosts follow at once."""

    empty_note = (
        "No rule says what hosts with a trait may promise: they promise what the cloud's lists say."
    )
    list_display = ("position", "__str__", "cpu_ratio", "memory_ratio")
    search_fields = ("has_trait", "hasnt_trait")
    search_help_text = "Part of a trait"
    fields = ("position", "has_trait", "hasnt_trait", "cpu_ratio", "memory_ratio")
    actions = None

    def save_model(
        self, request: HttpRequest, obj: OvercommitRule, form: object, change: object
    ) -> None:
        """Save through the service, which audits."""
        save_rule(obj, actor=request_actor(request), request_id=request_id_of(request))

    def delete_model(self, request: HttpRequest, obj: OvercommitRule) -> None:
        """Remove through the service, which audits."""
        remove_rule(pk=obj.pk, actor=request_actor(request), request_id=request_id_of(request))


@admin.register(ServerMigration)
class ServerMigrationAdmin(FoundByName[ServerMigration], SystemOwnedAdmin[ServerMigration]):
    """VMs that Nova is moving: they hold room on both hosts until that is over."""

    owner_note = "What Nova has in progress; passes of the feed over migrations write it."
    empty_note = (
        "Nova moves no VM now: rows come with a live cloud (HEADROOM_FEED__CLOUD) and go once a "
        "migration is over; those of a demo are over at once."
    )
    list_display = (
        "named",
        "vm",
        "status",
        "source",
        "target",
        column("over_at", "over since"),
    )
    list_filter = ("migration_type", "status")
    search_fields = ("=uuid", "=vm_uuid", "source_name", "target_name")
    search_help_text = "Whole id of the migration, id or name of the VM, or part of a host's name"
    named_columns = {"vm_uuid": Instance}
    names_in = ("vm_uuid",)
    named = shown("kind", lambda row: row.migration_type, "migration_type")
    vm = link("vm", "vm_uuid", "VM")
    source = link("host", "source_name", "from")
    target = link("host", "target_name", "to")
    page_columns = (
        "uuid",
        "vm",
        "migration_type",
        "status",
        "source",
        "source_memory_bytes",
        "source_vcpus",
        "target",
        "target_memory_bytes",
        "target_vcpus",
        "over_at",
    )


@admin.register(FeedPass)
class FeedPassAdmin(SystemOwnedAdmin[FeedPass]):
    """How old each kind of lists is, what was not believed of it, and why a pass failed."""

    owner_note = "A row for each kind of lists; the passes of the live feed write it."
    empty_note = "No live cloud is followed: set HEADROOM_FEED__CLOUD (docs/feed.md)."
    list_display = (
        "kind",
        "verdict",
        column("listed_at", "read from"),
        column("finished_at", "last completed"),
        "passes",
        "failures",
        column("refusal", "not believed"),
        column("error", "why it failed"),
    )
    page_columns = (
        "kind",
        "verdict",
        "listed_at",
        "began_at",
        "finished_at",
        "passes",
        "failures",
        "refusal",
        "error",
        "counted",
    )

    @admin.display(description="verdict")
    def verdict(self, row: FeedPass) -> SafeString:
        """Say whether the last pass was completed and believed."""
        if row.failures:
            return badge("bad", "fails")
        if row.listed_at is None:
            return badge("idle", "not read yet")
        return badge("warn", "partly refused") if row.refusal else badge("ok", "read")

    @admin.display(description="what it did")
    def counted(self, row: FeedPass) -> SafeString | str:
        """Show the counts of the last completed pass, by section."""
        return json_block(row.counts)
