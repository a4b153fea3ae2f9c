"""Admin of policies, and of zones with their brakes."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from console.base import BaseAdmin, SystemOwnedAdmin, badge, column, request_actor, shown
from core.text import NOTHING
from failover.domain.patterns import pattern_problem
from failover.models import FailoverPolicy, FailoverZone
from failover.services.orders import NoBrake, confirm_removal
from failover.services.policies import (
    PatternPreview,
    preview_pattern,
    remove_policy,
    save_policy,
)
from journal.clock import database_now
from journal.middleware import request_id_of

FLAVORS_SHOWN = 10


class PolicyForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A policy whose pattern can match something."""

    class Meta:
        model = FailoverPolicy
        fields = ("flavor_pattern", "required_count", "position")

    def clean_flavor_pattern(self) -> str:
        """Refuse a malformed pattern and say what is wrong with it."""
        pattern: str = self.cleaned_data["flavor_pattern"]
        problem = pattern_problem(pattern)
        if problem:
            raise ValidationError(problem)
        return pattern


@admin.register(FailoverPolicy)
class FailoverPolicyAdmin(BaseAdmin[FailoverPolicy]):
    """How many reservations VMs of a flavor need: operators edit it here.

    The largest count of all patterns that match wins.
    """

    empty_note = (
        "No VM is owed a failover slot: ./run manage connect CLOUD proposes a policy "
        "(docs/first-day.md), or add one here."
    )
    form = PolicyForm
    list_display = ("flavor_pattern", "required_count", "position", "changed")
    search_fields = ("flavor_pattern",)
    fields = ("flavor_pattern", "required_count", "position", "flavors", "vms")
    readonly_fields = ("flavors", "vms")
    actions = None

    def save_model(self, request: HttpRequest, obj: FailoverPolicy, form: Any, change: Any) -> None:
        """Save through the service, which audits."""
        saved = save_policy(
            policy_id=obj.pk,
            pattern=obj.flavor_pattern,
            required_count=obj.required_count,
            position=obj.position,
            actor=request_actor(request),
            request_id=request_id_of(request),
        )
        obj.pk = saved.pk

    def delete_model(self, request: HttpRequest, obj: FailoverPolicy) -> None:
        """Remove through the service, which audits."""
        remove_policy(
            policy_id=obj.pk, actor=request_actor(request), request_id=request_id_of(request)
        )

    changed = column("updated_at", "changed")

    @admin.display(description="matching flavors")
    def flavors(self, row: FailoverPolicy) -> str:
        """Show which flavors match now."""
        if not row.flavor_pattern:
            return NOTHING
        names = _preview(row).flavors
        more = f" and {len(names) - FLAVORS_SHOWN} more" if len(names) > FLAVORS_SHOWN else ""
        return ", ".join(names[:FLAVORS_SHOWN]) + more or NOTHING

    vms = shown(
        "VMs",
        lambda row: str(_preview(row).vms) if row.flavor_pattern else NOTHING,
    )


def _preview(row: FailoverPolicy) -> PatternPreview:
    """Return what a row's pattern would mean, counted once a page: it asks for each many times."""
    known: dict[str, PatternPreview] = row.__dict__.setdefault("_previews", {})
    if row.flavor_pattern not in known:
        known[row.flavor_pattern] = preview_pattern(row.flavor_pattern)
    return known[row.flavor_pattern]


@admin.action(description="Let the next run remove what the brake holds", permissions=["confirm"])
def confirm_brakes(
    _: admin.ModelAdmin[FailoverZone], request: HttpRequest, rows: QuerySet[FailoverZone]
) -> None:
    """Confirm the brakes of zones, one by one."""
    for row in rows:
        try:
            confirm_removal(
                row.zone,
                actor=request_actor(request),
                request_id=request_id_of(request),
                now=database_now(),
            )
        except NoBrake as refused:
            messages.warning(request, refused.message)
        else:
            messages.success(request, f"{row.zone}: the next run removes what it finds")


@admin.register(FailoverZone)
class FailoverZoneAdmin(SystemOwnedAdmin[FailoverZone]):
    """Zones as the loop remembers them; a brake is confirmed here."""

    owner_note = (
        "Written by the loop. A brake holds everything that a run would remove; where the data "
        "is right after all, confirm it, and the next run goes through once."
    )
    empty_note = (
        "The loop has run in no zone yet: it does once there are hosts (./run serve worker, ./run "
        "serve beat)."
    )
    list_display = ("zone", "brake", "braked", "confirmed_by", "run_count", "vm_count", "due")
    search_fields = ("zone",)
    actions = (confirm_brakes,)  # type: ignore[assignment]  # the one action of this page
    page_columns = (
        "zone",
        "brake_reason",
        "brake_facts",
        "braked_at",
        "confirmed_at",
        "confirmed_by",
        "run_count",
        "vm_count",
        "next_run_at",
    )

    def has_confirm_permission(self, request: HttpRequest) -> bool:
        """Whether the user may let a run remove what the brake holds."""
        return bool(request.user.has_perm("failover.change_failoverzone"))

    @admin.display(description="brake", ordering="brake_reason")
    def brake(self, row: FailoverZone) -> SafeString:
        """Say whether the brake holds."""
        if row.brake_reason:
            return badge("bad", row.brake_reason)
        return badge("ok", "off")

    braked = column("braked_at", "since")
    due = column("next_run_at", "next run")
