"""Which providers follow which hosts, and what has to change (spec placement, 8.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from placement.domain.capacity import InventoryAmounts

#: A run that would retire more than this share of all host providers, and at least this many, is
#: taken for a broken source (decisions, "syncer guards").
MAX_LOST_PERCENT: Final = 20
MIN_LOST: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a provider takes from its host.

    Attributes:
        uuid: Canonical UUID of the hypervisor, which is that of the provider.
        name: Name of both.
        inventories: What may be promised on it, by class; classes of which it has none left out.
        traits: Names.
        aggregates: Canonical UUIDs.
    """

    uuid: str
    name: str
    zone: str = ""
    inventories: Mapping[str, InventoryAmounts] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProvider:
    """A provider as it is, or one that stands in the way of a host's.

    Attributes:
        is_host: Whether it stands for a host.
        follows_host: Whether its inventories are those of the host.
        inventories: What it has, by class; only needed when it follows the host.
        host_traits: Traits of the host when it was last looked at.
        host_aggregates: Likewise aggregates.
    """

    uuid: str
    name: str
    zone: str = ""
    is_host: bool = True
    is_retiring: bool = False
    follows_host: bool = False
    inventories: Mapping[str, InventoryAmounts] = field(default_factory=dict)
    host_traits: frozenset[str] = frozenset()
    host_aggregates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProviderPlan:
    """What to do so that providers follow hosts.

    Attributes:
        create: Hosts without a provider.
        update: Hosts whose provider has to follow, by UUID.
        retire: UUIDs of providers whose host is gone.
        refused: Names of hosts that cannot have a provider, and why.
        is_suspicious: So many hosts are gone that nothing is retired.
    """

    create: tuple[HostFacts, ...] = ()
    update: tuple[HostFacts, ...] = ()
    retire: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    is_suspicious: bool = False


def plan_host_providers(
    hosts: Iterable[HostFacts], providers: Iterable[HostProvider]
) -> HostProviderPlan:
    """Compare hosts with providers.

    Args:
        hosts: Hosts with an id; of two with one id the second is refused.
        providers: Every host provider, and others with the UUID or the name of a host.

    Source: spec placement, section 8.4.
    """
    known = {provider.uuid: provider for provider in providers}
    owners = {provider.name: provider.uuid for provider in known.values()}
    wanted: dict[str, HostFacts] = {}
    refused: dict[str, str] = {}
    for host in sorted(hosts, key=lambda host: (host.name, host.uuid)):
        if host.uuid in wanted:
            refused[host.name] = f"has the id of {wanted[host.uuid].name}"
        elif owners.get(host.name, host.uuid) != host.uuid:
            refused[host.name] = f"provider {owners[host.name]} has its name"
        else:
            wanted[host.uuid] = host
    gone = [uuid for uuid, old in known.items() if old.is_host and uuid not in wanted]
    newly_gone = [uuid for uuid in gone if not known[uuid].is_retiring]
    count = sum(provider.is_host and not provider.is_retiring for provider in known.values())
    is_suspicious = len(newly_gone) >= MIN_LOST and len(newly_gone) * 100 > count * MAX_LOST_PERCENT
    return HostProviderPlan(
        create=tuple(host for uuid, host in wanted.items() if uuid not in known),
        update=tuple(
            host for uuid, host in wanted.items() if uuid in known and _differs(host, known[uuid])
        ),
        retire=() if is_suspicious else tuple(sorted(gone)),
        refused=refused,
        is_suspicious=is_suspicious,
    )


def retired_inventories(
    inventories: Mapping[str, InventoryAmounts],
) -> dict[str, InventoryAmounts]:
    """Return inventories of which nothing more can be allocated."""
    return {
        name: InventoryAmounts(
            total=amounts.total,
            reserved=amounts.total,
            min_unit=amounts.min_unit,
            max_unit=amounts.max_unit,
            step_size=amounts.step_size,
            allocation_ratio=amounts.allocation_ratio,
        )
        for name, amounts in inventories.items()
    }


def _differs(host: HostFacts, provider: HostProvider) -> bool:
    return (
        not provider.is_host
        or provider.is_retiring
        or (host.name, host.zone) != (provider.name, provider.zone)
        or host.traits != provider.host_traits
        or host.aggregates != provider.host_aggregates
        or (provider.follows_host and dict(host.inventories) != dict(provider.inventories))
    )
