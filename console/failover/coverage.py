"""Admin and pages of coverage and of failure drills (spec failover, 14.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.base import (
    TONE_ICONS,
    PageData,
    SystemOwnedAdmin,
    badge,
    column,
    shown,
    time_tag,
    verdict,
)
from console.charts import HeatHost, Segment, heat_map, stacked_bar
from console.failover.loss import vm_names
from console.failover.trouble_page import trouble_page
from console.hosts.columns import ZoneFilter
from console.links import find_url, list_url, row_url, text_link
from core.text import count_text, gib_text, percent_text, plural
from failover.choices import Uncovered, reason_words
from failover.domain.drill_report import DrillScope
from failover.drill_models import CoverageAccount, FailureDrill, ShadowPlan
from failover.models import FailoverDecision
from failover.selectors.coverage import FlavorCoverage, kept_coverage
from failover.selectors.troubles import zone_troubles
from failover.services.orders import start_rebalancing
from journal.clock import database_now
from journal.errors import HeadroomError

MOST_CELLS = 3000


def drill_page(row: FailureDrill) -> PageData:
    """Return the page of a drill."""
    worst: list[dict[str, Any]] = row.worst
    most = max((case["affected_vms"] for case in worst), default=1)
    is_safe = not row.unprotected_vms
    names = vm_names({uuid for case in worst for uuid in case["vms"]})
    heat, note = _heat(row)
    proven = row.cases - row.simulated
    words = f"{row.cases:,} failures were looked at"
    if proven > 0:
        words += f", of which {proven:,} are proven harmless"
    tone = "bad" if not is_safe else "ok" if row.cases else "idle"
    return PageData(
        tone=tone,
        icon=TONE_ICONS[tone],
        title=(
            f"{row.unprotected_vms:,} of {row.vms:,} VMs would have no slot to go to"
            if not is_safe
            else "Every VM has a slot to go to"
            if row.cases
            else "There is no such failure to look at"
        ),
        sentence=f"{row.get_scope_display().capitalize()} in {row.zone}: {words}.",
        cases=tuple(_case(row, case, most, names) for case in worst),
        hidden_cases=0,
        heat=heat,
        heat_note=note,
    )


def _case(row: FailureDrill, case: dict[str, Any], most: int, names: Mapping[str, str]) -> PageData:
    unprotected, affected = case["unprotected_vms"], case["affected_vms"]
    reasons = ", ".join(
        f"{count:,} {reason_words(reason)}" for reason, count in case["reasons"].items()
    )
    listed: list[str] = case["vms"]
    return PageData(
        name=case["name"],
        url=find_url("host", case["name"]) if row.scope == DrillScope.HOST else "",
        affected=affected,
        unprotected=unprotected,
        bar=stacked_bar(
            (
                _share("covered", affected - unprotected, "have a slot"),
                _share("bare", unprotected, "have none"),
            ),
            capacity_units=most,
            title=f"Loss of {case['name']}",
        ),
        reasons=reasons,
        vms=tuple((names.get(uuid, uuid), find_url("vm", uuid)) for uuid in listed),
        hidden=unprotected - len(listed),
    )


def _heat(row: FailureDrill | None) -> tuple[SafeString, str]:
    if row is None or not row.hosts:
        return SafeString(""), ""
    hosts = [
        HeatHost(
            name=name,
            rack=rack,
            vms=vms,
            unprotected_vms=unprotected,
            slots=slots,
            slot_users=users,
            url=find_url("host", name),
        )
        for name, rack, vms, unprotected, slots, users in row.hosts
    ]
    hosts.sort(key=lambda host: (-host.unprotected_vms, -host.touched_vms, host.name))
    shown = hosts[:MOST_CELLS]
    note = "VMs that the loss of each host touches: those on it and those that lose a slot there"
    if len(shown) < len(hosts):
        note += f"; the {len(shown):,} worst of {len(hosts):,} hosts"
    return heat_map(shown), note


def coverage_page(row: CoverageAccount) -> PageData:
    """Return the page of a zone's coverage, as it was accounted."""
    latest = (
        FailureDrill.objects.filter(zone=row.zone, scope=DrillScope.HOST).order_by("-id").first()
    )
    heat, note = _heat(latest)
    decisions = FailoverDecision.objects.filter(zone=row.zone).order_by()
    reasons = dict(decisions.values_list("reason").annotate(Count("pk")))
    words = dict(Uncovered.choices)
    return PageData(
        verdict=_verdict(row, latest),
        facts=(*_facts(row), *_blast_facts(latest)),
        accounted=time_tag(row.accounted_at),
        classes=tuple(_class(one) for one in _worst_first(kept_coverage(row))),
        reasons=tuple(
            (words.get(reason, reason), count)
            for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        ),
        decisions_url=list_url("failover.failoverdecision", zone__exact=row.zone),
        heat=heat,
        heat_note=note,
        drills_url=list_url("failover.failuredrill", zone__exact=row.zone),
    )


