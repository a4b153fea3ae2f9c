"""Admin of the audit trail, the outbox and heartbeats; and the way to an object by its id."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.safestring import SafeString

from console.base import (
    SystemOwnedAdmin,
    badge,
    column,
    find_link,
    find_target,
    json_block,
    may_view,
    register_findable,
    row_url,
    shown,
    time_tag,
)
from console.journal.accounts import ThemedGroupAdmin, ThemedUserAdmin
from journal.clock import database_now, is_doubtful, is_off
from journal.metrics_work import QUEUE_LIMITS_SECONDS
from journal.models import AuditEntry, BeatEntry, Heartbeat, Lease, Outbox, ProcessClock

admin.site.unregister(User)
admin.site.unregister(Group)
admin.site.register(User, ThemedUserAdmin)
admin.site.register(Group, ThemedGroupAdmin)
register_findable("User", User, "username")
register_findable("Group", Group, "name")


@admin.register(AuditEntry)
class AuditEntryAdmin(SystemOwnedAdmin[AuditEntry]):
    """Who changed what, when and why."""

    owner_note = (
        "The audit trail is append-only: the database refuses to change or delete an entry. "
        "Every service writes its entry in the transaction of the change."
    )
    list_display = ("when", "actor", "action", "object", "reason", "request_id")
    list_display_links = ("when",)
    list_filter = ("action", "object_type")
    search_fields = ("^object_id", "=request_id", "actor", "reason")
    search_help_text = "Object id (its beginning is enough), whole request id, actor, reason"
    page_columns = (
        "created_at",
        "actor",
        "request_id",
        "action",
        "object",
        "reason",
        "before",
        "after",
    )

    when = shown("when", lambda row: time_tag(row.created_at), "id")
    object = shown(
        "object",
        lambda row: find_link(row.object_type, row.object_id, f"{row.object_type} {row.object_id}"),
        "object_id",
    )

    def get_urls(self) -> list[URLPattern]:
        """Add the way to an object by its type and public id."""
        find = path(
            "find/<str:object_type>/<path:public_id>/",
            self.admin_site.admin_view(self.find_view),
            name="headroom_find",
        )
        return [find, *super().get_urls()]

    def find_view(
        self, request: HttpRequest, object_type: str, public_id: str
    ) -> HttpResponseRedirect:
        """Lead to the page of an object, or back with a word when it is gone.

        Raises:
            PermissionDenied: the user may not see such objects, there or not; nor, if the type is
                unknown, the audit entries that name it.
        """
        target = find_target(object_type)
        if not may_view(request, AuditEntry if target is None else target.model):
            raise PermissionDenied
        row: Any = None
        if target is not None:
            row = target.model._default_manager.filter(  # noqa: SLF001 - public model API
                **{target.field: public_id}
            ).first()
        if row is not None:
            return redirect(row_url(row))
        messages.warning(request, f"{object_type} {public_id} is not known here (any more).")
        return redirect(request.headers.get("Referer") or "admin:index")


@admin.register(Outbox)
class OutboxAdmin(SystemOwnedAdmin[Outbox]):
    """Changes that readers outside still have to hear of."""

    owner_note = (
        "Written by services together with the change; the Kubernetes bridge and web hooks read it."
    )
    list_display = (
        column("created_at"),
        "topic",
        "object_type",
        "object",
        "transaction_id",
    )
    list_filter = ("topic",)
    search_fields = ("=object_id",)
    search_help_text = "Object id (whole)"
    page_columns = (
        "created_at",
        "topic",
        "object",
        "transaction_id",
        "contents",
    )

    object = shown("object", lambda row: find_link(row.object_type, row.object_id))
    contents = shown("payload", lambda row: json_block(row.payload))


@admin.register(Heartbeat)
class HeartbeatAdmin(SystemOwnedAdmin[Heartbeat]):
    """Signs of life of periodic jobs."""

    owner_note = "Beat sends a task every few seconds and a worker writes the time here."
    list_display = ("name", column("beaten_at", "last sign of life"), "health")
    page_columns = ("name", "beaten_at", "health")

    @admin.display(description="health")
    def health(self, row: Heartbeat) -> SafeString:
        """Say whether the job is alive."""
        age_seconds = int((database_now() - row.beaten_at).total_seconds())
        limit_seconds = QUEUE_LIMITS_SECONDS.get(row.name, settings.HEADROOM.beat_max_age_seconds)
        if age_seconds <= limit_seconds:
            return badge("ok", "alive")
        return badge("bad", f"silent for {age_seconds} s (limit {limit_seconds} s)")


@admin.register(ProcessClock)
class ProcessClockAdmin(SystemOwnedAdmin[ProcessClock]):
    """How far the clocks of processes are from the database's."""

    owner_note = (
        "Every process that sends or takes tasks compares its clock with the database's and writes "
        "the difference here. What has not looked for a day is forgotten."
    )
    list_display = (
        "process",
        "deviation",
        column("looked_at", "last look"),
        "verdict",
    )
    search_fields = ("process",)
    page_columns = ("process", "deviation", "looked_at", "verdict")

    deviation = shown(
        "deviation", lambda row: f"{row.deviation_seconds:+.3f} s", "deviation_seconds"
    )

    @admin.display(description="clock")
    def verdict(self, row: ProcessClock) -> SafeString:
        """Say whether the process does periodic work."""
        deviation = timedelta(seconds=row.deviation_seconds)
        if is_off(deviation):
            return badge("bad", "refuses periodic work")
        return badge("warn", "off") if is_doubtful(deviation) else badge("ok", "right")


@admin.register(Lease)
class LeaseAdmin(SystemOwnedAdmin[Lease]):
    """Who does what outlives a transaction."""

    owner_note = "Taken by the process that does the work, renewed while it lives."
    list_display = (
        "name",
        "holder",
        "epoch",
        column("taken_at"),
        column("renewed_at"),
        "state",
    )
    search_fields = ("name", "holder")
    search_help_text = "Name, or host and process of the holder"
    page_columns = ("name", "holder", "epoch", "taken_at", "renewed_at", "expires_at", "state")

    @admin.display(description="state")
    def state(self, row: Lease) -> SafeString:
        """Say whether somebody holds it."""
        if row.expires_at > database_now():
            return badge("ok", "held")
        return badge("idle", "free")


@admin.register(BeatEntry)
class BeatEntryAdmin(SystemOwnedAdmin[BeatEntry]):
    """When beat sent what."""

    owner_note = "Written by the acting beat before it sends a task."
    list_display = ("entry", column("last_run_at", "sent last"), "epoch")
    page_columns = ("entry", "last_run_at", "epoch")
