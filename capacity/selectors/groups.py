"""Flavor groups and their settings as plain definitions (spec commitments, 4.6; liquid, 6.4).

Both are kept per process and read again when a row behind them changed. The fingerprint holds
count and sum of ``changed_xid``: every later write has a higher one, so a late commit changes the
sum too. A transaction that has already written reads anew and keeps nothing, so that a rollback
never leaves its rows behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from django.db import connection

from capacity.domain.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.domain.group_settings import GroupSettings, ResourceFlags
from capacity.models import FlavorGroup, FlavorGroupMember, FlavorGroupSettings, GroupCapacity
from journal.errors import NotReady

GROUPS_FINGERPRINT = """
SELECT pg_current_xact_id_if_assigned() IS NOT NULL,
       (SELECT is_ready FROM capacity_flavorgroupsnapshot),
       (SELECT content_hash FROM capacity_flavorgroupsnapshot),
       (SELECT count(*) || '/' || coalesce(sum(changed_xid), 0) FROM capacity_flavorgroup),
       (SELECT count(*) || '/' || coalesce(sum(id), 0) FROM capacity_flavorgroupmember),
       (SELECT count(*) || '/' || coalesce(sum(changed_xid), 0) FROM hosts_flavor)
"""

SETTINGS_FINGERPRINT = """
SELECT pg_current_xact_id_if_assigned() IS NOT NULL, true,
       (SELECT count(*) || '/' || coalesce(sum(changed_xid), 0) FROM capacity_flavorgroupsettings)
"""

FLAG_NAMES = ("handles_commitments", "handles_dry_run", "has_capacity", "has_quota")

_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Definitions:
    active: Mapping[str, FlavorGroupDef]
    retired: Mapping[str, FlavorGroupDef]


class _ProcessCache(Generic[_Loaded]):
    """Keeps what ``load`` returned while the rows behind it stay as they are; safe for threads."""

    def __init__(self, fingerprint_sql: str, load: Callable[[], _Loaded]) -> None:
        self._fingerprint_sql = fingerprint_sql
        self._load = load
        self._lock = threading.Lock()
        self._kept: tuple[tuple[object, ...], _Loaded] | None = None

    def fingerprint(self) -> tuple[bool, bool, tuple[object, ...]]:
        """Return whether this transaction has written, the rows are ready, and what they are."""
        with connection.cursor() as cursor:
            cursor.execute(self._fingerprint_sql)
            row = cursor.fetchone()
        assert row is not None  # noqa: S101 - a SELECT without FROM returns one row
        has_written, is_ready, *rest = row
        return bool(has_written), bool(is_ready), tuple(rest)

    def current(self) -> _Loaded | None:
        """Return what the rows say now, or None when they are not ready."""
        with self._lock:
            has_written, is_ready, fingerprint = self.fingerprint()
            if not is_ready:
                return None
            if has_written:
                return self._load()
            if self._kept is None or self._kept[0] != fingerprint:
                self._kept = (fingerprint, self._load())
            return self._kept[1]


def load_group_definitions(*, include_retired: bool = False) -> Mapping[str, FlavorGroupDef]:
    """Return the flavor groups by name, in order of name.

    Args:
        include_retired: Also groups that are gone but still referred to, as last defined.

    Raises:
        NotReady: flavor groups have not been extracted yet.
    """
    definitions = _definitions.current()
    if definitions is None:
        message = "flavor groups have not been extracted yet"
        raise NotReady(message, code="flavor_groups_not_ready")
    if not include_retired or not definitions.retired:
        return definitions.active
    both = {**definitions.active, **definitions.retired}
    return MappingProxyType({name: both[name] for name in sorted(both)})


def load_group_settings() -> Mapping[str, GroupSettings]:
    """Return the operator's settings by group name; ``*`` is the catch-all.

    Use :func:`capacity.domain.group_settings.settings_for_group` to look a group up.
    """
    loaded = _settings.current()
    return {} if loaded is None else loaded


def definitions_fingerprint() -> str:
    """Return a text that changes whenever flavor groups, their flavors or settings change."""
    parts = (*_definitions.fingerprint()[2], *_settings.fingerprint()[2])
    return "|".join(str(part) for part in parts)


def total_vcpus(group: str, zone: str) -> int | None:
    """Return the vCPUs of a group in a zone if all hosts were empty, or None if not probed yet.

    Source: spec commitments, 8.5.
    """
    return (
        GroupCapacity.objects.filter(group_name=group, zone=zone)
        .values_list("total_vcpus", flat=True)
        .first()
    )


def _load_definitions() -> _Definitions:
    flavors: dict[int, list[FlavorSpec]] = {}
    for member in FlavorGroupMember.objects.select_related("flavor").order_by(
        "group_id", "position"
    ):
        flavors.setdefault(member.group_id, []).append(
            FlavorSpec(
                name=member.flavor.name,
                vcpus=member.flavor.vcpus,
                memory_bytes=member.flavor.memory_bytes,
                extra_specs=member.flavor.extra_specs,
            )
        )
    by_retirement: dict[bool, dict[str, FlavorGroupDef]] = {False: {}, True: {}}
    for row in FlavorGroup.objects.order_by("name"):
        if row.pk in flavors:
            by_retirement[row.is_retired][row.name] = FlavorGroupDef(
                name=row.name,
                flavors=tuple(flavors[row.pk]),
                ram_core_ratio_mib=row.ram_core_ratio_mib,
                ram_core_ratio_min_mib=row.ram_core_ratio_min_mib,
                ram_core_ratio_max_mib=row.ram_core_ratio_max_mib,
            )
    return _Definitions(
        active=MappingProxyType(by_retirement[False]), retired=MappingProxyType(by_retirement[True])
    )


def _load_settings() -> Mapping[str, GroupSettings]:
    return MappingProxyType(
        {
            row.group_name: GroupSettings(
                ram=_flags(row, "ram"),
                cores=_flags(row, "cores"),
                instances=_flags(row, "instances"),
                ram_unit_gib=row.ram_unit_gib or 1,
            )
            for row in FlavorGroupSettings.objects.order_by("group_name")
        }
    )


def _flags(row: FlavorGroupSettings, resource: str) -> ResourceFlags:
    return ResourceFlags(**{name: getattr(row, f"{resource}_{name}") for name in FLAG_NAMES})


_definitions = _ProcessCache(GROUPS_FINGERPRINT, _load_definitions)
_settings = _ProcessCache(SETTINGS_FINGERPRINT, _load_settings)
