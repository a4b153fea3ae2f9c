"""Quota as Limes pushes it, from declared units to stored ones (spec liquid, 10)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.conf import settings
from django.db import transaction

from capacity.figures.quota import WantedQuota, replace_project_quota
from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.groups.group_settings import GroupSettings, settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.groups.units import MAX_LEDGER_AMOUNT, declared_units_to_gib
from commitments.domain.names import (
    resource_name_cores,
    resource_name_instances,
    resource_name_ram,
)
from journal.actors import Actor
from journal.errors import InvalidInput
from journal.nudges import hint_worker
from journal.tracing import correlation_id

UNSERVED_ZONES = frozenset({"", "any", "unknown", "total"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuota:
    """Quota of one resource in declared units.

    Attributes:
        total_units: Sum over the zones, as Limes says; looked at only when no zone is named.
        units_by_zone: Mapping zone -> quota.
    """

    total_units: int = 0
    units_by_zone: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRequest:
    """A project's quota as a whole.

    Attributes:
        project_name: Its name, empty when not told.
        domain_id: Its domain, empty when not told.
        domain_name: The domain's name, empty when not told.
        resources: Mapping resource name -> quota.
    """

    project_id: str
    project_name: str = ""
    domain_id: str = ""
    domain_name: str = ""
    resources: Mapping[str, ResourceQuota] = field(default_factory=dict)


def set_project_quota(request: QuotaRequest, *, actor: Actor, request_id: str) -> None:
    """Replace a project's quota in all zones, in one transaction.

    Resources we do not know are stored as they are: their group may appear later.

    Args:
        request: The quota in declared units.

    Raises:
        NotReady: flavor groups are not extracted, so units cannot be converted.
        InvalidInput: a quota is larger than 2^63-1 GiB.
        Busy: the project's quota is being changed by another.
        QuotaNotStored: the database failed.

    Source: spec liquid, 10.1.
    """
    groups = load_group_definitions(include_retired=True)
    ram_units_mib, known = _declared_resources(groups, load_group_settings())
    by_zone: defaultdict[str, dict[str, int]] = defaultdict(dict)
    zero_everywhere: set[str] = set()
    for name, quota in sorted(request.resources.items()):
        if not quota.units_by_zone and quota.total_units == 0 and name in known:
            zero_everywhere.add(name)
        for zone, units in quota.units_by_zone.items():
            if zone not in UNSERVED_ZONES:
                by_zone[zone][name] = _stored(name, zone, units, ram_units_mib.get(name))
    replace_project_quota(
        WantedQuota(
            project_id=request.project_id,
            project_name=request.project_name,
            domain_id=request.domain_id,
            domain_name=request.domain_name,
            by_zone=by_zone,
            zero_everywhere=frozenset(zero_everywhere),
        ),
        served_zones=settings.HEADROOM.liquid.quota_served_zones,
        actor=actor,
        request_id=correlation_id(request_id),
    )
    transaction.on_commit(_count_soon, robust=True)  # the quota is stored, whatever the broker says


def _count_soon() -> None:
    """Ask the worker to count now instead of at the next beat."""
    hint_worker("commitments.reconcile_changed_quota")


def _declared_resources(
    groups: Mapping[str, FlavorGroupDef], configured: Mapping[str, GroupSettings]
) -> tuple[dict[str, int], set[str]]:
    ram_units_mib = {
        resource_name_ram(name): settings_for_group(configured, name).ram_unit_mib
        for name in groups
    }
    counted = {
        resource_name(name)
        for name in groups
        for resource_name in (resource_name_cores, resource_name_instances)
    }
    return ram_units_mib, counted | ram_units_mib.keys()


def _stored(name: str, zone: str, units: int, ram_unit_mib: int | None) -> int:
    if ram_unit_mib is None:
        return units
    gib = declared_units_to_gib(units, ram_unit_mib)
    if gib > MAX_LEDGER_AMOUNT:
        raise InvalidInput(
            f"resources.{name}.perAZ.{zone}.quota: {units} units are more than 2^63-1 GiB"
        )
    return gib
