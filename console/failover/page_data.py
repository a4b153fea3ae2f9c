"""What the pages of drills and coverage show (spec failover, 14.4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.safestring import SafeString

from console.base import PageData, find_url, list_url
from console.failover.pictures import HeatHost, Share, heat_map, share_bar
from core.text import memory_short, percent_text
from failover.drill_models import CoverageAccount, DrillScope, FailureDrill
from failover.models import FailoverDecision
from failover.selectors.coverage import FlavorCoverage, coverage_by_flavor

MOST_CELLS = 3000
REASON_WORDS = {
    "no_slots": "without any slot",
    "all_slot_hosts_failed": "all hosts of their slots fail with them",
    "outnumbered": "others take their slots",
    "not_fit": "their slots are too small or on full hosts",
}


def drill_page(row: FailureDrill) -> PageData:
    """Return the page of a drill."""
    worst: list[dict[str, Any]] = row.worst
    most = max((case["affected_vms"] for case in worst), default=1)
    is_safe = not row.unprotected_vms
    heat, note = _heat(row)
    proven = row.cases - row.simulated
    words = f"{row.cases:,} failures were looked at"
    if proven > 0:
        words += f", of which the rules prove {proven:,} harmless"
    return PageData(
        tone="ok" if is_safe else "bad",
        icon="check_circle" if is_safe else "error",
        title=(
            "Every VM has a slot to go to"
            if is_safe
            else f"{row.unprotected_vms:,} of {row.vms:,} VMs would have no slot to go to"
        ),
        sentence=f"{row.get_scope_display().capitalize()} in {row.zone}: {words}.",
        cases=tuple(_case(row, case, most) for case in worst),
        hidden_cases=0,
        heat=heat,
        heat_note=note,
    )


def _case(row: FailureDrill, case: dict[str, Any], most: int) -> PageData:
    unprotected, affected = case["unprotected_vms"], case["affected_vms"]
    reasons = ", ".join(
        f"{count:,} {REASON_WORDS.get(reason, reason)}" for reason, count in case["reasons"].items()
    )
    listed: list[str] = case["vms"]
    return PageData(
        name=case["name"],
        url=find_url("host", case["name"]) if row.scope == DrillScope.HOST else "",
        affected=affected,
        unprotected=unprotected,
        bar=share_bar(
            (
                Share(kind="covered", vms=affected - unprotected, words="have a slot"),
                Share(kind="bare", vms=unprotected, words="have none"),
            ),
            whole=most,
            title=f"Loss of {case['name']}",
        ),
        reasons=reasons,
        vms=tuple((uuid, find_url("vm", uuid)) for uuid in listed),
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
    """Return the page of a zone's coverage, as it is now."""
    flavors = [one for one in coverage_by_flavor() if one.zone == row.zone]
    latest = (
        FailureDrill.objects.filter(zone=row.zone, scope=DrillScope.HOST).order_by("-id").first()
    )
    heat, note = _heat(latest)
    reasons: dict[str, int] = {}
    for reason in FailoverDecision.objects.filter(zone=row.zone).values_list("reason", flat=True):
        reasons[reason] = reasons.get(reason, 0) + 1
    return PageData(
        facts=(*_facts(row), *_blast_facts(latest)),
        classes=tuple(_class(one) for one in _worst_first(flavors)),
        reasons=tuple(sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))),
        decisions_url=list_url("failover.failoverdecision", zone__exact=row.zone),
        heat=heat,
        heat_note=note,
        drills_url=list_url("failover.failuredrill", zone__exact=row.zone),
    )


def _facts(row: CoverageAccount) -> tuple[tuple[str, str, str], ...]:
    decisions = list_url("failover.failoverdecision", zone__exact=row.zone)
    return (
        ("VMs that slots are owed to", f"{row.owed_vms:,}", ""),
        ("of these uncovered", f"{row.uncovered_vms:,}", decisions),
        ("covered time", objective_text(row), ""),
        ("reserved", memory_short(row.reserved_memory_bytes), ""),
        (
            "reserved, of VM memory",
            percent_text(row.reserved_memory_bytes, row.vm_memory_bytes),
            "",
        ),
        (
            "lower bound",
            memory_short(row.lower_bound_bytes) if row.bounded_at else "not computed yet",
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
        memory=memory_short(row.memory_bytes),
        share=percent_text(row.covered_vms, row.vms),
    )


def coverage_bar(covered: int, partly: int, bare: int, title: str) -> SafeString:
    """Draw how many VMs have all, some or none of their slots."""
    return share_bar(
        (
            Share(kind="covered", vms=covered, words="have all their slots"),
            Share(kind="partly", vms=partly, words="have some of their slots"),
            Share(kind="bare", vms=bare, words="have no slot"),
        ),
        whole=covered + partly + bare,
        title=title,
    )
