"""Every step by its name, with its parameters (spec scheduling, 4, 7, 8, 17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

from scheduling import filters, weighers
from scheduling.detectors import AvoidHighSteal
from scheduling.filters.base import Filter
from scheduling.knowledge import HostContention, HostUtilisation, Knowledge
from scheduling.reservations import KIND_COMMITTED, KIND_FAILOVER, KIND_IN_FLIGHT
from scheduling.weighers.base import Weigher
from scheduling.weighers.vmware import (
    AVERAGE_BOUNDS,
    MAXIMUM_BOUNDS,
    Bounds,
    vmware_anti_affinity_noisy_projects,
    vmware_avoid_contended_hosts,
    vmware_binpack,
)

ParamValue: TypeAlias = Any  # one of the kinds below; checked against ParamKind before use
Arguments: TypeAlias = Mapping[str, ParamValue]

KIND_OF_RESERVATION_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "CommittedResourceReservation": KIND_COMMITTED,
        "FailoverReservation": KIND_FAILOVER,
        "InFlightReservation": KIND_IN_FLIGHT,
        KIND_COMMITTED: KIND_COMMITTED,
        KIND_FAILOVER: KIND_FAILOVER,
        KIND_IN_FLIGHT: KIND_IN_FLIGHT,
    }
)
"""Names of reservation types in definitions and options -> kinds of the table."""

_SAMPLE_KNOWLEDGE = Knowledge(
    utilisation={"": HostUtilisation(memory_bytes=0, used_memory_bytes=0, vcpus=0, used_vcpus=0)},
    long_term_contention={"": HostContention(average_percent=0.0, maximum_percent=0.0)},
    short_term_contention={"": HostContention(average_percent=0.0, maximum_percent=0.0)},
    noisiness={"": {}},
)
"""Knowledge that lets every step initialise: parameters are checked before knowledge is there."""


class ParamKind(StrEnum):
    """Kind of a parameter's value, as messages call it."""

    STRING = "a string"
    BOOLEAN = "a boolean"
    INTEGER = "an integer"
    NUMBER = "a number"
    STRINGS = "a list of strings"
    NUMBER_MAP = "a map of numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFactory:
    """How to make a step.

    Attributes:
        build: Returns the step for checked parameters and knowledge; raises ValueError.
        params: Parameter -> kind.
        needs_knowledge: Whether it cannot be made without knowledge.
    """

    build: Callable[[Arguments, Knowledge], Filter | Weigher | AvoidHighSteal]
    params: Mapping[str, ParamKind] = field(default_factory=dict)
    needs_knowledge: bool = False

    def check(self, arguments: Arguments) -> None:
        """Check parameters that have the right kinds.

        Raises:
            ValueError: If the step cannot be made with them.
        """
        self.build(arguments, _SAMPLE_KNOWLEDGE)


def reservation_kinds(types: tuple[str, ...]) -> frozenset[str]:
    """Return kinds of the table for the names that definitions use.

    Raises:
        ValueError: If a name is not known.
    """
    unknown = sorted(set(types) - set(KIND_OF_RESERVATION_TYPE))
    if unknown:
        raise ValueError(f"unknown reservation type: {', '.join(unknown)}")
    return frozenset(KIND_OF_RESERVATION_TYPE[name] for name in types)


def _fixed(step: Filter) -> StepFactory:
    return StepFactory(build=lambda _arguments, _knowledge: step)


def _external_customer(arguments: Arguments, _knowledge: Knowledge) -> Filter:
    return filters.filter_external_customer(
        domain_name_prefixes=arguments.get("domainNamePrefixes", ()),
        ignored_domain_names=arguments.get("ignoredDomainNames", ()),
    )


def _capacity(arguments: Arguments, _knowledge: Knowledge) -> Filter:
    return filters.capacity_filter(
        lock_reserved=arguments.get("lockReserved", False),
        ignored_kinds=reservation_kinds(arguments.get("ignoredReservationTypes", ())),
        ignore_allocations=arguments.get("ignoreAllocations", False),
    )


