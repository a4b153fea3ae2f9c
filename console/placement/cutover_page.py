"""Where a move from another Placement to our tables stands (docs/gateway.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from console.base import PageData, time_tag
from console.links import list_url
from console.pages import check_view, show_page
from core.text import NOTHING, count_text, plural
from placement.cutover.status import status_facts
from placement.models import Phase, ResourceProvider

#: What a phase means, in a sentence; what to do next.
SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    Phase.OFF: (
        "No cut-over is on",
        "Everything is where the settings say. placement_cutover plan tells what would move.",
    ),
    Phase.COPYING: (
        "The other Placement answers, and is copied",
        "placement_cutover verify compares both sides; switch makes Headroom the truth.",
    ),
    Phase.CLOSING: ("Switching", "Writes are held, for less than a second."),
    Phase.SWITCHED: (
        "Headroom answers, and is mirrored back",
        "placement_cutover rollback makes the other Placement the truth again.",
    ),
    Phase.PARTED: (
        "Each side answers for its own hosts",
        "placement_cutover switch and rollback move hosts, aggregates, zones, or all that is left.",
    ),
    Phase.PARTING: ("Hosts change sides", "Writes are held, for less than a second."),
    Phase.RETURNING: ("Rolling back", "Writes are held, for less than a second."),
}


def cutover_page() -> PageData:
    """Return where it stands, what is left, and what went wrong."""
    facts = status_facts()
    title, sentence = SENTENCES[facts["phase"]]
    refused, error = facts["refused_writes"], facts["last_error"]
    tone, icon = ("idle", "info") if facts["phase"] == Phase.OFF else ("ok", "check_circle")
    if error:
        tone, icon, sentence = "warn", "warning", f"The last step stopped: {error}"
    if refused:
        tone, icon = "bad", "error"
        sentence = f"{plural(len(refused), 'write')} refused by the other Placement."
    return PageData(
        tone=tone,
        icon=icon,
        title=title,
        sentence=sentence,
        lines=_lines(facts),
        refused=refused,
        error=error,
        parts=[
            PageData(
                zone=part["zone"],
                ours=count_text(part["trees_of_ours"]),
                trees=count_text(part["trees"]),
            )
            for part in facts["parts"]
        ],
    )


def _lines(facts: Mapping[str, Any]) -> list[PageData]:  # Any: facts of several kinds
    moments = (
        ("Copying began", facts["began_at"]),
        ("Switched", facts["switched_at"]),
        ("Oldest write to mirror", facts["oldest_write_to_mirror"]),
        ("Last error", facts["last_error_at"]),
    )
    counts = (
        ("Copied providers", facts["copied_providers"], "providers that are copies"),
        ("Consumers", facts["consumers"], "consumers in our tables"),
        ("Trees", facts["trees"], "trees of providers, a host each as a rule, on both sides"),
        ("Trees of ours", facts["trees_of_ours"], "those for which Headroom answers"),
        ("Consumers of both", facts["consumers_of_both"], "hold something of either side"),
        (
            "Writes of both",
            facts["writes_of_both_under_way"],
            "writes about both sides that the other Placement does just now",
        ),
        ("Writes under way", facts["writes_under_way"], "writes handed on, without an answer yet"),
        ("Writes to mirror", facts["writes_to_mirror"], "writes the other Placement has not yet"),
    )
    return [
        *(
            PageData(name=name, told=count_text(count), meaning=meaning)
            for name, count, meaning in counts
        ),
        PageData(
            name="Due",
            told=", ".join(facts["due"]) or NOTHING,
            meaning="what may differ there and is read again",
        ),
        PageData(
            name="Moved without us",
            told=facts["moved_without_us"] or NOTHING,
            meaning="a provider that somebody changed over there past Headroom",
        ),
        *(
            PageData(name=name, told=time_tag(moment) if moment else NOTHING, meaning="")
            for name, moment in moments
        ),
    ]


def cutover_url(site: AdminSite) -> URLPattern:
    """Return the path of the page, for the admin of providers."""

    def shown(request: HttpRequest) -> HttpResponse:
        check_view(request, ResourceProvider)
        return show_page(
            request,
            "admin/cutover_page.html",
            title="Cut-over",
            model=ResourceProvider,
            page=cutover_page(),
            crumbs=(("Providers", list_url("placement.resourceprovider")), ("Cut-over", "")),
        )

    return path("cutover/", site.admin_view(shown), name="placement_resourceprovider_cutover")
