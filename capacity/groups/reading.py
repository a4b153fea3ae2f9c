"""Flavor groups and their settings as plain definitions (spec commitments, 4.6; liquid, 6.4).

Both are kept per process and read again when a row behind them changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec, largest_first
from capacity.groups.group_settings import SHIPPED, GroupSettings, ResourceFlags
from capacity.models import FlavorGroup, FlavorGroupMember, FlavorGroupSettings
from core.changes import ROWS_MARK
from core.process_cache import (
    Fingerprint,
    ProcessCache,
    read_fingerprints,
)
from hosts.models import Flavor
from journal.errors import NotReady

GROUPS_FINGERPRINT = "SELECT * FROM capacity_group_mark()"

SETTINGS_FINGERPRINT = f"""
SELECT true,
       (SELECT {ROWS_MARK} FROM capacity_flavorgroupsettings)
"""  # noqa: S608 - our own text

FLAG_NAMES = ("handles_commitments", "handles_dry_run", "has_capacity", "has_quota")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Definitions:
    active: Mapping[str, FlavorGroupDef]
    retired: Mapping[str, FlavorGroupDef]


def load_group_definitions(
    *, include_retired: bool = False, asked: Fingerprint | None = None
) -> Mapping[str, FlavorGroupDef]:
    """Return the flavor groups by name, in order of name.

    Args:
        include_retired: Also groups that are gone but still referred to, as last defined.
        asked: What the rows of :data:`GROUPS` were just said to be.

    Raises:
        NotReady: flavor groups have not been extracted yet.
    """
    definitions = GROUPS.current(asked)
    if definitions is None:
        raise NotReady("flavor groups have not been extracted yet", code="flavor_groups_not_ready")
    if not include_retired or not definitions.retired:
        return definitions.active
    both = {**definitions.active, **definitions.retired}
    return MappingProxyType({name: both[name] for name in sorted(both)})


def load_group_settings() -> Mapping[str, GroupSettings]:
    """Return the operator's settings by group name; ``*`` is the catch-all.

    While there are none, those that are shipped.

    Use :func:`capacity.groups.group_settings.settings_for_group` to look a group up.
    """
    loaded = _settings.current()
    return {} if loaded is None else loaded


def definitions_fingerprint() -> str:
    """Return a text that changes whenever flavor groups, their flavors or settings change."""
    return "|".join(one.mark for one in read_fingerprints(GROUPS, _settings))


def _load_definitions() -> _Definitions:
    members: dict[int, list[FlavorSpec]] = {}
    for member in FlavorGroupMember.objects.select_related("flavor").order_by(
        "group_id", "position"
    ):
        members.setdefault(member.group_id, []).append(flavor_spec(member.flavor))
    by_retirement: dict[bool, dict[str, FlavorGroupDef]] = {False: {}, True: {}}
    rows = FlavorGroup.objects.select_related("smallest_flavor", "largest_flavor")
    for row in rows.order_by("name"):
        flavors = members.get(row.pk, [])
        lent = _lent_flavors(row, flavors) if row.is_retired else set()
        if lent:
            flavors = sorted([*flavors, *lent], key=largest_first)
        if flavors:
            by_retirement[row.is_retired][row.name] = FlavorGroupDef(
                name=row.name,
                flavors=tuple(flavors),
                ram_core_ratio_mib=row.ram_core_ratio_mib,
                ram_core_ratio_min_mib=row.ram_core_ratio_min_mib,
                ram_core_ratio_max_mib=row.ram_core_ratio_max_mib,
                lent=frozenset(flavor.name for flavor in lent),
            )
    return _Definitions(
        active=MappingProxyType(by_retirement[False]), retired=MappingProxyType(by_retirement[True])
    )


def _lent_flavors(row: FlavorGroup, members: Collection[FlavorSpec]) -> set[FlavorSpec]:
    """Return the smallest and the largest flavor of a retired group if other groups have them now.

    A flavor is in one group at most. A group that all flavors left, as when it was renamed, is
    known by these two as long as commitments are held in it.
    """
    names = {flavor.name for flavor in members}
    known = (row.smallest_flavor, row.largest_flavor)
    return {flavor_spec(flavor) for flavor in known if flavor.name not in names}


def flavor_spec(flavor: Flavor) -> FlavorSpec:
    """Return what capacity needs of a stored flavor."""
    return FlavorSpec(
        name=flavor.name,
        vcpus=flavor.vcpus,
        memory_bytes=flavor.memory_bytes,
        extra_specs=flavor.extra_specs,
    )


def _load_settings() -> Mapping[str, GroupSettings]:
    return MappingProxyType(
        {
            row.group_name: GroupSettings(
                ram=_flags(row, "ram"),
                cores=_flags(row, "cores"),
                instances=_flags(row, "instances"),
                ram_unit_gib=row.ram_unit_gib,
            )
            for row in FlavorGroupSettings.objects.order_by("group_name")
        }
        or SHIPPED
    )


def _flags(row: FlavorGroupSettings, resource: str) -> ResourceFlags:
    return ResourceFlags(**{name: getattr(row, f"{resource}_{name}") for name in FLAG_NAMES})


GROUPS = ProcessCache(GROUPS_FINGERPRINT, _load_definitions, reader="flavor_groups")
_settings = ProcessCache(SETTINGS_FINGERPRINT, _load_settings, reader="group_settings")