def _verdict(row: CoverageAccount, drill: FailureDrill | None) -> PageData:
    """Say whether VMs of the zone would be lost, as accounted, and as drilled last."""
    hosts = [] if drill is None else drill.hosts
    bad = sum(unprotected > 0 for _, _, _, unprotected, _, _ in hosts)
    drilled = (
        f"The last drill: the loss of {plural(bad, 'host')} of {len(hosts):,} would leave VMs "
        "without a slot."
        if bad
        else f"The last drill: no loss of one of {plural(len(hosts), 'host')} costs a VM its place."
        if hosts
        else "Not drilled yet."
    )
    if row.uncovered_vms:
        words = f"{row.uncovered_vms:,} of {plural(row.owed_vms, 'VM')} lack failover slots"
        return verdict("bad", f"{words} in {row.zone}", drilled)
    if not row.owed_vms:
        return verdict("idle", f"No VM in {row.zone} is owed a failover slot")
    title = f"Every VM in {row.zone} has the failover slots that are owed to it"
    return verdict("warn" if bad else "ok", title, drilled)


def _facts(row: CoverageAccount) -> tuple[tuple[str, str, str], ...]:
    decisions = list_url("failover.failoverdecision", zone__exact=row.zone)
    return (
        ("VMs that slots are owed to", f"{row.owed_vms:,}", ""),
        ("of these uncovered", f"{row.uncovered_vms:,}", decisions),
        ("covered time", objective_text(row), ""),
        ("reserved", gib_text(row.reserved_memory_bytes), ""),
        (
            "reserved, of VM memory",
            percent_text(row.reserved_memory_bytes, row.vm_memory_bytes),
            "",
        ),
        (
            "lower bound",
            gib_text(row.lower_bound_bytes) if row.bounded_at else "not computed yet",
            "",
        ),
    )


def _worst_first(flavors: Iterable[FlavorCoverage]) -> list[FlavorCoverage]:
    """Return flavors with most VMs without any slot first, then most that lack some, then names."""
    return sorted(flavors, key=lambda one: (-one.bare_vms, -one.uncovered_vms, one.flavor_name))


def _blast_facts(drill: FailureDrill | None) -> tuple[tuple[str, str, str], ...]:
    """Return what the picture of the hosts shows, in two figures."""
    if drill is None or not drill.hosts:
        return ()
    name, touched = max(
        ((name, vms + users) for name, _, vms, _, _, users in drill.hosts),
        key=lambda pair: (pair[1], pair[0]),
    )
    bad = sum(unprotected > 0 for _, _, _, unprotected, _, _ in drill.hosts)
    drills = list_url("failover.failuredrill", zone__exact=drill.zone)
    return (
        ("largest blast radius", f"{name}: {touched:,} VMs", find_url("host", name)),
        ("hosts whose loss leaves VMs without a slot", f"{bad:,} of {len(drill.hosts):,}", drills),
    )


def objective_text(row: CoverageAccount) -> str:
    """Return the share of VM time that was covered, with the precision of the objective."""
    if not row.owed_vm_seconds:
        return "nothing was owed yet"
    uncovered = row.uncovered_vm_seconds / row.owed_vm_seconds
    return f"{100 * (1 - uncovered):.3f} %"


def _class(row: FlavorCoverage) -> PageData:
    return PageData(
        flavor=row.flavor_name,
        required=row.required,
        row=row,
        bar=coverage_bar(row.covered_vms, row.partly_covered_vms, row.bare_vms, row.flavor_name),
        memory=gib_text(row.memory_bytes),
        share=percent_text(row.covered_vms, row.vms),
    )


