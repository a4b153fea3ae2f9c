"""Which view serves a path when there is another Placement (spec placement, 8.1, 8.2)."""

from __future__ import annotations

from collections.abc import Mapping

from core.conf import headroom
from placement.api.urls import UNKNOWN, VIEWS, Resolver, resolver
from placement.gateway.modes import Group, Mode, group_of
from placement.gateway.views import ForwardView


def configured_resolver() -> Resolver:
    """Return what finds the view of a path, as the settings say."""
    return resolver_for(headroom().gateway.mode_of_group())


def resolver_for(modes: Mapping[Group, Mode]) -> Resolver:
    """Return what finds the view of a path; unknown paths go where the root goes.

    Args:
        modes: Who answers, by group.
    """
    views = [
        (template, ForwardView.as_view(pattern=f"/{template}"))
        if modes[group_of(template)] is Mode.PASSTHROUGH
        else (template, view)
        for template, view in VIEWS
    ]
    unknown = ForwardView.as_view() if modes[Group.ROOT] is Mode.PASSTHROUGH else UNKNOWN
    return resolver(views, unknown)
