"""Admin of compaction runs and of the checks that start them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from commitments.models import CompactionOutcome, CompactionRun, SlotCheck
from commitments.selectors.compaction import HostUse
from commitments.services.compaction import Compaction, compact_zone
from commitments.services.compaction_plans import PlannedCompaction, plan_zone
from console.base import SystemOwnedAdmin, badge, column, request_actor, shown
from console.hosts.columns import ZoneFilter
from console.links import find_url, list_url
from console.names import Names
from core.text import NOTHING, count_text, duration_text, gib_text, plural
from journal.clock import database_now
from journal.errors import NotReady
from journal.middleware import request_id_of

APPLY = "apply"
RUN_PERMISSION = "commitments.add_compactionrun"
TONES = {
    CompactionOutcome.DONE.value: "ok",
    CompactionOutcome.LIMITED.value: "ok",
    CompactionOutcome.BUSY.value: "warn",
    CompactionOutcome.ABANDONED.value: "warn",
    CompactionOutcome.REFUSED.value: "bad",
    CompactionOutcome.FAILED.value: "bad",
}
WHY_NOT_FREE = {
    HostUse.VMS: "VMs run there; Headroom does not move VMs",
    HostUse.IN_FLIGHT: "VMs are on their way there",
    HostUse.FAILOVER: "failover slots are there; their rebalancing is a matter of its own",
    HostUse.OTHER_SLOTS: (
        "slots there must stay: VMs are in them, they end soon, they are changing their host, "
        "their flavor is gone, or their group has a pipeline that does not pack"
    ),
    HostUse.NOT_READY: "they are not in service",
}


@admin.action(description="Which hosts could be freed?", permissions=["view"])
def free_hosts_action(
    model_admin: admin.ModelAdmin[SlotCheck], request: HttpRequest, rows: QuerySet[SlotCheck]
) -> HttpResponse | None:
    """Show what would move in zones and what that frees; do it when the page asks for it."""
    zones = list(rows.order_by("zone").values_list("zone", flat=True))
    may_run = request.user.has_perm(RUN_PERMISSION)
    if APPLY in request.POST and may_run:
        for zone in zones:
            _run(request, zone)
        return None
    try:
        plans = [plan_zone(zone, now=database_now()) for zone in zones]
    except NotReady as error:
        messages.error(request, error.message)
        return None
    context = {
        **model_admin.admin_site.each_context(request),
        "title": "Which hosts could be freed?",
        "opts": model_admin.opts,
        "zones": [plan_page(plan) for plan in plans],
        "may_run": may_run and any(plan.releases and not plan.refusal for plan in plans),
        "apply": APPLY,
        "action": free_hosts_action.__name__,
        "chosen_name": ACTION_CHECKBOX_NAME,
        "chosen": rows.values_list("pk", flat=True),
        "runs_url": list_url("commitments.compactionrun"),
    }
    return TemplateResponse(request, "admin/compaction_page.html", context)


def _run(request: HttpRequest, zone: str) -> None:
    done = compact_zone(
        zone,
        actor=request_actor(request),
        request_id=request_id_of(request),
        now=database_now(),
    )
    is_good = done.run is not None and TONES[done.run.outcome] == "ok"
    (messages.success if is_good else messages.warning)(request, f"{zone}: {_words_of(done)}")


def _words_of(done: Compaction) -> str:
    if done.run is None:
        return "another run is at work, look again later"
    hosts, moved = done.run.hosts_freed, done.run.slots_moved
    words = f"{plural(hosts, 'host')} freed, {plural(moved, 'slot')} moved"
    if done.run.hosts_refused:
        words += f"; others got in the way of {plural(done.run.hosts_refused, 'host')}"
    return f"{words}; {done.run.message}" if done.run.message else words


def plan_page(plan: PlannedCompaction) -> dict[str, Any]:
    """Return what the page of a zone's plan shows."""
    hosts = len(plan.releases)
    names = Names(move.commitment_uuid for release in plan.releases for move in release.moves)
    memory_bytes = sum(release.size.memory_bytes for release in plan.releases)
    if hosts:
        title = f"{plural(hosts, 'host')} would be free after {plural(plan.moves, 'move')}"
    else:
        title = "No host would be free"
    return {
        "zone": plan.zone,
        "refusal": plan.refusal,
        "tone": "bad" if plan.refusal else "ok",
        "icon": "error" if plan.refusal else "check_circle",
        "title": title,
        "frees": gib_text(memory_bytes) if hosts else "",
        "free_now": plan.uses.get(HostUse.FREE, 0),
        "free_then": plan.uses.get(HostUse.FREE, 0) + hosts,
        "reasons": _reasons(plan),
        "releases": [
            {
                "host": release.host_name,
                "url": find_url("host", release.host_name),
                "size": f"{gib_text(release.size.memory_bytes)}, "
                f"{count_text(release.size.vcpus, 'vCPUs')}",
                "moves": [
                    {
                        "slot": move.slot_index,
                        "commitment": names.of("commitment", move.commitment_uuid)
                        or move.commitment_uuid,
                        "commitment_url": find_url("commitment", move.commitment_uuid),
                        "memory": gib_text(move.size.memory_bytes),
                        "to": move.host_name,
                        "to_url": find_url("host", move.host_name),
                    }
                    for move in release.moves
                ],
            }
            for release in plan.releases
        ],
    }