def coverage_bar(covered: int, partly: int, bare: int, title: str) -> SafeString:
    """Draw how many VMs have all, some or none of their slots."""
    return stacked_bar(
        (
            _share("covered", covered, "have all their slots"),
            _share("partly", partly, "have some of their slots"),
            _share("bare", bare, "have no slot"),
        ),
        capacity_units=covered + partly + bare,
        title=title,
    )


def _share(kind: str, vms: int, words: str) -> Segment:
    return Segment(kind=kind, amount_units=vms, text=f"{vms:,}", label=words)


TROUBLES = "admin:failover_coverageaccount_troubles"


@admin.register(CoverageAccount)
class CoverageAccountAdmin(SystemOwnedAdmin[CoverageAccount]):
    """Coverage of each zone, and what it costs."""

    owner_note = "Accounted every minute from VMs and slots; the bound is computed every night."
    empty_note = (
        "Nothing is accounted yet: a worker does it every minute, once there are VMs. A failover "
        "policy says which of them are owed slots (docs/failover.md)."
    )
    change_form_before_template = "admin/coverage_page.html"
    list_display = (
        "zone",
        "coverage",
        "uncovered",
        "objective",
        "reserved",
        "share",
        "bound",
        "accounted",
    )
    list_filter = (ZoneFilter,)
    search_fields = ("zone",)
    page_columns = (
        "zone",
        column("owed_vm_seconds", "owed time of VMs"),
        column("uncovered_vm_seconds", "uncovered time of VMs"),
        "accounted_at",
        "bounded_at",
    )

    def page_parts(self, request: HttpRequest, row: CoverageAccount) -> dict[str, Any]:
        """Show coverage by class, why VMs lack slots, and hosts by blast radius."""
        return {
            "page": coverage_page(row),
            "troubles_url": reverse(TROUBLES, args=[row.pk]),
        }

    def get_urls(self) -> list[URLPattern]:
        """Add the page of broken rules and stale memberships."""
        troubles = path(
            "<int:key>/troubles/",
            self.admin_site.admin_view(self.troubles_view),
            name="failover_coverageaccount_troubles",
        )
        return [troubles, *super().get_urls()]

    def troubles_view(self, request: HttpRequest, key: int) -> HttpResponse:
        """Show what breaks the rules or is out of date, why, and what the loop will do.

        Raises:
            PermissionDenied: the user may not see coverage.
            Http404: there is no such zone.
        """
        row = self.get_object(request, str(key))
        if row is None:
            raise Http404
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": f"Broken rules and stale users in {row.zone}",
            "opts": self.opts,
            "page": trouble_page(zone_troubles(row.zone, now=database_now())),
            "back_url": row_url(row),
        }
        return TemplateResponse(request, "admin/trouble_page.html", context)

    @admin.display(description="coverage", ordering="uncovered_vms")
    def coverage(self, row: CoverageAccount) -> SafeString:
        """Draw how many VMs have all their slots."""
        bar = coverage_bar(row.owed_vms - row.uncovered_vms, 0, row.uncovered_vms, row.zone)
        share = percent_text(row.owed_vms - row.uncovered_vms, row.owed_vms)
        return format_html('<span class="hr-bar-cell">{} {}</span>', bar, share)

    @admin.display(description="uncovered VMs", ordering="uncovered_vms")
    def uncovered(self, row: CoverageAccount) -> SafeString:
        """Link to the VMs that lack slots."""
        url = list_url("failover.failoverdecision", zone__exact=row.zone)
        return text_link(url, f"{row.uncovered_vms:,} of {row.owed_vms:,}")

    objective = shown("covered time", objective_text)
    reserved = shown(
        "reserved", lambda row: gib_text(row.reserved_memory_bytes), "reserved_memory_bytes"
    )
    share = shown(
        "of VM memory", lambda row: percent_text(row.reserved_memory_bytes, row.vm_memory_bytes)
    )
    bound = shown(
        "lower bound",
        lambda row: gib_text(row.lower_bound_bytes) if row.bounded_at else "not computed yet",
        "lower_bound_bytes",
    )
    accounted = column("accounted_at", "accounted")


