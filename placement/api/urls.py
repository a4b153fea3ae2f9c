"""Paths of the Placement API: no trailing slash, no redirect (spec placement, 2.1).

Path items are taken as they are, so they exclude nothing but the slash. The paths that are asked
for most (spec placement, 13) come first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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

_unknown: Final[View] = root.UnknownPathView.as_view()
_views: Final[tuple[tuple[str, View], ...]] = tuple(
    (template, view.as_view()) for template, view in ROUTES
)


def _pattern(template: str) -> str:
    return "^" + _ITEM.sub(r"(?P<\1>[^/]+)", template) + r"\Z"


urlpatterns: list[URLPattern] = [
    *(re_path(_pattern(template), view) for template, view in _views),
    re_path(r"", _unknown),
]


def view_of(path: str) -> tuple[View, Mapping[str, str]]:
    """Return what serves a path, and the items in it; what Django's resolver finds, at once.

    Args:
        path: Below the mount point, decoded, without the slash before it.
    """
    parts = path.split("/")
    known = _by_shape.get(_shape(parts))
    if known is None:
        return _unknown, {}
    view, items = known
    found = {name: parts[place] for name, place in items}
    if "" in found.values():
        return _unknown, {}
    return view, found


def _shape(parts: list[str]) -> Shape:
    """Return what tells paths apart: their length and their fixed words, first and third."""
    return len(parts), parts[0], parts[2] if len(parts) > 2 else ""  # noqa: PLR2004 - the third


def _table() -> dict[Shape, tuple[View, list[tuple[str, int]]]]:
    table: dict[Shape, tuple[View, list[tuple[str, int]]]] = {}
    for template, view in _views:
        parts = template.split("/")
        matches = [(_ITEM.fullmatch(part), place) for place, part in enumerate(parts)]
        table[_shape(parts)] = view, [(match[1], place) for match, place in matches if match]
    return table


_by_shape: Final = _table()
