"""Building and validating flavor groups (spec commitments, 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from scheduling.request import HYPERVISOR_TYPE_KEY
from scheduling.resources import MIB

GROUP_EXTRA_SPEC = "quota:hw_version"
SERVED_HYPERVISOR_TYPES = frozenset({"qemu", "ch"})
DEFAULT_UNIT_MIB = 1024

SKIPPED_HYPERVISOR_TYPE = "hypervisor_type_not_served"
SKIPPED_NO_GROUP = "no_flavor_group"
SKIPPED_DUPLICATE_NAME = "duplicate_flavor_name"
SKIPPED_INVALID_GROUP = "invalid_flavor_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorSpec:
    """A Nova flavor as far as capacity needs it.

    Attributes:
        name: Name, unique in the region.
        vcpus: Whole vCPUs.
        memory_bytes: Memory in bytes, a whole number of MiB.
        extra_specs: Extra specs as Nova returned them.
    """

    name: str
    vcpus: int
    memory_bytes: int
    extra_specs: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def memory_mib(self) -> int:
        """Memory in whole MiB (floor)."""
        return self.memory_bytes // MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """An operator's rule that puts flavors without the extra spec into a group.

    Attributes:
        flavor_pattern: Shell glob on the flavor name, case-sensitive.
    """

    group: str
    flavor_pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorGroupDef:
    """Flavors that share hardware and are reported together.

    Invariants: at least one flavor, ordered by memory descending, vCPUs descending, name ascending.

    Attributes:
        name: Name of the group.
        flavors: The flavors, largest first.
        ram_core_ratio_mib: MiB per vCPU when it is the same for all flavors.
        ram_core_ratio_min_mib: Smallest ratio when they differ.
        ram_core_ratio_max_mib: Largest ratio when they differ.
        lent: Names of flavors that another group has now; only a retired group has any.
    """

    name: str
    flavors: tuple[FlavorSpec, ...]
    ram_core_ratio_mib: int | None = None
    ram_core_ratio_min_mib: int | None = None
    ram_core_ratio_max_mib: int | None = None
    lent: frozenset[str] = frozenset()

    @property
    def own_flavors(self) -> tuple[FlavorSpec, ...]:
        """The flavors whose VMs are of this group and of no other."""
        return tuple(flavor for flavor in self.flavors if flavor.name not in self.lent)

    @property
    def smallest(self) -> FlavorSpec:
        """The last flavor: least memory, then fewest vCPUs."""
        return self.flavors[-1]

    @property
    def largest(self) -> FlavorSpec:
        """The first flavor: most memory, then most vCPUs."""
        return self.flavors[0]

    @property
    def has_fixed_ratio(self) -> bool:
        """Whether one ratio of memory to vCPUs holds for all flavors (spec commitments, 4.3)."""
        low, high = self.ram_core_ratio_min_mib, self.ram_core_ratio_max_mib
        if self.ram_core_ratio_mib is None:
            return False
        return (low is None and high is None) or self.ram_core_ratio_mib == low == high

    @property
    def derived_ram_unit_mib(self) -> int:
        """The RAM unit that the flavors suggest, in MiB (spec commitments, 4.4)."""
        if self.has_fixed_ratio and self.smallest.memory_mib > 0:
            return self.smallest.memory_mib
        return DEFAULT_UNIT_MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorGroupBuild:
    """The result of building flavor groups.

    Attributes:
        groups: Valid groups, ordered by name.
        skipped: Pairs of flavor name and reason (a ``SKIPPED_*`` word), ordered by name.
    """

    groups: tuple[FlavorGroupDef, ...]
    skipped: tuple[tuple[str, str], ...]


def largest_first(flavor: FlavorSpec) -> tuple[int, int, str]:
    """Return the key by which the flavors of a group are sorted."""
    return -flavor.memory_bytes, -flavor.vcpus, flavor.name


def groups_of_flavors(groups: Iterable[FlavorGroupDef]) -> dict[str, str]:
    """Return flavor name -> name of the group that its VMs are of."""
    return {flavor.name: group.name for group in groups for flavor in group.own_flavors}


def flavor_group_problem(group: FlavorGroupDef) -> str | None:
    """Return why a group is inconsistent, or None if it is valid.

    Args:
        group: A group with at least one flavor.

    Returns:
        A text for the log, or None.

    Source: spec commitments, 4.2.
    """
    ratio, low, high = (
        group.ram_core_ratio_mib,
        group.ram_core_ratio_min_mib,
        group.ram_core_ratio_max_mib,
    )
    if ratio is None and low is None and high is None:
        return None
    if (low is None) != (high is None):
        return "only one of the smallest and largest ratio is set"
    if low is not None and high is not None:
        if ratio is not None and not ratio == low == high:
            return "fixed ratio contradicts the smallest and largest ratio"
        if ratio is None and low >= high:
            return "smallest ratio is not below the largest"
    if group.smallest.memory_bytes <= 0:
        return "smallest flavor has no memory"
    return None


def group_name_of(flavor: FlavorSpec, rules: Sequence[GroupRule]) -> str | None:
    """Return the group a flavor belongs to, or None.

    The extra spec wins over the rules; of the rules the first that matches wins.
    """
    declared = flavor.extra_specs.get(GROUP_EXTRA_SPEC, "")
    if declared:
        return declared
    return next(
        (rule.group for rule in rules if fnmatchcase(flavor.name, rule.flavor_pattern)), None
    )


def build_flavor_groups(
    flavors: Iterable[FlavorSpec], rules: Sequence[GroupRule] = ()
) -> FlavorGroupBuild:
    """Group flavors, compute their ratios and drop inconsistent groups.

    A flavor needs an extra spec that names a served hypervisor type. A flavor that says nothing
    about it is taken only when an operator's rule groups it.

    Args:
        flavors: All flavors, in any order.
        rules: Operator's rules, first match wins.

    Returns:
        Valid groups by name, and every flavor left out with its reason.

    Source: spec commitments, 4.1; spec region-file, ``flavor_group_rules``.
    """
    ordered = sorted(flavors, key=largest_first)
    occurrences = Counter(flavor.name for flavor in ordered)
    members: dict[str, list[FlavorSpec]] = {}
    skipped: set[tuple[str, str]] = set()
    for flavor in ordered:
        group_name = group_name_of(flavor, rules)
        if not is_served(flavor):
            skipped.add((flavor.name, SKIPPED_HYPERVISOR_TYPE))
        elif group_name is None:
            skipped.add((flavor.name, SKIPPED_NO_GROUP))
        elif occurrences[flavor.name] > 1:
            skipped.add((flavor.name, SKIPPED_DUPLICATE_NAME))
        else:
            members.setdefault(group_name, []).append(flavor)
    groups = []
    for name in sorted(members):
        group = _group_with_ratios(name, tuple(members[name]))
        if flavor_group_problem(group) is None:
            groups.append(group)
        else:
            skipped.update((flavor.name, SKIPPED_INVALID_GROUP) for flavor in group.flavors)
    return FlavorGroupBuild(groups=tuple(groups), skipped=tuple(sorted(skipped)))


def is_served(flavor: FlavorSpec) -> bool:
    """Return whether a flavor is of a hypervisor that is served, or says nothing about it."""
    declared = flavor.extra_specs.get(HYPERVISOR_TYPE_KEY)
    if declared is None:
        return not flavor.extra_specs.get(GROUP_EXTRA_SPEC)
    return declared.lower() in SERVED_HYPERVISOR_TYPES


def _group_with_ratios(name: str, flavors: tuple[FlavorSpec, ...]) -> FlavorGroupDef:
    ratios = {flavor.memory_mib // flavor.vcpus for flavor in flavors if flavor.vcpus > 0}
    if not ratios:
        return FlavorGroupDef(name=name, flavors=flavors)
    low, high = min(ratios), max(ratios)
    if low == high != 0:
        return FlavorGroupDef(name=name, flavors=flavors, ram_core_ratio_mib=low)
    return FlavorGroupDef(
        name=name, flavors=flavors, ram_core_ratio_min_mib=low, ram_core_ratio_max_mib=high
    )
