"""Admin of the loop's runs, of VMs without slots, and of events."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.base import (
    SystemOwnedAdmin,
    badge,
    column,
    counts_block,
    link,
    shown,
    since_filter,
    time_tag,
    verdict,
    wrapped,
)
from console.failover.loss import hosts_text, vm_names, with_vm_and_host
from console.hosts.columns import FoundByName, ZoneFilter, with_vm_name
from console.links import list_url
from console.names import names_of
from console.pages import set_crumbs
from core.text import NOTHING, duration_text, moment_text, plural
from failover.choices import RunOutcome
from failover.models import FailoverDecision, FailoverEvent, FailoverRun
from failover.services.replanning import ReplanOutcome, replan_vm
from hosts.models import Instance
from journal.errors import HeadroomError
from journal.middleware import request_id_of

MOST_REPLANNED = 50
OUTCOME_WORDS = {
    ReplanOutcome.COVERED: "has all its slots",
    ReplanOutcome.SHORT: "still lacks slots",
    ReplanOutcome.NOT_NEEDED: "needs none now",
    ReplanOutcome.SPOILED: "others got in the way, the loop tries again",
    ReplanOutcome.SKIPPED: "the loop is at work in its zone",
    ReplanOutcome.HALTED: "the brake of its zone is on",
}

OUTCOME_TONES = {
    RunOutcome.DONE: "ok",
    RunOutcome.RUNNING: "warn",
    RunOutcome.HALTED: "bad",
    RunOutcome.FAILED: "bad",
}


@admin.register(FailoverRun)
class FailoverRunAdmin(SystemOwnedAdmin[FailoverRun]):
    """Runs of the failover loop, newest first."""

    owner_note = "Written by the loop, one row for each run in a zone."
    empty_note = (
        "The loop has not run yet: it does once there are hosts (./run serve worker, ./run serve "
        "beat); ./run manage reconcile_failover runs it now."
    )
    list_display = (
        "zone",
        "outcome_column",
        "started",
        "took",
        "missing",
        "created",
        "reused",
        "failed",
        "changed",
        "deleted",
    )
    list_filter = (ZoneFilter, "outcome", "is_dry_run")
    search_fields = ("zone", "=request_id")
    ordering = ("-id",)
    page_columns = (
        "zone",
        "number",
        "outcome_column",
        "is_dry_run",
        "started_at",
        "finished_at",
        "counted",
        "error_code",
        "message",
        "request_id",
    )

    @admin.display(description="outcome", ordering="outcome")
    def outcome_column(self, row: FailoverRun) -> SafeString:
        """Say how the run ended."""
        tone = OUTCOME_TONES.get(RunOutcome(row.outcome), "idle")
        words = row.get_outcome_display() + (" (dry run)" if row.is_dry_run else "")
        return badge(tone, words, row.message)

    def page_parts(self, request: HttpRequest, row: FailoverRun) -> dict[str, Any]:
        """Show how the run ended, in a sentence."""
        name = f"{row.zone} {moment_text(row.started_at)}"
        set_crumbs(request, (("Failover runs", list_url(self.opts.label_lower)), (name, "")))
        tone = OUTCOME_TONES.get(RunOutcome(row.outcome), "idle")
        words = (
            f"{_count(row, 'vms_missing_failover')} VMs missed slots; "
            f"{_count(row, 'created')} slots made, {_count(row, 'reused')} shared, "
            f"{_count(row, 'failed')} found none."
        )
        return {
            "subtitle": name,
            "verdict": verdict(
                tone,
                f"Run {row.number} of {row.zone}: {row.get_outcome_display()}",
                row.message or words,
            ),
        }

    counted = shown("counts", lambda row: counts_block(row.counts))
    started = column("started_at", "started")
    took = shown(
        "took",
        lambda row: (
            NOTHING if row.finished_at is None else duration_text(row.finished_at - row.started_at)
        ),
    )
    missing = shown("VMs missing slots", lambda row: _count(row, "vms_missing_failover"))
    created = shown("created", lambda row: _count(row, "created"))
    reused = shown("reused", lambda row: _count(row, "reused"))
    failed = shown("failed", lambda row: _count(row, "failed"))
    changed = shown("changed", lambda row: _count(row, "reservations_updated"))
    deleted = shown("deleted", lambda row: _count(row, "reservations_deleted"))


def _count(row: FailoverRun, name: str) -> str:
    return f"{row.counts.get(name, 0):,}"


@admin.action(description="Plan these VMs now", permissions=["replan"])
def replan_now(
    _: admin.ModelAdmin[FailoverDecision], request: HttpRequest, rows: QuerySet[FailoverDecision]
) -> None:
    """Plan some VMs without waiting for the loop, and say what became of each."""
    uuids = list(rows.values_list("vm_uuid", flat=True)[: MOST_REPLANNED + 1])
    names = vm_names(uuids)
    for vm_uuid in uuids[:MOST_REPLANNED]:
        name = names.get(vm_uuid, vm_uuid)
        try:
            done = replan_vm(vm_uuid, request_id=request_id_of(request))
        except HeadroomError as problem:
            messages.warning(request, f"{name}: {problem.message}")
            continue
        words = f"{name}: {OUTCOME_WORDS[done.outcome]}"
        if done.outcome == ReplanOutcome.COVERED:
            messages.success(request, words)
        else:
            messages.warning(request, f"{words} ({done.reason})" if done.reason else words)
    if len(uuids) > MOST_REPLANNED:
        messages.info(request, f"the first {MOST_REPLANNED} were planned, the loop does the others")


def lack_text(row: FailoverDecision) -> str:
    """Say how many failover slots a VM has of those it needs."""
    needed = plural(row.required_count, "failover slot")
    return f"has {row.current_count:,} of {needed}" if row.current_count else f"lacks {needed}"


@admin.register(FailoverDecision)
class FailoverDecisionAdmin(FoundByName[FailoverDecision], SystemOwnedAdmin[FailoverDecision]):
    """VMs that have fewer slots than they need, and why."""

    owner_note = "Written by the loop; a row goes once its VM has the slots it needs."
    empty_note = "Every VM has the slots it needs: nothing waits for a decision."
    list_display = ("vm", "zone", "host", "have", "reason_column", "since_column", "tried")
    list_filter = (ZoneFilter, "reason")
    search_fields = ("=vm_uuid",)
    search_help_text = "Whole uuid or name of the VM"
    named_columns = {"vm_uuid": Instance}
    ordering = ("zone", "since", "id")
    actions = (replan_now,)  # type: ignore[assignment]  # the one action of this page
    page_columns = (
        "vm",
        column("vm_uuid", "VM UUID"),
        "host",
        "zone",
        "have",
        "reason_column",
        "hosts_looked_at",
        "since",
        "tried",
        "run",
    )

    def page_parts(self, request: HttpRequest, row: FailoverDecision) -> dict[str, Any]:
        """Show what the VM lacks and why."""
        name = getattr(row, "vm_name", None) or row.vm_uuid
        set_crumbs(request, (("Failover decisions", list_url(self.opts.label_lower)), (name, "")))
        return {
            "subtitle": f"{name}: {lack_text(row)}",
            "verdict": verdict(
                "warn" if row.current_count else "bad",
                f"{name} {lack_text(row)}: {row.get_reason_display()}",
                format_html(
                    "Since {}{}.",
                    time_tag(row.since),
                    format_html(", tried last {}", time_tag(row.tried_at)) if row.tried_at else "",
                ),
            ),
        }

    def has_replan_permission(self, request: HttpRequest) -> bool:
        """Whether the user may have VMs planned."""
        return bool(request.user.has_perm("failover.change_failoverdecision"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[FailoverDecision]:
        """Read decisions with the names of their VMs and of the hosts that these are on."""
        return with_vm_and_host(super().get_queryset(request))

    vm = link("vm", "vm_uuid", "VM", words="vm_name")
    host = link("host", "host_name", "on host", ordering="")
    have = shown(
        "slots", lambda row: f"{row.current_count} of {row.required_count}", "current_count"
    )

    @admin.display(description="why", ordering="reason")
    def reason_column(self, row: FailoverDecision) -> SafeString:
        """Say why it lacks slots."""
        tone = "bad" if not row.current_count else "warn"
        return badge(tone, row.get_reason_display(), row.reason)

    hosts_looked_at = shown("hosts looked at", lambda row: hosts_text(row.facts))
    since_column = column("since", "since")
    tried = column("tried_at", "last tried")


@admin.register(FailoverEvent)
class FailoverEventAdmin(FoundByName[FailoverEvent], SystemOwnedAdmin[FailoverEvent]):
    """What happened to slots and coverage, newest first."""

    owner_note = "Append-only; forgotten after HEADROOM_FAILOVER__EVENT_RETENTION_DAYS."
    empty_note = (
        "Nothing happened yet: the loop makes slots for VMs that a policy names (docs/failover.md)."
    )
    list_display = ("when", "reason_column", "zone", "reservation_name", "host", "vm", "words")
    list_filter = (since_filter("happened_at", "happened in"), ZoneFilter, "reason", "is_warning")
    search_fields = ("=reservation_name", "=vm_uuid", "=host_name", "=request_id")
    search_help_text = "Whole name of the slot, host or VM, uuid of the VM or request id"
    named_columns = {"vm_uuid": Instance}
    names_in = ("message",)
    ordering = ("-id",)
    page_columns = (
        "happened_at",
        "reason_column",
        "zone",
        "reservation_name",
        "host",
        "vm",
        "words",
        "facts",
        "request_id",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[FailoverEvent]:
        """Read events with the names of their VMs, which are known while the VMs are there."""
        return with_vm_name(super().get_queryset(request))

    when = shown("when", lambda row: time_tag(row.happened_at), "id")
    reason_column = shown(
        "what",
        lambda row: badge("bad" if row.is_warning else "ok", row.get_reason_display(), row.reason),
        "reason",
    )
    host = link("host", "host_name", "host")
    vm = link("vm", "vm_uuid", "VM", words="vm_name")
    words = shown("message", lambda row: wrapped(names_of(row).linked(row.message)), "message")
