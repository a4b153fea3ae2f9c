"""Capacity and zone of a host from what Nova and Placement say (spec region-file, rules)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Final

from hosts.domain.overcommit import CPU, MEMORY

MIB: Final = 1 << 20
ONE: Final = Decimal(1)
VCPU: Final = "VCPU"
PCPU: Final = "PCPU"
MEMORY_MB: Final = "MEMORY_MB"
DISK_GB: Final = "DISK_GB"
TENANT_FILTER_PREFIX: Final = "filter_tenant_id"
#: Columns hold no more, whatever is ordered.
_MOST: Final = 2**63 - 1
_RATIO_STEP: Final = Decimal("0.0001")
_SMALLEST_RATIO: Final = Decimal("0.0001")
# Enough digits for any 64-bit amount times any ratio: the product is exact, only the floor rounds.
_EXACT: Final = Context(prec=200, rounding=ROUND_FLOOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInventory:
    """One resource class of a resource provider.

    Attributes:
        total: Installed amount in the class' unit (vCPUs, MiB, GiB).
        reserved: Kept for the host itself, same unit.
        ratio: Overcommit ratio, above 0.
    """

    total: int
    reserved: int = 0
    ratio: Decimal = ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResource:
    """Installed, reserved and usable amount of one resource of a host, in one unit.

    Attributes:
        total: Installed.
        reserved: Kept for the host itself.
        ratio: Overcommit ratio.
        effective: What may be promised: ``floor((total - reserved) * ratio)``, never negative.
    """

    total: int = 0
    reserved: int = 0
    ratio: Decimal = ONE
    effective: int = 0


def effective_amount(inventory: HostInventory, *, unit: int = 1) -> int:
    """Return ``floor((total - reserved) * ratio)`` in base units, at least 0.

    Args:
        inventory: Amounts in units of ``unit``.
        unit: How many base units one is, such as 2^20 for MiB in bytes.
    """
    left = max(0, inventory.total - inventory.reserved) * unit
    return int(_EXACT.to_integral_value(_EXACT.multiply(Decimal(left), inventory.ratio)))


def host_resource(inventories: Iterable[HostInventory], *, unit: int = 1) -> HostResource:
    """Return a host's resource as the sum of its inventories (such as VCPU and PCPU).

    The ratio shown is that of the first inventory; the effective amount honours each one's own.

    Args:
        inventories: Inventories that give the resource, in order of precedence.
        unit: Factor from their unit to that of the result.
    """
    listed = tuple(inventories)
    return HostResource(
        total=sum(inventory.total for inventory in listed) * unit,
        reserved=sum(inventory.reserved for inventory in listed) * unit,
        ratio=listed[0].ratio if listed else ONE,
        effective=min(_MOST, sum(effective_amount(inventory, unit=unit) for inventory in listed)),
    )


def resources_of(
    inventories: Mapping[str, HostInventory], ordered: Mapping[str, Decimal]
) -> tuple[HostResource, HostResource, HostResource]:
    """Return the vCPUs, the memory in bytes and the disk in GiB of a host.

    CPUs that are VMs' alone keep their ratio, whatever is ordered.

    Args:
        inventories: Resource class -> inventory, as of its provider.
        ordered: ``cpu``, ``memory`` -> the ratio that an operator ordered.
    """
    found = _with_ratio(inventories, VCPU, ordered.get(CPU))
    found = _with_ratio(found, MEMORY_MB, ordered.get(MEMORY))
    cpus = [found[key] for key in (VCPU, PCPU) if key in found]
    memory = [found[key] for key in (MEMORY_MB,) if key in found]
    disk = [found[key] for key in (DISK_GB,) if key in found]
    return host_resource(cpus), host_resource(memory, unit=MIB), host_resource(disk)


def _with_ratio(
    inventories: Mapping[str, HostInventory], resource_class: str, ratio: Decimal | None
) -> dict[str, HostInventory]:
    found = dict(inventories)
    if ratio is not None and resource_class in found:
        found[resource_class] = replace(found[resource_class], ratio=ratio)
    return found


def shown_ratio(ratio: Decimal) -> Decimal:
    """Return a ratio as its column holds it, for people; amounts come from the exact one."""
    rounded = ratio.quantize(_RATIO_STEP, rounding=ROUND_HALF_EVEN)
    return min(max(rounded, _SMALLEST_RATIO), Decimal("9999.9999"))


def allowed_projects(metadata_of_aggregates: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the projects a host is restricted to by its aggregates; empty means everybody.

    Source: spec scheduling, 7.13.
    """
    found = {
        project.strip()
        for metadata in metadata_of_aggregates
        for key, listed in metadata.items()
        if key.startswith(TENANT_FILTER_PREFIX)
        for project in listed.split(",")
    }
    return tuple(sorted(found - {""}))