def _quota(arguments: Arguments, _knowledge: Knowledge) -> Filter:
    return filters.filter_quota_enforcement(enforce=arguments.get("enforce", False))


def _exclude_hosts(arguments: Arguments, _knowledge: Knowledge) -> Filter:
    return filters.filter_exclude_hosts(excluded_hosts=arguments.get("excludedHosts", ()))


def _smaller_hosts(arguments: Arguments, _knowledge: Knowledge) -> Weigher:
    return weighers.kvm_prefer_smaller_hosts(resource_weights=arguments.get("resourceWeights", {}))


def _binpack(arguments: Arguments, _knowledge: Knowledge) -> Weigher:
    return weighers.kvm_binpack(
        resource_weights=arguments.get("resourceWeights", {}),
        count_reservations=arguments.get("countReservations", False),
    )


def _soft_affinity(_arguments: Arguments, _knowledge: Knowledge) -> Weigher:
    return weighers.kvm_instance_group_soft_affinity()


def _evacuation(arguments: Arguments, _knowledge: Knowledge) -> Weigher:
    return weighers.kvm_failover_evacuation(
        failover_host_weight=float(arguments.get("failoverHostWeight", 1.0)),
        default_host_weight=float(arguments.get("defaultHostWeight", 0.1)),
    )


def _consolidation(arguments: Arguments, _knowledge: Knowledge) -> Weigher:
    return weighers.kvm_failover_reservation_consolidation(
        total_count_weight=float(arguments.get("totalCountWeight", 1.0)),
        same_spec_penalty=float(arguments.get("sameSpecPenalty", 0.1)),
    )


def _committed(arguments: Arguments, _knowledge: Knowledge) -> Weigher:
    return weighers.kvm_committed_resource_reservation(
        reservation_host_weight=float(arguments.get("reservationHostWeight", 1.0)),
        default_host_weight=float(arguments.get("defaultHostWeight", 0.1)),
    )


def _vmware_binpack(arguments: Arguments, knowledge: Knowledge) -> Weigher:
    return vmware_binpack(
        utilisation=knowledge.utilisation, resource_weights=arguments.get("resourceWeights", {})
    )


def _bounds(arguments: Arguments, prefix: str, default: Bounds) -> Bounds:
    return Bounds(
        lower=float(arguments.get(f"{prefix}LowerBound", default.lower)),
        upper=float(arguments.get(f"{prefix}UpperBound", default.upper)),
        lower_activation=float(
            arguments.get(f"{prefix}ActivationLowerBound", default.lower_activation)
        ),
        upper_activation=float(
            arguments.get(f"{prefix}ActivationUpperBound", default.upper_activation)
        ),
    )


def _bound_params(*prefixes: str) -> dict[str, ParamKind]:
    ends = ("LowerBound", "UpperBound", "ActivationLowerBound", "ActivationUpperBound")
    return {f"{prefix}{end}": ParamKind.NUMBER for prefix in prefixes for end in ends}


def _contended(name: str, *, is_long_term: bool) -> StepFactory:
    def build(arguments: Arguments, knowledge: Knowledge) -> Weigher:
        return vmware_avoid_contended_hosts(
            name=name,
            contention=(
                knowledge.long_term_contention if is_long_term else knowledge.short_term_contention
            ),
            average_bounds=_bounds(arguments, "avgCPUContention", AVERAGE_BOUNDS),
            maximum_bounds=_bounds(arguments, "maxCPUContention", MAXIMUM_BOUNDS),
        )

    params = _bound_params("avgCPUContention", "maxCPUContention")
    return StepFactory(build=build, params=params, needs_knowledge=True)


def _noisy(arguments: Arguments, knowledge: Knowledge) -> Weigher:
    return vmware_anti_affinity_noisy_projects(
        noisiness=knowledge.noisiness, bounds=_bounds(arguments, "avgCPUUsage", Bounds())
    )


