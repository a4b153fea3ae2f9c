"""Admin of evacuation plans and their moves."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from console.base import (
    AnswerFilter,
    PageData,
    SystemOwnedAdmin,
    badge,
    column,
    link,
    verdict,
)
from console.hosts.columns import FoundByName, ZoneFilter, with_vm_name
from console.links import find_link, list_url, text_link
from console.pages import set_crumbs
from core.text import NOTHING, plural
from failover.choices import Unsaved, reason_words
from failover.drill_models import EvacuationMove, EvacuationPlan, EvacuationState, MoveState
from hosts.models import Instance

HOSTS_NAMED: Final = 2
MOVE_TONES = {
    MoveState.PLANNED: "warn",
    MoveState.STARTED: "warn",
    MoveState.ARRIVED: "ok",
    MoveState.UNPROTECTED: "bad",
}


def plan_name(row: EvacuationPlan) -> str:
    """Return what a plan is about: the hosts that died."""
    shown = ", ".join(row.failed_hosts[:HOSTS_NAMED])
    more = len(row.failed_hosts) - HOSTS_NAMED
    return f"Evacuation of {shown or 'no host'}" + (f" and {more:,} more" if more > 0 else "")


def plan_verdict(row: EvacuationPlan, name: str) -> PageData:
    """Say how many VMs have arrived and how many have no slot to go to."""
    moves, arrived, lost = (
        getattr(row, f"{one}_count", 0) for one in ("move", "arrived", "unprotected")
    )
    sentence = f"{arrived:,} of {plural(moves, 'VM')} arrived"
    is_open = row.state == EvacuationState.OPEN
    rest = moves - arrived - lost
    if rest and not is_open:
        sentence += f", {rest:,} went elsewhere or needed no move"
    sentence += f", {lost:,} without a slot to go to." if lost else "; each had a slot to go to."
    return verdict(
        "bad" if lost else "warn" if is_open else "ok",
        f"{name}: {row.get_state_display()}",
        sentence if moves else "No VM was on it.",
    )


@admin.register(EvacuationPlan)
class EvacuationPlanAdmin(SystemOwnedAdmin[EvacuationPlan]):
    """Who goes where when hosts died, newest first."""

    owner_note = "Planned when a host is down, or when Nova first asks for one of its VMs."
    empty_note = "No host is lost: a plan is made when one goes down."
    list_display = ("zone", "state_column", "hosts", "moves", "unprotected", "started")
    list_filter = (ZoneFilter, "state")
    search_fields = ("zone", "=request_id")
    ordering = ("-id",)
    page_columns = (
        "zone",
        "state_column",
        "hosts",
        "moves",
        "unprotected",
        "started_at",
        "changed_at",
        "finished_at",
        "request_id",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[EvacuationPlan]:
        """Read plans with counts of their moves."""
        counted: QuerySet[EvacuationPlan] = (
            super()
            .get_queryset(request)
            .annotate(
                move_count=Count("moves"),
                unprotected_count=Count("moves", filter=Q(moves__state=MoveState.UNPROTECTED)),
                arrived_count=Count("moves", filter=Q(moves__state=MoveState.ARRIVED)),
            )
        )
        return counted

    def page_parts(self, request: HttpRequest, row: EvacuationPlan) -> dict[str, Any]:
        """Show how far it is, and who has nowhere to go."""
        name = plan_name(row)
        set_crumbs(request, (("Evacuation plans", list_url(self.opts.label_lower)), (name, "")))
        return {"subtitle": name, "verdict": plan_verdict(row, name)}

    @admin.display(description="state", ordering="state")
    def state_column(self, row: EvacuationPlan) -> SafeString:
        """Say whether it is under way."""
        is_open = row.state == EvacuationState.OPEN
        return badge("warn" if is_open else "ok", row.get_state_display())

    @admin.display(description="dead hosts")
    def hosts(self, row: EvacuationPlan) -> SafeString | str:
        """Link to the hosts."""
        links = [str(find_link("host", name)) for name in row.failed_hosts]
        return SafeString(", ".join(links)) if links else NOTHING

    @admin.display(description="VMs", ordering="move_count")
    def moves(self, row: EvacuationPlan) -> SafeString:
        """Link to the moves."""
        url = list_url("failover.evacuationmove", plan__id__exact=row.pk)
        return text_link(url, f"{getattr(row, 'move_count', 0):,}")

    @admin.display(description="without a slot", ordering="unprotected_count")
    def unprotected(self, row: EvacuationPlan) -> SafeString | str:
        """Count the VMs that have no slot."""
        count = getattr(row, "unprotected_count", 0)
        return badge("bad", f"{count:,}") if count else NOTHING

    started = column("started_at", "started")


class WhyFilter(AnswerFilter):
    """Moves by why there is no slot."""

    title = "why there is no slot"
    parameter_name = "reason"
    answers = {code: (words, partial(Q, reason=code)) for code, words in Unsaved.choices}


@admin.register(EvacuationMove)
class EvacuationMoveAdmin(FoundByName[EvacuationMove], SystemOwnedAdmin[EvacuationMove]):
    """VMs of dead hosts and the slots chosen for them."""

    owner_note = EvacuationPlanAdmin.owner_note
    empty_note = "No host is lost: moves come with the plan of one that goes down."
    list_display = (
        "vm",
        "state_column",
        "why",
        "from_host",
        "target_host",
        "reservation_name",
        "changed",
    )
    list_filter = ("state", WhyFilter)
    search_fields = ("=vm_uuid", "=reservation_name")
    search_help_text = "Whole uuid or name of the VM, or whole name of the slot"
    named_columns = {"vm_uuid": Instance}
    list_select_related = ("from_host", "target_host")
    ordering = ("-plan", "vm_uuid")
    page_columns = (
        "plan",
        "vm",
        "state_column",
        "from_host",
        "target_host",
        "reservation_name",
        "is_private",
        "why",
        "changed_at",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[EvacuationMove]:
        """Read moves with the names of their VMs, which are known while the VMs are there."""
        return with_vm_name(super().get_queryset(request))

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Let plans link to their moves."""
        if lookup == "plan__id__exact":
            return True
        allowed: bool = super().lookup_allowed(lookup, value, request)
        return allowed

    vm = link("vm", "vm_uuid", "VM", words="vm_name")

    @admin.display(description="state", ordering="state")
    def state_column(self, row: EvacuationMove) -> SafeString:
        """Say what became of it."""
        tone = MOVE_TONES.get(MoveState(row.state), "idle")
        return badge(tone, row.get_state_display())

    @admin.display(description="why there is no slot", ordering="reason")
    def why(self, row: EvacuationMove) -> str:
        """Say why it has none."""
        return reason_words(row.reason) if row.reason else NOTHING

    changed = column("changed_at", "changed")
