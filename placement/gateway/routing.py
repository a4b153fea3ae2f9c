"""Which view serves a path when there is another Placement (spec placement, 8.1, 8.2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from core.conf import headroom
from placement.api.urls import PROVIDER, UNKNOWN, VIEWS, Resolver, View, resolver
from placement.cutover.gate import gated
from placement.gateway.access import guarded, overridable
from placement.gateway.hybrid import (
    CandidatesView,
    HybridView,
    NamesView,
    ProviderPartView,
    ProvidersView,
    ProviderView,
    RootView,
    UnknownPathView,
    UsagesView,
)
from placement.gateway.hybrid_writes import AllocationsView, ConsumerAllocationsView, ReshaperView
from placement.gateway.modes import Group, Mode, group_of
from placement.gateway.parted import ConsumerView, WholeCandidatesView, WholeUsagesView
from placement.gateway.shadow import ShadowedView

#: What is compared with answers from copies.
SHADOWED: Final = "allocation_candidates"
HYBRID_VIEWS: Final[Mapping[str, type[HybridView]]] = {
    "": RootView,
    "resource_providers": ProvidersView,
    PROVIDER: ProviderView,
    "traits": NamesView,
    "traits/{name}": NamesView,
    "resource_classes": NamesView,
    "resource_classes/{name}": NamesView,
    "usages": UsagesView,
    "allocation_candidates": CandidatesView,
    "allocations": AllocationsView,
    "allocations/{consumer_uuid}": ConsumerAllocationsView,
    "reshaper": ReshaperView,
}
#: What is not here is the other side's while a cloud moves in parts.
PARTED_VIEWS: Final[Mapping[str, type[HybridView]]] = {
    "": RootView,
    "resource_providers": ProvidersView,
    "usages": WholeUsagesView,
    "allocation_candidates": WholeCandidatesView,
    "allocations/{consumer_uuid}": ConsumerView,
}


def configured_resolver() -> Resolver:
    """Return what finds the view of a path, as the settings say."""
    gateway = headroom().gateway
    resolve = resolver_for(gateway.mode_of_group())
    if gateway.allow_mode_override:
        by_mode = {mode: partial(resolver_for, dict.fromkeys(Group, mode)) for mode in Mode}
        resolve = overridable(resolve, by_mode)
    return guarded(resolve, gateway.rules())


def resolver_for(modes: Mapping[Group, Mode]) -> Resolver:
    """Return what finds the view of a path; unknown paths go where the root goes.

    Args:
        modes: Who answers, by group.
    """
    views = [
        (template, _view(modes[group_of(template)], template, view)) for template, view in VIEWS
    ]
    unknown = UNKNOWN
    if modes[Group.ROOT] is Mode.PASSTHROUGH:
        unknown = gated(UNKNOWN)
    elif modes[Group.ROOT] is Mode.HYBRID:
        unknown = _hybrid_unknown(UNKNOWN)
    return resolver(views, unknown)


def _view(mode: Mode, template: str, view: View) -> View:
    if mode is Mode.PASSTHROUGH:
        is_shadowed = template == SHADOWED and headroom().gateway.shadow_percent
        return gated(
            view,
            pattern=f"/{template}",
            read_there=ShadowedView.as_view() if is_shadowed else None,
            read_parted=_parted_view(template, view),
        )
    return _hybrid_view(template, view) if mode is Mode.HYBRID else view


def _parted_view(template: str, view: View) -> View | None:
    """Return what serves reads of a path while a cloud moves in parts; nothing for the other side.

    Args:
        template: The path.
        view: Serves it for us.
    """
    kind = PARTED_VIEWS.get(template)
    if kind is None and template.startswith(PROVIDER):
        kind = ProviderPartView
    if kind is None:
        return None
    part = view.cls.as_view(is_part=True)  # type: ignore[attr-defined]  # of every view of ours
    return kind.as_view(ours=part, pattern=f"/{template}")


def _hybrid_view(template: str, view: View) -> View:
    """Return what serves a path of which both sides know a part.

    Args:
        template: The path, such as ``traits/{name}``.
        view: Serves it for us.
    """
    part = view.cls.as_view(is_part=True)  # type: ignore[attr-defined]  # of every view of ours
    kind = HYBRID_VIEWS.get(template, ProviderPartView)
    return kind.as_view(ours=part, pattern=f"/{template}")


def _hybrid_unknown(view: View) -> View:
    """Return what serves paths that do not exist."""
    part = view.cls.as_view(is_part=True)  # type: ignore[attr-defined]  # of every view of ours
    return UnknownPathView.as_view(ours=part)
