"""Paths of the Placement API: no trailing slash, no redirect (spec placement, 2.1).

Path items are taken as they are, so the patterns exclude nothing but the slash. The paths that are
asked for most (spec placement, 13) come first.
"""

from __future__ import annotations

from django.urls import URLPattern, re_path

from placement.api import allocations, candidates, inventories, links, names, providers, root

app_name = "placement"

PROVIDER = r"^resource_providers/(?P<uuid>[^/]+)"

urlpatterns: list[URLPattern] = [
    re_path(
        r"^allocations/(?P<consumer_uuid>[^/]+)\Z", allocations.ConsumerAllocationsView.as_view()
    ),
    re_path(r"^allocation_candidates\Z", candidates.CandidatesView.as_view()),
    re_path(rf"{PROVIDER}/allocations\Z", allocations.ProviderAllocationsView.as_view()),
    re_path(rf"{PROVIDER}/inventories\Z", inventories.InventoriesView.as_view()),
    re_path(rf"{PROVIDER}/usages\Z", inventories.ProviderUsagesView.as_view()),
    re_path(rf"{PROVIDER}/aggregates\Z", links.ProviderAggregatesView.as_view()),
    re_path(rf"{PROVIDER}/traits\Z", links.ProviderTraitsView.as_view()),
    re_path(rf"{PROVIDER}\Z", providers.ProviderView.as_view()),
    re_path(r"^resource_providers\Z", providers.ProvidersView.as_view()),
    re_path(
        rf"{PROVIDER}/inventories/(?P<resource_class>[^/]+)\Z", inventories.InventoryView.as_view()
    ),
    re_path(r"^allocations\Z", allocations.AllocationsView.as_view()),
    re_path(r"^usages\Z", allocations.UsagesView.as_view()),
    re_path(r"^traits\Z", names.TraitsView.as_view()),
    re_path(r"^traits/(?P<name>[^/]+)\Z", names.TraitView.as_view()),
    re_path(r"^resource_classes\Z", names.ResourceClassesView.as_view()),
    re_path(r"^resource_classes/(?P<name>[^/]+)\Z", names.ResourceClassView.as_view()),
    re_path(r"^reshaper\Z", allocations.ReshaperView.as_view()),
    re_path(r"^\Z", root.RootView.as_view()),
    re_path(r"", root.UnknownPathView.as_view()),
]
