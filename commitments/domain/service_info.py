"""Composing the LIQUID ServiceInfo (spec liquid, 4.1, 7.1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from capacity.groups.flavor_groups import FlavorGroupDef, flavor_group_problem
from capacity.groups.group_settings import (
    CATCH_ALL,
    GroupSettings,
    ResourceFlags,
    settings_for_group,
)
from capacity.groups.units import DEFAULT_RAM_UNIT_MIB, ram_unit_text
from commitments.domain.names import (
    resource_name_cores,
    resource_name_instances,
    resource_name_ram,
)

DISPLAY_NAME = "Compute commitments"
TOPOLOGY = "az-separated"
PIECE = "piece"
PLACEABLE_VMS = "hw_version_placeable_vms"
"""Metric family of the capacity report: slots of the smallest flavor say nothing of large ones."""
MIB_PER_GIB = 1024
TERMS = (
    "unit",
    "topology",
    "hasCapacity",
    "needsResourceDemand",
    "hasQuota",
    "handlesCommitments",
)
_LIMES_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9._-]*")


def compose_service_info(
    groups: Iterable[FlavorGroupDef],
    configured: Mapping[str, GroupSettings],
    *,
    tells_placeable_vms: bool = False,
) -> dict[str, object]:
    """Return everything of a ServiceInfo but its version.

    A retired group keeps its resources with all flags, so that Limes can keep the commitments on
    it: it has what they hold and what VMs use (spec liquid, 12.2; decisions).

    Args:
        groups: Groups that :func:`declaration_problem` has nothing against, retired ones included.
        configured: Operator's settings by group name.
        tells_placeable_vms: Whether capacity reports say how many VMs of every flavor fit.

    Raises:
        UnitError: a group's RAM unit exceeds 2^64 bytes.
    """
    resources: dict[str, object] = {}
    for group in sorted(groups, key=lambda one: one.name):
        settings = settings_for_group(configured, group.name)
        resources.update(_resources(group, settings))
    return {
        "displayName": DISPLAY_NAME,
        "categories": {},
        "resources": resources,
        "rates": {},
        "capacityMetricFamilies": _placeable_family() if tells_placeable_vms else {},
        "usageMetricFamilies": {},
        "quotaUpdateNeedsProjectMetadata": True,
        "commitmentHandlingNeedsProjectMetadata": True,
    }


def resource_terms(info: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return what a request relies on, by resource name: unit, topology and flags.

    Args:
        info: A ServiceInfo; names of flavors and ratios in it bind nobody.

    Source: decisions (stale info version).
    """
    resources = info["resources"]
    assert isinstance(resources, Mapping)  # noqa: S101 - composed here
    return {
        name: {term: resource.get(term, False) for term in TERMS}
        for name, resource in resources.items()
    }


def changed_term(
    before: Mapping[str, Mapping[str, object]],
    after: Mapping[str, Mapping[str, object]],
    resource_names: Iterable[str],
) -> str | None:
    """Return what changed first of some resources between two ServiceInfos, for people, or None.

    Args:
        before: Terms by resource name.
        after: The same later.
        resource_names: Resources that matter; unknown before and after is unchanged.
    """
    for name in sorted(set(resource_names)):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is None or new is None:
            return f"{name} is {'new' if old is None else 'gone'}"
        for term in TERMS:
            if old.get(term) != new.get(term):
                return f"{term} of {name} was {old.get(term)}, is {new.get(term)}"
    return None


def _placeable_family() -> dict[str, object]:
    """Return the metric family of placeable VMs (spec liquid, 4.1, 20 row 16)."""
    return {
        PLACEABLE_VMS: {
            "type": "gauge",
            "help": "VMs of a flavor that fit into what is left in a zone if nothing else came.",
            "labelKeys": ["flavor_group", "availability_zone", "flavor"],
        }
    }


