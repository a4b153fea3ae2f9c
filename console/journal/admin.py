"""Admin of the audit trail, of background work, and of who may sign in."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from console.base import (
    CheckedActions,
    SystemOwnedAdmin,
    badge,
    column,
    json_block,
    may_view,
    request_actor,
    shown,
    since_filter,
    time_tag,
    wrapped,
)
from console.links import find_target, list_url, register_findable, row_url
from console.names import Names, names_of, object_link
from core.doctor.findings import Severity
from core.stored_text import shortened
from core.text import NOTHING, memory_text
from journal.accounts import account_change, account_facts
from journal.clock import database_now, is_doubtful, is_off
from journal.gauges import QUEUE_LIMITS_SECONDS
from journal.middleware import request_id_of
from journal.models import (
    AuditEntry,
    BeatEntry,
    CheckFinding,
    Heartbeat,
    Lease,
    LogConsumer,
    Outbox,
    ProcessClock,
)
from journal.services import Change, record_changes

FACTS_SHOWN: Final = 3
SHORT_REQUEST: Final = 12
#: Facts that stand before others.
TELLING: Final = frozenset({"amount", "flavor_group", "flavorGroupName", "state", "status"})
LONGEST_FACT: Final = 40
SEVERITY_TONES: dict[str, str] = {
    Severity.OK: "ok",
    Severity.WARNING: "warn",
    Severity.ERROR: "bad",
}

register_findable("User", User, "username")
register_findable("Group", Group, "name")


def action_words(action: str) -> str:
    """Return what was done, in words."""
    return " ".join("VMs" if word == "vms" else word for word in action.split("_"))


def request_link(row: AuditEntry) -> SafeString | str:
    """Link to all that a request changed; its id is long, and seen on hover."""
    if not row.request_id:
        return NOTHING
    same = list_url("journal.auditentry", q=row.request_id)
    said = shortened(row.request_id, LONGEST_FACT)
    words = said if len(said) <= SHORT_REQUEST else f"…{row.request_id[-SHORT_REQUEST:]}"
    link = '<a class="hr-link" href="{}" title="{}">{}</a>'
    return format_html(link, same, row.request_id, words)


@admin.register(AuditEntry)
class AuditEntryAdmin(SystemOwnedAdmin[AuditEntry]):
    """Who changed what, when and why."""

    owner_note = (
        "The audit trail is append-only: the database refuses to change or delete an entry. "
        "Every service writes its entry in the transaction of the change."
    )
    empty_note = "Nothing was changed yet."
    questions = (("Yesterday", "since=yesterday"), ("The last hour", "since=hour"))
    list_display = ("when", "actor", "did", "object", "difference", "why", "request_short")
    list_display_links = ("when",)
    list_filter = (since_filter("created_at", "changed in"), "action", "object_type")
    search_fields = ("^object_id", "=request_id", "actor", "reason")
    search_help_text = "Object id (its beginning is enough), whole request id, actor, reason"
    page_columns = (
        "created_at",
        "actor",
        "request_id",
        "action",
        "object",
        "why",
        "before",
        "after",
    )
    names_in = ("object_id", "reason", "before", "after")

    when = shown("when", lambda row: time_tag(row.created_at), "id")
    did = shown("action", lambda row: action_words(row.action), "action")
    object = shown("object", object_link, "object_id")
    request_short = shown("request", request_link, "request_id")
    why = shown("reason", lambda row: wrapped(names_of(row).linked(row.reason)), "reason")

    @admin.display(description="before and after")
    def difference(self, row: AuditEntry) -> SafeString | str:
        """Show the first facts that changed, or those of what was made or removed."""
        before, after = (side if isinstance(side, dict) else {} for side in (row.before, row.after))
        names = sorted(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        )
        names.sort(key=lambda name: name not in TELLING)
        sides = [side for side in (before, after) if side]
        known = names_of(row)
        lines = [
            format_html(
                "<li>{}: {}</li>",
                name,
                format_html_join(" → ", "{}", ((_fact(side, name, known),) for side in sides)),
            )
            for name in names[:FACTS_SHOWN]
        ]
        if len(names) > FACTS_SHOWN:
            lines.append(format_html("<li>{} more</li>", len(names) - FACTS_SHOWN))
        return format_html("<ul>{}</ul>", SafeString("".join(lines))) if lines else NOTHING

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
        before = request.headers.get("Referer", "")
        is_ours = url_has_allowed_host_and_scheme(before, {request.get_host()})
        return HttpResponseRedirect(before if is_ours else reverse("admin:index"))


def _fact(facts: dict[str, Any], name: str, names: Names) -> SafeString | str:
    """Return a fact of a side in a few words; what is not there, and null, as nothing."""
    said = facts.get(name)
    if said is None:
        return NOTHING
    is_number = isinstance(said, int) and not isinstance(said, bool)
    if is_number and said >= 1 << 20 and (name == "amount" or name.endswith("_bytes")):
        return memory_text(said)
    named = names.linked(said) if isinstance(said, str) and said else ""
    if isinstance(named, SafeString):
        return named
    return shortened(said if isinstance(said, str) else json.dumps(said), LONGEST_FACT)


@admin.register(Outbox)
class OutboxAdmin(SystemOwnedAdmin[Outbox]):
    """Changes that readers outside still have to hear of."""

    owner_note = (
        "Written by services together with the change; the Kubernetes bridge and web hooks read it."
    )
    empty_note = (
        "Nothing was told yet: entries come with the first changes of hosts and commitments."
    )
    list_display = (
        column("created_at"),
        "topic",
        "object",
        "transaction_id",
    )
    list_filter = ("topic",)
    search_fields = ("=object_id",)
    search_help_text = "Object id (whole)"
    names_in = ("object_id",)
    page_columns = (
        "created_at",
        "topic",
        "object",
        "transaction_id",
        "contents",
    )

    object = shown("object", object_link)
    contents = shown("payload", lambda row: json_block(row.payload))


@admin.register(Heartbeat)
class HeartbeatAdmin(SystemOwnedAdmin[Heartbeat]):
    """Signs of life of periodic jobs."""

    owner_note = "Beat sends a task every few seconds and a worker writes the time here."
    empty_note = (
        "No sign of life yet: start ./run serve beat and ./run serve worker (docs/operations.md)."
    )
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
    empty_note = (
        "No process has looked yet: start ./run serve beat and ./run serve worker "
        "(docs/operations.md)."
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


@admin.register(CheckFinding)
class CheckFindingAdmin(SystemOwnedAdmin[CheckFinding]):
    """What is wrong with this installation, and what to do about it."""

    owner_note = (
        "A worker runs all checks every five minutes and writes here what they find; "
        "./run manage doctor runs them now."
    )
    empty_note = "The last look found nothing wrong, or there was none yet: System says when."
    list_display = (
        "check_name",
        "verdict",
        column("found"),
        column("todo", "what to do"),
        column("looked_at", "last look"),
    )
    list_filter = ("severity", "check_name")
    search_fields = ("check_name", "found", "todo")
    page_columns = ("check_name", "verdict", "found", "todo", "looked_at")

    @admin.display(description="verdict")
    def verdict(self, row: CheckFinding) -> SafeString:
        """Show how bad it is."""
        return badge(SEVERITY_TONES.get(row.severity, "idle"), row.severity)


@admin.register(Lease)
class LeaseAdmin(SystemOwnedAdmin[Lease]):
    """Who does what outlives a transaction."""

    owner_note = "Taken by the process that does the work, renewed while it lives."
    empty_note = "Nothing is being done that only one process may do."
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


@admin.register(LogConsumer)
class LogConsumerAdmin(SystemOwnedAdmin[LogConsumer]):
    """Whom the logs are kept for."""

    owner_note = (
        "Moved by the consumer. What it has not read is kept for "
        "HEADROOM_JOURNAL__CONSUMER_AGE_HOURS; after that it reads everything anew."
    )
    empty_note = (
        "Nobody follows the changes: the bridge and web hooks do once they are set up "
        "(docs/bridge.md, docs/webhooks.md)."
    )
    list_display = ("name", column("moved_at"), "position")
    search_fields = ("name",)
    page_columns = ("name", "position", "moved_at")


@admin.register(BeatEntry)
class BeatEntryAdmin(SystemOwnedAdmin[BeatEntry]):
    """When beat sent what."""

    owner_note = "Written by the acting beat before it sends a task."
    empty_note = "No task was sent yet: start ./run serve beat (docs/operations.md)."
    list_display = ("entry", column("last_run_at", "sent last"), "epoch")
    page_columns = ("entry", "last_run_at", "epoch")


RowT = TypeVar("RowT", bound=User | Group)
BEFORE = "headroom_account_before"
PASSWORD = "headroom_password_changed"  # noqa: S105 - the name of a mark
if TYPE_CHECKING:
    DjangoUserAdmin = UserAdmin[User]
else:
    DjangoUserAdmin = UserAdmin


class AuditedAccounts(CheckedActions[RowT]):
    """Writes an audit entry in the transaction of each change."""

    def save_model(self, request: HttpRequest, obj: RowT, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        """Save, and remember what was there before."""
        if change:
            stored = type(obj)._default_manager.get(pk=obj.pk)  # noqa: SLF001 - public model API
            setattr(request, BEFORE, account_facts(stored))
        super().save_model(request, obj, form, change)

    def log_addition(self, request: HttpRequest, obj: RowT, message: Any) -> Any:
        """Audit a new account; called after its groups and permissions are saved."""
        self._record(request, account_change(obj, before=None, after=account_facts(obj)))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: RowT, message: Any) -> Any:
        """Audit a change; called after groups and permissions are saved."""
        after = account_facts(obj)
        verb = "password_changed" if hasattr(request, PASSWORD) else "changed"
        before = getattr(request, BEFORE, after)
        self._record(request, account_change(obj, before=before, after=after, verb=verb))
        return super().log_change(request, obj, message)

    def delete_model(self, request: HttpRequest, obj: RowT) -> None:
        """Delete an account and say so."""
        with transaction.atomic():
            self._record(request, account_change(obj, before=account_facts(obj), after=None))
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[RowT]) -> None:
        """Delete accounts and say so of each."""
        with transaction.atomic():
            for obj in queryset.order_by("pk"):
                self._record(request, account_change(obj, before=account_facts(obj), after=None))
            super().delete_queryset(request, queryset)

    def _record(self, request: HttpRequest, change: Change) -> None:
        actor = request_actor(request)
        record_changes([change], actor=actor, request_id=request_id_of(request))


class ThemedUserAdmin(DjangoUserAdmin, AuditedAccounts[User]):
    """Users, with the forms of the theme."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_fullwidth = True
    filter_horizontal = ()  # two lists side by side are wider than a small screen

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Keep what gives every right to those who have every right."""
        fields = tuple(super().get_readonly_fields(request, obj))
        if request.user.is_superuser:
            return fields
        return (*fields, "is_superuser", "user_permissions")

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Let only superusers change superusers, their passwords above all."""
        return self._may_touch(request, obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Let only superusers delete superusers."""
        return self._may_touch(request, obj) and super().has_delete_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[User]:
        """Return the users; for actions of who is none, without superusers."""
        rows: models.QuerySet[User] = super().get_queryset(request)
        is_action = request.method == "POST" and "action" in request.POST
        return rows.filter(is_superuser=False) if is_action and not _is_super(request) else rows

    def user_change_password(
        self,
        request: HttpRequest,
        id: str,  # noqa: A002 - Django's name
        form_url: str = "",
    ) -> HttpResponse:
        """Change the password and write the audit entry together."""
        setattr(request, PASSWORD, True)
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def _may_touch(self, request: HttpRequest, obj: User | None) -> bool:
        return obj is None or not obj.is_superuser or _is_super(request)


class ThemedGroupAdmin(GroupAdmin, AuditedAccounts[Group]):
    """Groups of users."""

    list_fullwidth = True
    filter_horizontal = ()


def _is_super(request: HttpRequest) -> bool:
    return bool(request.user.is_superuser)


admin.site.unregister(User)
admin.site.unregister(Group)
admin.site.register(User, ThemedUserAdmin)
admin.site.register(Group, ThemedGroupAdmin)