def _steal(arguments: Arguments, _knowledge: Knowledge) -> AvoidHighSteal:
    return AvoidHighSteal(
        threshold_percent=float(arguments.get("maxStealPctOverObservedTimeSpan", 0.0))
    )


_PLAIN_FILTERS: tuple[Filter, ...] = (
    filters.filter_status_conditions,
    filters.filter_correct_az,
    filters.filter_host_instructions,
    filters.filter_image_properties,
    filters.filter_capabilities,
    filters.filter_has_requested_traits,
    filters.filter_has_accelerators,
    filters.filter_instance_group_affinity,
    filters.filter_instance_group_anti_affinity,
    filters.filter_allowed_projects,
    filters.filter_aggregate_metadata,
    filters.filter_live_migratable,
    filters.filter_requested_destination,
    filters.filter_packed_virtqueue,
    filters.filter_maintenance,
)
_RESOURCE_WEIGHTS = {"resourceWeights": ParamKind.NUMBER_MAP}

FILTERS: Mapping[str, StepFactory] = MappingProxyType(
    {
        **{step.name: _fixed(step) for step in _PLAIN_FILTERS},
        "filter_external_customer": StepFactory(
            build=_external_customer,
            params={
                "domainNamePrefixes": ParamKind.STRINGS,
                "ignoredDomainNames": ParamKind.STRINGS,
            },
        ),
        "filter_has_enough_capacity": StepFactory(
            build=_capacity,
            params={
                "lockReserved": ParamKind.BOOLEAN,
                "ignoredReservationTypes": ParamKind.STRINGS,
                "ignoreAllocations": ParamKind.BOOLEAN,
            },
        ),
        "filter_quota_enforcement": StepFactory(
            build=_quota, params={"enforce": ParamKind.BOOLEAN}
        ),
        "filter_exclude_hosts": StepFactory(
            build=_exclude_hosts, params={"excludedHosts": ParamKind.STRINGS}
        ),
    }
)

WEIGHERS: Mapping[str, StepFactory] = MappingProxyType(
    {
        "kvm_prefer_smaller_hosts": StepFactory(build=_smaller_hosts, params=_RESOURCE_WEIGHTS),
        "kvm_instance_group_soft_affinity": StepFactory(build=_soft_affinity),
        "kvm_binpack": StepFactory(
            build=_binpack,
            params={**_RESOURCE_WEIGHTS, "countReservations": ParamKind.BOOLEAN},
        ),
        "kvm_failover_evacuation": StepFactory(
            build=_evacuation,
            params={
                "failoverHostWeight": ParamKind.NUMBER,
                "defaultHostWeight": ParamKind.NUMBER,
            },
        ),
        "kvm_failover_reservation_consolidation": StepFactory(
            build=_consolidation,
            params={
                "totalCountWeight": ParamKind.NUMBER,
                "sameSpecPenalty": ParamKind.NUMBER,
            },
        ),
        "kvm_committed_resource_reservation": StepFactory(
            build=_committed,
            params={
                "reservationHostWeight": ParamKind.NUMBER,
                "defaultHostWeight": ParamKind.NUMBER,
            },
        ),
        "vmware_binpack": StepFactory(
            build=_vmware_binpack, params=_RESOURCE_WEIGHTS, needs_knowledge=True
        ),
        "vmware_avoid_long_term_contended_hosts": _contended(
            "vmware_avoid_long_term_contended_hosts", is_long_term=True
        ),
        "vmware_avoid_short_term_contended_hosts": _contended(
            "vmware_avoid_short_term_contended_hosts", is_long_term=False
        ),
        "vmware_anti_affinity_noisy_projects": StepFactory(
            build=_noisy, params=_bound_params("avgCPUUsage"), needs_knowledge=True
        ),
    }
)

DETECTORS: Mapping[str, StepFactory] = MappingProxyType(
    {
        "avoid_high_steal_pct": StepFactory(
            build=_steal, params={"maxStealPctOverObservedTimeSpan": ParamKind.NUMBER}
        )
    }
)