def declaration_problem(group: FlavorGroupDef) -> str | None:
    """Return why a group must not be declared to Limes, or None.

    One name that Limes does not accept would make it discard the whole answer.

    Source: spec liquid, 4.7, 7.1; spec commitments, 4.2.
    """
    if not _LIMES_NAME.fullmatch(resource_name_ram(group.name)):
        return f"the name of group {group.name!r} has characters that Limes refuses"
    return flavor_group_problem(group)


def ram_unit_warning(group: FlavorGroupDef, configured: Mapping[str, GroupSettings]) -> str | None:
    """Return what an operator should look at in the RAM unit of a group, or None.

    Args:
        group: The flavor group.
        configured: Operator's settings by group name.

    Source: spec liquid, 6.4, 19.
    """
    settings = settings_for_group(configured, group.name)
    is_configured = group.name in configured or CATCH_ALL in configured
    if is_configured and settings.ram_unit_gib <= 0:
        return "ram_unit_gib is unset, one unit is 1 GiB"
    smallest_gib = max(gib_half_up(group.smallest.memory_mib), 1)
    unit_gib = settings.ram_unit_mib // MIB_PER_GIB
    if is_configured and group.has_fixed_ratio and unit_gib != smallest_gib:
        return f"one unit is {unit_gib} GiB, but the smallest flavor has {smallest_gib} GiB"
    return None


def ratio_attributes(group: FlavorGroupDef) -> dict[str, int]:
    """Return the ratios of a group in GiB per vCPU, halves rounded up; unset ones are absent."""
    if group.has_fixed_ratio:
        ratios = {"ramCoreRatio": group.ram_core_ratio_mib}
    else:
        ratios = {
            "ramCoreRatioMin": group.ram_core_ratio_min_mib,
            "ramCoreRatioMax": group.ram_core_ratio_max_mib,
        }
    return {name: gib_half_up(ratio) for name, ratio in ratios.items() if ratio is not None}


def gib_half_up(ratio_mib: int) -> int:
    """Return MiB in GiB: ``floor(x + 0.5)``, in integers.

    Source: spec liquid, 7.1.
    """
    return (2 * ratio_mib + MIB_PER_GIB) // (2 * MIB_PER_GIB)


def resource_flags(group: str, settings: GroupSettings) -> dict[str, ResourceFlags]:
    """Return what is offered for each resource of a group, by resource name."""
    return {
        resource_name_ram(group): settings.ram,
        resource_name_cores(group): settings.cores,
        resource_name_instances(group): settings.instances,
    }


def _resources(group: FlavorGroupDef, settings: GroupSettings) -> dict[str, object]:
    usable_by = f"(usable by: {', '.join(flavor.name for flavor in group.flavors)})"
    unit_mib = settings.ram_unit_mib
    ram_unit = ram_unit_text(unit_mib)
    ram_words = "GiB of RAM"
    if unit_mib > DEFAULT_RAM_UNIT_MIB:
        ram_words = f"multiples of {unit_mib // MIB_PER_GIB} GiB"
    attributes = ratio_attributes(group)
    triples: tuple[tuple[str, str, str, ResourceFlags], ...] = (
        (resource_name_ram(group.name), ram_words, ram_unit, settings.ram),
        (resource_name_cores(group.name), "CPU cores", PIECE, settings.cores),
        (resource_name_instances(group.name), "instances", PIECE, settings.instances),
    )
    return {
        name: _resource(
            display_name=f"{words} {usable_by}",
            unit=unit,
            flags=flags,
            attributes=attributes,
        )
        for name, words, unit, flags in triples
    }


def _resource(
    *,
    display_name: str,
    unit: str,
    flags: ResourceFlags,
    attributes: Mapping[str, int],
) -> dict[str, object]:
    resource: dict[str, object] = {
        "displayName": display_name,
        "unit": unit,
        "topology": TOPOLOGY,
        "hasCapacity": flags.has_capacity,
        "needsResourceDemand": False,
        "hasQuota": flags.has_quota,
    }
    if flags.handles_commitments:
        resource["handlesCommitments"] = True
    if attributes:
        resource["attributes"] = dict(attributes)
    return resource
