"""The action on hosts that asks whether they may be drained together."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from console.base import PageData
from console.failover.loss import vm_names
from console.links import find_url, list_url, row_url
from console.names import Names
from console.pages import answered, seen_row, show_page
from core.text import gib_text, time_text
from failover.domain.drain_window import SafeWindow
from failover.selectors.drain import DrainAnswer, check_drain
from hosts.models import Host
from journal.clock import database_now
from journal.errors import HeadroomError
from journal.heavy import computed_apart, heavy_question

KIND_WORDS = {"vm": "VM", "committed_slot": "committed slot", "failover_slot": "failover slot"}
BLOCKER_WORDS = {
    "commitment_stranded": "Slots of commitments fit nowhere else.",
    "vm_stuck": "VMs fit nowhere else.",
    "coverage_lost": "Failover slots cannot be made again, or VMs would be left without any.",
}


@admin.action(description="May these be drained?", permissions=["view"])
def check_drain_action(
    model_admin: admin.ModelAdmin[Host], request: HttpRequest, queryset: QuerySet[Host]
) -> HttpResponse | None:
    """Show what would move, what cannot, and when it is safe; nothing is changed."""
    names = list(queryset.values_list("name", flat=True))
    try:
        answer = _asked(*names)
    except HeadroomError as error:
        model_admin.message_user(request, error.message, messages.ERROR)
        return None
    return show_page(
        request,
        "admin/drain_page.html",
        title="May these hosts be drained?",
        model=Host,
        page=PageData(**drain_page(answer)),
        crumbs=(("Hosts", list_url("hosts.host")), ("Drain", "")),
    )


def drain_page(answer: DrainAnswer) -> dict[str, Any]:
    """Return what the page of an answer shows."""
    report, window = answer.report, answer.window
    names = vm_names(
        {
            *(row.key for row in report.stuck if row.kind.value == "vm"),
            *(move.key for move in report.moves if move.kind.value == "vm"),
            *(row.vm for row in report.weakened),
        }
    )
    promised = Names(report.stranded_commitments)
    when = _when(window, is_safe=report.is_safe)
    return {
        "problem": "",
        "tone": "ok" if report.is_safe else "bad",
        "icon": "check_circle" if report.is_safe else "error",
        "title": "Safe to drain" if report.is_safe else "Not safe to drain",
        "hosts": [(name, find_url("host", name)) for name in report.hosts],
        "blockers": [BLOCKER_WORDS[blocker.value] for blocker in report.blockers],
        "when": when,
        "stranded": [
            {
                "commitment": promised.of("commitment", uuid) or uuid,
                "url": find_url("commitment", uuid),
                "slots": len(slots),
                "memory": gib_text(sum(slot.memory_bytes for slot in slots)),
            }
            for uuid, slots in report.stranded_commitments.items()
        ],
        "stuck": [
            {
                "kind": KIND_WORDS[row.kind.value],
                "key": names.get(row.key, row.key),
                "key_url": _key_url(row.kind.value, row.key),
                "host": row.from_host,
                "memory": gib_text(row.memory_bytes),
                "reason": row.reason,
            }
            for row in report.stuck
        ],
        "weakened": [
            {
                "vm": names.get(row.vm, row.vm),
                "url": find_url("vm", row.vm),
                "words": f"{row.after} of {row.required} slots, {row.before} before",
            }
            for row in report.weakened
        ],
        "moves": [
            {
                "kind": KIND_WORDS[move.kind.value],
                "key": names.get(move.key, move.key),
                "key_url": _key_url(move.kind.value, move.key),
                "from": move.from_host,
                "to": move.to_host,
                "url": find_url("host", move.to_host),
            }
            for move in report.moves
        ],
    }


def _key_url(kind: str, key: str) -> str:
    return find_url("vm", key) if kind == "vm" else ""


def _when(window: SafeWindow | None, *, is_safe: bool) -> str:
    if window is None:
        return "Not before something changes: no end of a commitment and no planned host helps."
    now = database_now()
    if is_safe:
        start = "Now, as far as is known"
    else:
        start = (
            f"From {time_text(window.starts_at, now)}, when enough commitments have ended or "
            "planned hosts have come"
        )
    if window.ends_at is None:
        return f"{start}."
    return f"{start}, until {time_text(window.ends_at, now)}, when other hosts are to be drained."


def drain_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Show whether one host may be drained, when, and what would move where."""
    host = seen_row(request, Host, pk)
    answer, problem = answered(lambda: _asked(host.name))
    page = PageData(**drain_page(answer)) if answer is not None else PageData(problem=problem)
    return show_page(
        request,
        "admin/drain_page.html",
        title=f"May {host.name} be drained?",
        model=Host,
        page=page,
        crumbs=(
            ("Hosts", list_url("hosts.host")),
            (host.name, row_url(host)),
            ("Drain", ""),
        ),
    )


def _asked(*names: str) -> DrainAnswer:
    with heavy_question():
        return check_drain(names, now=database_now(), computed=computed_apart)