@admin.action(description="Plan these zones from scratch and carry it out", permissions=["start"])
def start_now(
    _: admin.ModelAdmin[ShadowPlan], request: HttpRequest, rows: QuerySet[ShadowPlan]
) -> None:
    """Tell the worker to rebalance zones now; their newest plans show the progress."""
    for zone in sorted(set(rows.values_list("zone", flat=True))):
        try:
            start_rebalancing(zone, None)
        except HeadroomError as problem:
            messages.error(request, f"{zone}: {problem.message}")
            continue
        messages.success(
            request, f"{zone}: the worker was told; the newest plan shows the progress"
        )


@admin.register(ShadowPlan)
class ShadowPlanAdmin(SystemOwnedAdmin[ShadowPlan]):
    """Plans made from scratch, and what they would save."""

    owner_note = (
        "Computed every night; carried out in small steps when it saves enough. "
        "manage.py rebalance_failover ZONE shows what would be done before it is."
    )
    empty_note = (
        "Nothing is planned yet: a worker does it every night, once failover slots are held; "
        "./run manage rebalance_failover ZONE does it now."
    )
    actions = (start_now,)  # type: ignore[assignment]  # the one action of this page
    list_display = ("zone", "computed", "state_column", "now", "then", "saving", "steps_done")
    list_filter = (ZoneFilter, "state")
    page_columns = (
        "zone",
        "state_column",
        "computed_at",
        "reserved_memory_bytes",
        "shadow_memory_bytes",
        "saving",
        "lower_bound_bytes",
        "vm_memory_bytes",
        "slot_count",
        "steps_done",
        "request_id",
    )

    def has_start_permission(self, request: HttpRequest) -> bool:
        """Whether the user may have zones rebalanced."""
        return bool(request.user.has_perm("failover.change_shadowplan"))

    computed = column("computed_at", "computed")

    @admin.display(description="state", ordering="state")
    def state_column(self, row: ShadowPlan) -> SafeString:
        """Say what became of it."""
        tone = {"proposed": "warn", "running": "warn", "done": "ok"}.get(row.state, "idle")
        return badge(tone, row.get_state_display())

    now = shown(
        "reserved now", lambda row: gib_text(row.reserved_memory_bytes), "reserved_memory_bytes"
    )
    then = shown(
        "from scratch", lambda row: gib_text(row.shadow_memory_bytes), "shadow_memory_bytes"
    )

    @admin.display(description="saving")
    def saving(self, row: ShadowPlan) -> str:
        """Show the difference as a share."""
        saved = row.reserved_memory_bytes - row.shadow_memory_bytes
        return percent_text(max(0, saved), row.reserved_memory_bytes)

    slot_count = shown("slots of the plan", lambda row: count_text(len(row.slots)))


@admin.register(FailureDrill)
class FailureDrillAdmin(SystemOwnedAdmin[FailureDrill]):
    """What the loss of hosts and racks would do, newest first."""

    owner_note = "Drilled every night from the rows; POST /api/v1/failover/simulations asks now."
    empty_note = (
        "Nothing was drilled yet: a worker does it every night, once there are hosts and VMs. "
        "What if this dies? asks now."
    )
    change_form_before_template = "admin/drill_page.html"
    list_display = ("zone", "scope", "result", "cases", "simulated", column("vms", "VMs"), "when")
    list_filter = (ZoneFilter, "scope")
    search_fields = ("zone", "=request_id")
    ordering = ("-id",)
    page_columns = (
        "zone",
        "scope",
        "cases",
        "simulated",
        column("vms", "VMs"),
        column("unprotected_vms", "unprotected VMs"),
        "started_at",
        "finished_at",
        "request_id",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[FailureDrill]:
        """Read drills without their details, which only pages need."""
        return super().get_queryset(request).defer("worst", "hosts")

    def page_parts(self, request: HttpRequest, row: FailureDrill) -> dict[str, Any]:
        """Show the result as a picture."""
        return {"page": drill_page(row)}

    @admin.display(description="result", ordering="unprotected_vms")
    def result(self, row: FailureDrill) -> SafeString:
        """Say whether every VM would have a slot."""
        if not row.unprotected_vms:
            return badge("ok", "all protected")
        return badge("bad", f"{row.unprotected_vms:,} VMs unprotected")

    when = column("started_at", "drilled")
