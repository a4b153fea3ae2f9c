"""Which view serves a path when there is another Placement (spec placement, 8.1, 8.2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from core.conf import headroom
from placement.api.urls import UNKNOWN, VIEWS, Resolver, View, resolver
from placement.cutover.gate import gated
from placement.gateway.access import guarded, overridable
from placement.gateway.hybrid import hybrid_unknown, hybrid_view
from placement.gateway.modes import Group, Mode, group_of
from placement.gateway.shadow import ShadowedView

#: What is compared with answers from copies.
SHADOWED: Final = "allocation_candidates"


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
        unknown = hybrid_unknown(UNKNOWN)
    return resolver(views, unknown)


def _view(mode: Mode, template: str, view: View) -> View:
    if mode is Mode.PASSTHROUGH and template == SHADOWED and headroom().gateway.shadow_percent:
        return gated(view, pattern=f"/{template}", read_there=ShadowedView.as_view())
    if mode is Mode.PASSTHROUGH:
        return gated(view, pattern=f"/{template}")
    return hybrid_view(template, view) if mode is Mode.HYBRID else view
