"""Flavor groups and settings proposed from the flavors of a cloud (spec commitments, 4).

For the first day: flavors whose names begin alike and that ask for the same hardware share a group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from glob import escape
from typing import Final

from capacity.groups.flavor_groups import (
    FlavorGroupDef,
    FlavorSpec,
    GroupRule,
    build_flavor_groups,
    group_name_of,
    is_served,
)
from capacity.groups.group_settings import GroupSettings, ResourceFlags

MIB_PER_GIB: Final = 1024
FAMILY: Final = re.compile(r"([^._-]+)([._-]?)")
HARDWARE: Final = ("trait:", "aggregate_instance_extra_specs:")
NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")


def proposed_rules(
    flavors: Iterable[FlavorSpec], rules: Sequence[GroupRule]
) -> tuple[GroupRule, ...]:
    """Return rules for the flavors that neither an extra spec nor a rule puts into a group.

    Of a family the flavors with the fewest demands on hardware get a rule for all its names, tried
    last; the others, which run on fewer hosts, get groups of their own, by whole names.

    Args:
        rules: What there is already; first match wins.
    """
    families: dict[tuple[str, str], dict[frozenset[str], list[str]]] = {}
    for flavor in sorted(flavors, key=lambda one: one.name):
        if is_served(flavor) and group_name_of(flavor, rules) is None:
            family = families.setdefault(_family(flavor.name), {})
            family.setdefault(_hardware(flavor), []).append(flavor.name)
    found: list[GroupRule] = []
    for (word, separator), members in sorted(families.items()):
        plain, *others = sorted(members, key=lambda one: (len(one), sorted(one)))
        for demands in others:
            group = _name(word, *sorted(demands - plain))
            found += [
                GroupRule(group=group, flavor_pattern=escape(name)) for name in members[demands]
            ]
        pattern = escape(word) + (f"{separator}*" if separator else "")
        found.append(GroupRule(group=_name(word), flavor_pattern=pattern))
    return tuple(found)


def proposed_settings(
    flavors: Iterable[FlavorSpec],
    rules: Sequence[GroupRule],
    configured: Iterable[str],
) -> Mapping[str, GroupSettings]:
    """Return settings for the groups that have none: memory is committed, in the smallest flavor.

    Args:
        rules: The rules, proposed ones included.
        configured: Names of groups that have settings.
    """
    known = set(configured)
    groups = build_flavor_groups(flavors, rules).groups
    return {
        group.name: GroupSettings(
            ram=ResourceFlags(handles_commitments=True, handles_dry_run=True, has_capacity=True),
            cores=ResourceFlags(handles_dry_run=True, has_capacity=True),
            instances=ResourceFlags(has_capacity=True),
            ram_unit_gib=_unit_gib(group),
        )
        for group in groups
        if group.name not in known
    }


def _unit_gib(group: FlavorGroupDef) -> int:
    unit_gib, rest = divmod(group.derived_ram_unit_mib, MIB_PER_GIB)
    return unit_gib if unit_gib and not rest else 1


def _family(name: str) -> tuple[str, str]:
    """Return the first word of a flavor's name, and what ends it."""
    begin = FAMILY.match(name)
    return (begin[1], begin[2]) if begin else (name, "")


def _hardware(flavor: FlavorSpec) -> frozenset[str]:
    """Return what a flavor demands of hosts, as texts."""
    return frozenset(
        f"{key.partition(':')[2]} {text}" if text != "required" else key.partition(":")[2]
        for key, text in flavor.extra_specs.items()
        if key.startswith(HARDWARE) and text != "forbidden"
    )


def _name(word: str, *demands: str) -> str:
    """Return a name that Limes accepts."""
    word = word.lower()
    others = (one.removeprefix("CUSTOM_").lower().removeprefix(f"{word}_") for one in demands)
    return NOT_IN_NAMES.sub("_", "_".join((word, *others))).strip("_") or "flavors"