def _reasons(plan: PlannedCompaction) -> list[tuple[str, int]]:
    """Return why the other hosts stay in use, with how many, the most frequent first."""
    reasons = [
        ("they hold empty slots alone, but these do not all fit elsewhere", plan.no_room),
        ("a run does not move so many slots; the next one goes on", plan.not_tried),
        *((words, plan.uses.get(use, 0)) for use, words in WHY_NOT_FREE.items()),
    ]
    return sorted(((words, count) for words, count in reasons if count), key=lambda row: -row[1])


@admin.register(CompactionRun)
class CompactionRunAdmin(SystemOwnedAdmin[CompactionRun]):
    """Runs that freed hosts, or found that they must not, newest first."""

    owner_note = (
        "Written by runs of HEADROOM_SLOTS__COMPACTION and of manage.py compact_slots. What a run "
        "would do now is asked on the list of slot checks."
    )
    empty_note = (
        "Slots were never moved together: set HEADROOM_SLOTS__COMPACTION, or ./run manage "
        "compact_slots --dry-run to see what would be."
    )
    list_display = ("zone", "result", "freed", "slots_moved", "started", "took", "actor")
    list_filter = (ZoneFilter, "outcome")
    search_fields = ("zone", "=request_id")
    ordering = ("-id",)
    page_columns = (
        "zone",
        "result",
        "message",
        "hosts_planned",
        "hosts_freed",
        "hosts_refused",
        "slots_moved",
        column("counts", "hosts by what they held"),
        "started_at",
        "finished_at",
        "actor",
        "request_id",
    )

    @admin.display(description="outcome", ordering="outcome")
    def result(self, row: CompactionRun) -> SafeString:
        """Say how the run ended."""
        if not row.outcome:
            return badge("warn", "running")
        return badge(TONES[row.outcome], row.get_outcome_display(), row.message)

    freed = shown(
        "hosts freed",
        lambda row: (
            f"{row.hosts_freed:,} of {row.hosts_planned:,}" if row.hosts_planned else NOTHING
        ),
        "hosts_freed",
    )
    started = column("started_at", "started")

    @admin.display(description="took")
    def took(self, row: CompactionRun) -> str:
        """Show how long it took."""
        if row.finished_at is None:
            return NOTHING
        return duration_text(row.finished_at - row.started_at)


@admin.register(SlotCheck)
class SlotCheckAdmin(SystemOwnedAdmin[SlotCheck]):
    """The last look at the slots of each zone."""

    owner_note = (
        "Written by the task that looks at slots. When a VM list shrank on purpose, accept it with "
        "manage.py verify_slots --accept-vm-list --zone ZONE; when so many hosts are really lost, "
        "with --accept-host-list. Choose zones and ask which hosts could be freed to see which "
        "empty slots would move."
    )
    empty_note = (
        "Slots were not looked at yet: a worker does it once a zone has some (./run serve worker, "
        "./run serve beat)."
    )
    actions = (free_hosts_action,)  # type: ignore[assignment]  # the one action of this page
    list_display = (
        "zone",
        "belief",
        "listed_vms",
        "host_belief",
        column("checked_at", "last change"),
        column("fully_checked_at", "last full look"),
        "found",
    )
    list_filter = ("is_refused",)
    search_fields = ("zone",)
    page_columns = (
        "zone",
        "belief",
        "message",
        "listed_vms",
        "host_belief",
        "host_refusal",
        "checked_at",
        "fully_checked_at",
        "counts",
    )

    @admin.display(description="VM list", ordering="is_refused")
    def belief(self, row: SlotCheck) -> SafeString:
        """Show whether the VM list is believed."""
        if row.is_refused:
            return badge("bad", "not believed", row.message)
        return badge("ok", "believed")

    @admin.display(description="host list", ordering="host_refusal")
    def host_belief(self, row: SlotCheck) -> SafeString:
        """Show whether hosts that are down or gone count as lost."""
        if row.host_refusal:
            return badge("bad", "not believed", row.host_refusal)
        return badge("ok", "believed")

    @admin.display(description="found last")
    def found(self, row: SlotCheck) -> str:
        """Show the counts of the last run that found anything."""
        counts = [f"{name.replace('_', ' ')} {count}" for name, count in row.counts.items()]
        return ", ".join(counts) or NOTHING
