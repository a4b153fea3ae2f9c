"""Who answers which group of endpoints (spec placement, 8.1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Mode(StrEnum):
    """Who answers."""

    PASSTHROUGH = "passthrough"
    HYBRID = "hybrid"
    LOCAL = "local"


#: Header of a request that chooses a mode, and of the answer in the mode that was chosen.
MODE_TAKEN: Final = "X-Cortex-Feature-Mode"
#: The reference's word for ``local``.
ALIASES: Final[Mapping[str, Mode]] = MappingProxyType({"crd": Mode.LOCAL, "": Mode.PASSTHROUGH})


class Group(StrEnum):
    """Endpoints that switch together, named as the reference names them."""

    ROOT = "root"
    RESOURCE_PROVIDERS = "resourceProviders"
    TRAITS = "traits"
    RESOURCE_PROVIDER_TRAITS = "resourceProviderTraits"
    RESOURCE_CLASSES = "resourceClasses"
    INVENTORIES = "inventories"
    AGGREGATES = "aggregates"
    ALLOCATIONS = "allocations"
    USAGES = "usages"
    ALLOCATION_CANDIDATES = "allocationCandidates"
    RESHAPER = "reshaper"


#: Groups of one state: candidates of one side over allocations of the other would over-commit.
STATEFUL: Final = (
    Group.RESOURCE_PROVIDERS,
    Group.INVENTORIES,
    Group.ALLOCATIONS,
    Group.USAGES,
    Group.ALLOCATION_CANDIDATES,
    Group.RESHAPER,
)
_OF_FIRST: Final = {
    "": Group.ROOT,
    "allocations": Group.ALLOCATIONS,
    "allocation_candidates": Group.ALLOCATION_CANDIDATES,
    "resource_providers": Group.RESOURCE_PROVIDERS,
    "usages": Group.USAGES,
    "traits": Group.TRAITS,
    "resource_classes": Group.RESOURCE_CLASSES,
    "reshaper": Group.RESHAPER,
}
_OF_PROVIDER: Final = {
    "allocations": Group.ALLOCATIONS,
    "inventories": Group.INVENTORIES,
    "usages": Group.USAGES,
    "aggregates": Group.AGGREGATES,
    "traits": Group.RESOURCE_PROVIDER_TRAITS,
}


def group_of(template: str) -> Group:
    """Return the group of a route, such as ``resource_providers/{uuid}/traits``."""
    parts = template.split("/")
    if len(parts) > 2:  # noqa: PLR2004 - something of a provider
        return _OF_PROVIDER[parts[2]]
    return _OF_FIRST[parts[0]]


def parse_modes(given: Mapping[str, str], *, has_upstream: bool) -> Mapping[Group, Mode]:
    """Return the mode of each group.

    Args:
        given: Mode by group, as the settings name both.
        has_upstream: Whether there is another Placement; then what is not given is handed on to it.

    Raises:
        ValueError: a name is unknown, or the modes contradict each other; one line.
    """
    modes = dict.fromkeys(Group, Mode.PASSTHROUGH if has_upstream else Mode.LOCAL)
    for name, word in given.items():
        modes[_group(name)] = _mode(name, word)
    elsewhere = [group for group, mode in modes.items() if mode is not Mode.LOCAL]
    if elsewhere and not has_upstream:
        raise ValueError(f"{elsewhere[0]} is {modes[elsewhere[0]]}, which needs an UPSTREAM_URL")
    if len({modes[group] for group in STATEFUL}) > 1:
        told = ", ".join(f"{group} {modes[group]}" for group in STATEFUL)
        raise ValueError(f"these hold one state and switch together: {told}")
    return MappingProxyType(modes)


def _group(name: str) -> Group:
    try:
        return Group(name)
    except ValueError:
        raise ValueError(f"{name!r} is none of {', '.join(Group)}") from None


def _mode(name: str, word: str) -> Mode:
    try:
        return ALIASES.get(word) or Mode(word)
    except ValueError:
        raise ValueError(f"{name}: {word!r} is none of {', '.join(Mode)}") from None
