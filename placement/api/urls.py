"""Paths of the Placement API: no trailing slash, no redirect (spec placement, 2.1).

Path items are taken as they are, so they exclude nothing but the slash. The paths that are asked
for most (spec placement, 13) come first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from django.http import HttpResponse
from django.urls import URLPattern, re_path

from placement.api import allocations, candidates, inventories, links, names, providers, root
from placement.api.base import PlacementView

app_name = "placement"

PROVIDER: Final = "resource_providers/{uuid}"
ROUTES: Final[tuple[tuple[str, type[PlacementView]], ...]] = (
    ("allocations/{consumer_uuid}", allocations.ConsumerAllocationsView),
    ("allocation_candidates", candidates.CandidatesView),
    (f"{PROVIDER}/allocations", allocations.ProviderAllocationsView),
    (f"{PROVIDER}/inventories", inventories.InventoriesView),
    (f"{PROVIDER}/usages", inventories.ProviderUsagesView),
    (f"{PROVIDER}/aggregates", links.ProviderAggregatesView),
    (f"{PROVIDER}/traits", links.ProviderTraitsView),
    (PROVIDER, providers.ProviderView),
    ("resource_providers", providers.ProvidersView),
    (f"{PROVIDER}/inventories/{{resource_class}}", inventories.InventoryView),
    ("allocations", allocations.AllocationsView),
    ("usages", allocations.UsagesView),
    ("traits", names.TraitsView),
    ("traits/{name}", names.TraitView),
    ("resource_classes", names.ResourceClassesView),
    ("resource_classes/{name}", names.ResourceClassView),
    ("reshaper", allocations.ReshaperView),
    ("", root.RootView),
)
_ITEM: Final = re.compile(r"\{(\w+)\}")

View = Callable[..., HttpResponse]
Shape = tuple[int, str, str]

UNKNOWN: Final[View] = root.UnknownPathView.as_view()
VIEWS: Final[tuple[tuple[str, View], ...]] = tuple(
    (template, view.as_view()) for template, view in ROUTES
)


def _pattern(template: str) -> str:
    return "^" + _ITEM.sub(r"(?P<\1>[^/]+)", template) + r"\Z"


urlpatterns: list[URLPattern] = [
    *(re_path(_pattern(template), view) for template, view in VIEWS),
    re_path(r"", UNKNOWN),
]


Resolver = Callable[[str], tuple[View, Mapping[str, str]]]


def resolver(views: Iterable[tuple[str, View]], unknown: View) -> Resolver:
    """Return a function from a path to what serves it, and the items in it.

    It finds what Django's resolver finds, at once. Paths are below the mount point, decoded,
    without the slash before them.

    Args:
        views: By template of their path.
        unknown: Serves every other path.
    """
    by_shape: dict[Shape, tuple[View, list[tuple[str, int]]]] = {}
    for template, view in views:
        parts = template.split("/")
        matches = [(_ITEM.fullmatch(part), place) for place, part in enumerate(parts)]
        by_shape[_shape(parts)] = view, [(match[1], place) for match, place in matches if match]

    def resolve(path: str) -> tuple[View, Mapping[str, str]]:
        parts = path.split("/")
        known = by_shape.get(_shape(parts))
        if known is None:
            return unknown, {}
        view, items = known
        found = {name: parts[place] for name, place in items}
        if "" in found.values():
            return unknown, {}
        return view, found

    return resolve


def _shape(parts: list[str]) -> Shape:
    """Return what tells paths apart: their length and their fixed words, first and third."""
    return len(parts), parts[0], parts[2] if len(parts) > 2 else ""  # noqa: PLR2004 - the third


view_of: Final = resolver(VIEWS, UNKNOWN)
