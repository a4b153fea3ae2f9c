"""Admin of webhooks: who is told, and what became of each delivery."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from console.base import (
    BaseAdmin,
    CheckedActions,
    SystemOwnedAdmin,
    badge,
    column,
    request_actor,
    shown,
    since_filter,
)
from console.links import list_url, text_link
from console.names import object_link
from journal.middleware import request_id_of
from webhooks import services
from webhooks.addresses import AddressForbidden, check_url
from webhooks.delivering import Claimed, body_of
from webhooks.models import Delivery, Endpoint

TONES = {"waiting": "idle", "delivered": "ok", "dead": "bad"}


class EndpointForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """An endpoint, checked before the service is asked."""

    class Meta:
        model = Endpoint
        fields = ("name", *services.FIELDS)

    def clean_url(self) -> str:
        """Refuse addresses that deliveries do not go to."""
        url = str(self.cleaned_data["url"])
        try:
            check_url(url)
        except AddressForbidden as error:
            raise forms.ValidationError(error.message) from error
        return url


@admin.register(Endpoint)
class EndpointAdmin(BaseAdmin[Endpoint]):
    """Receivers: operators edit them here."""

    form = EndpointForm
    list_display = ("name", "url", "state", "topics", "deliveries_link")
    search_fields = ("name", "url")
    search_help_text = "Part of the name or address"
    empty_note = "Nobody is told of changes yet: add the address of a receiver (docs/webhooks.md)."
    actions = None

    topics = shown("kinds", lambda row: ", ".join(row.kinds) or "all")

    def get_readonly_fields(self, request: HttpRequest, obj: Endpoint | None = None) -> Any:
        """Keep the name of an endpoint that exists."""
        if obj is not None and self.has_change_permission(request, obj):
            return ("name",)
        return super().get_readonly_fields(request, obj)

    @admin.display(description="state")
    def state(self, row: Endpoint) -> SafeString:
        """Say whether it is told."""
        if row.disabled_at is not None:
            return badge("bad", "disabled", "it answered 410; saving it enables it again")
        return badge("idle", "paused") if row.is_paused else badge("ok", "on")

    @admin.display(description="deliveries")
    def deliveries_link(self, row: Endpoint) -> SafeString:
        """Link to what it was told."""
        return text_link(list_url("webhooks.delivery", endpoint__id__exact=row.pk), "deliveries")

    def save_model(self, request: HttpRequest, obj: Endpoint, form: Any, change: Any) -> None:
        """Save through the service, which audits."""
        saved = services.save_endpoint(
            name=obj.name,
            fields={key: getattr(obj, key) for key in services.FIELDS},
            actor=request_actor(request),
            request_id=request_id_of(request),
        )
        obj.pk = saved.pk

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Name the endpoint alone: its deliveries may be many, and go with it."""
        return [str(each) for each in objs], {"endpoints": len(objs)}, set(), []

    def delete_model(self, request: HttpRequest, obj: Endpoint) -> None:
        """Remove through the service, which audits."""
        services.remove_endpoint(
            endpoint=obj, actor=request_actor(request), request_id=request_id_of(request)
        )


@admin.action(description="Deliver again", permissions=["again"])
def deliver_again(
    model_admin: DeliveryAdmin, request: HttpRequest, queryset: QuerySet[Delivery]
) -> None:
    """Let deliveries that are over be made once more."""
    count = services.deliver_again(
        keys=list(queryset.values_list("pk", flat=True)),
        actor=request_actor(request),
        request_id=request_id_of(request),
    )
    model_admin.message_user(request, f"{count} deliveries are made again", messages.SUCCESS)


@admin.register(Delivery)
class DeliveryAdmin(SystemOwnedAdmin[Delivery], CheckedActions[Delivery]):
    """The log of deliveries."""

    owner_note = (
        "Kept by the task webhooks.deliver. What waits goes out in the order of each object; "
        "'Deliver again' takes what was delivered or given up (docs/webhooks.md)."
    )
    empty_note = "Nothing was sent yet: add the address of a receiver first (docs/webhooks.md)."
    list_display = (
        column("topic", "kind"),
        shown("object", object_link, "object_id"),
        column("endpoint"),
        "state_badge",
        "attempts",
        shown("answer", lambda row: row.error or str(row.answered_status or "")),
        column("occurred_at"),
        column("finished_at"),
    )
    list_filter = (since_filter("created_at", "announced in"), "state", "endpoint", "topic")
    list_select_related = ("endpoint",)
    names_in = ("object_id",)
    search_fields = ("=object_id",)
    search_help_text = "Whole id of an object"
    actions = (deliver_again,)  # type: ignore[assignment]  # the one action of this page
    page_columns = (
        "endpoint",
        "event_id",
        "topic",
        shown("object", object_link, "object_id"),
        "object_id",
        "state_badge",
        "attempts",
        "due_at",
        "answered_status",
        "error",
        "occurred_at",
        "finished_at",
        "body",
    )

    def has_again_permission(self, request: HttpRequest) -> bool:
        """Let those repeat who may change endpoints."""
        return bool(request.user.has_perm("webhooks.change_endpoint"))

    @admin.display(description="state")
    def state_badge(self, row: Delivery) -> SafeString:
        """Say what became of it."""
        return badge(TONES[row.state], row.state)

    @admin.display(description="what is sent")
    def body(self, row: Delivery) -> str:
        """Show the body of a request."""
        claimed = Claimed(
            row.pk,
            row.attempts,
            row.event_id,
            row.topic,
            row.object_type,
            row.object_id,
            row.payload,
            row.occurred_at,
        )
        return body_of(claimed).decode()
