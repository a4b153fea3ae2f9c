"""The candidate explorer: a query, what it finds, what removed whom (spec placement, 10.3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from console.base import PageData
from console.charts import funnel_bar
from console.links import list_url, row_url
from console.pages import set_crumbs
from core.text import NOTHING, count_text, plural
from journal.heavy import ComputationTooLong, Length, TooManyComputations, heavy_question
from placement.domain.candidate_explain import MOST_COUNTED, Explanation
from placement.domain.candidate_funnel import FunnelStep, SlotFunnel
from placement.domain.candidate_query import UNSUFFIXED
from placement.domain.candidates import Candidates
from placement.domain.errors import BadRequest
from placement.domain.microversion import MAX_MINOR
from placement.domain.snapshot import Snapshot
from placement.models import ResourceProvider
from placement.selectors.candidates import explored_query
from placement.selectors.held import held_by_uuid

MOST_SHOWN = 20
_KINDS: Mapping[str, str] = {
    "inventory": "has {}",
    "room": "has room for {}",
    "held": "has {} that is not held",
    "required": "has trait {}",
    "forbidden": "has not trait {}",
    "member_of": "is in aggregate {}",
    "forbidden_aggregate": "is not in aggregate {}",
    "in_tree": "is in the tree of {}",
    "root_required": "its root has {}",
}

PLACEMENT_EMPTY = (
    "Nobody has written to Placement yet: nova-compute does once Headroom is its endpoint, "
    "./run manage placement_import copies what another Placement holds (docs/gateway.md)."
)


def candidate_page(query: str) -> PageData:
    """Return the page of a query, as it stands after the question mark of a request."""
    text = query.strip().removeprefix("?").replace("\n", "").replace("\r", "")
    if not text and not ResourceProvider.objects.exists():
        return PageData(
            query="",
            problem=PLACEMENT_EMPTY,
            tone="idle",
            icon="info",
            title="No provider is known",
        )
    if not text:
        return PageData(query="")
    try:
        with heavy_question(Length.SHORT):
            explored = explored_query(text, MAX_MINOR, limit=MOST_SHOWN)
    except (TooManyComputations, ComputationTooLong) as error:
        return PageData(
            query=text, problem=error.message, tone="warn", icon="error", title="Not now"
        )
    except BadRequest as error:
        return PageData(
            query=text, problem=error.message, tone="warn", icon="error", title="Not a query"
        )
    snapshot, explanation, found = explored
    roots = [tree.root for tree in explanation.nearest]
    used = {int(row) for column in found.columns for row in column}
    known = _providers([*roots, *(snapshot.uuid_of(row) for row in used)])
    count = explanation.candidates
    shown = f"{count_text(count)} or more" if count >= MOST_COUNTED else str(count)
    return PageData(
        query=text,
        tone="ok" if count else "bad",
        icon="check_circle" if count else "block",
        title=f"{shown} {'candidate' if count == 1 else 'candidates'}" if count else "No candidate",
        sentence=_sentence(explanation),
        funnels=[_funnel(explanation, part) for part in explanation.parts],
        remedies=[
            f"{' and '.join(remedy.changes)}: {plural(remedy.candidates, 'candidate')}"
            for remedy in explanation.remedies
        ],
        nearest=_nearest(explanation, known),
        candidates=_candidates(snapshot, found, known),
        candidates_note=f"the first {len(found)} of {shown}" if count > len(found) else "",
    )


def _sentence(explanation: Explanation) -> str:
    trees = plural(explanation.common_trees, "tree")
    if explanation.candidates:
        held = (
            f" On {count_text(explanation.held_trees)} of them only those find room whom it is "
            "held for."
            if explanation.held_trees
            else ""
        )
        every = count_text(explanation.trees)
        return f"{trees} of {every} can serve every part of the request.{held}"
    if explanation.common_trees:
        return f"{trees} could serve each part, but not all of them together."
    return f"None of {plural(explanation.trees, 'tree')} can serve every part of the request."


def _part_title(part: SlotFunnel) -> str:
    asked = ", ".join(f"{name}:{amount}" for name, amount in part.slot.resources.items())
    name = "Unsuffixed group" if part.slot.suffix == UNSUFFIXED else f"Group {part.slot.suffix}"
    return f"{name}: {asked or 'a provider without resources'}"


def _funnel(explanation: Explanation, part: SlotFunnel) -> PageData:
    started = explanation.providers
    lines = []
    for step in part.steps:
        title = _KINDS[step.constraint].format(step.asked.removeprefix("!"))
        lines.append(
            PageData(
                title=title,
                bar=funnel_bar(
                    before=step.left_providers + step.removed_providers,
                    remaining=step.left_providers,
                    started=started,
                    title=f"{title}: {_step_summary(step)}",
                ),
                summary=_step_summary(step),
                has_removed=step.removed_providers > 0,
            )
        )
    words = plural(started, "provider")
    return PageData(
        title=_part_title(part),
        start_bar=funnel_bar(before=started, remaining=started, started=started, title=words),
        started=words,
        steps=lines,
    )


def _step_summary(step: FunnelStep) -> str:
    left = f"{plural(step.left_providers, 'provider')} in {plural(step.left_trees, 'tree')}"
    return f"-{count_text(step.removed_providers)}, {left}" if step.removed_providers else left


def _nearest(explanation: Explanation, known: Mapping[str, PageData]) -> Sequence[PageData]:
    if explanation.candidates:
        return ()
    held = held_by_uuid([tree.root for tree in explanation.nearest])
    titles = [_part_title(part) for part in explanation.parts]
    return [
        PageData(
            provider=known.get(tree.root, PageData(name=tree.root, url="")),
            options=", ".join(str(count) for count in tree.options),
            missing="; ".join(titles[number] for number in tree.missing) or NOTHING,
            held=f"{held[tree.root].vcpus} VCPU, {held[tree.root].memory_mib} MEMORY_MB"
            if tree.root in held
            else NOTHING,
        )
        for tree in explanation.nearest
    ]


def _candidates(
    snapshot: Snapshot, found: Candidates, known: Mapping[str, PageData]
) -> Sequence[Sequence[PageData]]:
    lines = []
    for number in range(len(found)):
        amounts: dict[str, dict[str, int]] = {}
        for slot, column in zip(found.slots, found.columns, strict=True):
            mine = amounts.setdefault(snapshot.uuid_of(int(column[number])), {})
            for name, amount in slot.resources.items():
                mine[name] = mine.get(name, 0) + amount
        lines.append(
            [
                PageData(
                    name=known[uuid].name if uuid in known else uuid,
                    url=known[uuid].url if uuid in known else "",
                    amounts=", ".join(f"{name} {amount}" for name, amount in asked.items()),
                )
                for uuid, asked in amounts.items()
            ]
        )
    return lines


def _providers(uuids: Collection[str]) -> Mapping[str, PageData]:
    rows = ResourceProvider.objects.filter(uuid__in=set(uuids)).only("uuid", "name")
    return {str(row.uuid): PageData(name=row.name, url=row_url(row)) for row in rows}


QUERY_FIELD = "query"
PERMISSION = "placement.view_resourceprovider"
EXAMPLE = "resources=VCPU:2,MEMORY_MB:4096&required=!COMPUTE_STATUS_DISABLED"


def candidate_explorer_url(site: AdminSite) -> URLPattern:
    """Return the path of the explorer, for the admin of providers."""

    def explorer(request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        context = {
            **site.each_context(request),
            "title": "Candidate explorer",
            "opts": ResourceProvider._meta,  # noqa: SLF001 - Django's documented model API
            "page": candidate_page(request.GET.get(QUERY_FIELD, "")),
            "query_field": QUERY_FIELD,
            "example": EXAMPLE,
        }
        crumbs = (("Providers", list_url("placement.resourceprovider")), ("Candidate explorer", ""))
        set_crumbs(request, crumbs)
        return TemplateResponse(request, "admin/candidate_page.html", context)

    return path(
        "candidates/", site.admin_view(explorer), name="placement_resourceprovider_candidates"
    )
