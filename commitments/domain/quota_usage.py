"""The usage half of quota rows: totals, what commitments cover, summaries (spec liquid, 14).

A usage maps LIQUID resource names to amounts: memory in GiB, cores and instances as counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commitments.domain.names import (
    CORES_SUFFIX,
    INSTANCES_SUFFIX,
    RAM_SUFFIX,
    RESOURCE_PREFIX,
    resource_name_cores,
    resource_name_instances,
    resource_name_ram,
)

Usage = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUsage:
    """What a quota row says about usage.

    Attributes:
        total: Of all VMs of the project in the zone.
        payg: What no commitment covers, never negative; the same resources as ``total``.
        total_summary: ``total`` as text; likewise ``payg_summary``.
        limes_usage_summary: ``total`` with memory in declared units.
        limes_quota_summary: The quota with memory in declared units.
    """

    total: Usage
    payg: Usage
    total_summary: str
    payg_summary: str
    limes_usage_summary: str
    limes_quota_summary: str


def quota_usage(
    *, quota: Usage, used: Usage, covered: Usage, ram_unit_gib: Mapping[str, int]
) -> QuotaUsage:
    """Return the usage half of a quota row.

    Args:
        quota: The row's quota; its resources are shown as 0 when nothing is used.
        used: Of all VMs of the project in the zone.
        covered: By commitments of the project in the zone.
        ram_unit_gib: Flavor group to its declared unit, at least 1; 1 when left out.

    Source: spec liquid, 14.1, 14.2, 14.5.
    """
    total = {**dict.fromkeys(quota, 0), **used}
    payg = {name: max(0, amount - covered.get(name, 0)) for name, amount in total.items()}
    return QuotaUsage(
        total=total,
        payg=payg,
        total_summary=usage_summary(total),
        payg_summary=usage_summary(payg),
        limes_usage_summary=usage_summary(in_declared_units(total, ram_unit_gib)),
        limes_quota_summary=usage_summary(in_declared_units(quota, ram_unit_gib)),
    )


def usage_summary(usage: Usage) -> str:
    """Return a usage as one line: ``<group>: c=<cores> i=<instances> r=<ram>`` per group.

    Groups are sorted; names that follow no scheme are left out.

    Source: spec liquid, 14.5.
    """
    groups = {group for name in usage if (group := _group(name)) is not None}
    return "; ".join(
        f"{group}: c={usage.get(resource_name_cores(group), 0)}"
        f" i={usage.get(resource_name_instances(group), 0)}"
        f" r={usage.get(resource_name_ram(group), 0)}"
        for group in sorted(groups)
    )


def in_declared_units(usage: Usage, ram_unit_gib: Mapping[str, int]) -> dict[str, int]:
    """Return a usage with memory in declared units (floor); what is negative stays, it is no limit.

    Source: spec liquid, 14.5 (units from the configuration), 20 row 11.
    """
    converted = {}
    for name, amount in usage.items():
        group = _group(name)
        is_ram = group is not None and name == resource_name_ram(group)
        unit_gib = ram_unit_gib.get(group, 1) if group is not None and is_ram else 1
        converted[name] = amount // unit_gib if amount >= 0 else amount
    return converted


def _group(resource_name: str) -> str | None:
    """Return the flavor group of a resource of any kind; None when the name follows no scheme."""
    rest = resource_name.removeprefix(RESOURCE_PREFIX)
    for suffix in (RAM_SUFFIX, CORES_SUFFIX, INSTANCES_SUFFIX):
        group = rest.removesuffix(suffix)
        if rest != resource_name and group and group != rest:
            return group
    return None
