"""The pipelines that come with the product, current and legacy (spec scheduling, 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from scheduling.engine import CUSTOMER_DOMAIN_PREFIXES
from scheduling.pipelines import TYPE_DETECTOR, PipelineSpec, StepParam, StepSpec

_MEMORY = (StepParam(key="resourceWeights", number_map=MappingProxyType({"memory": 1.0})),)
_LOCKED = (StepParam(key="lockReserved", boolean=True),)
_UNLOCKED = (StepParam(key="lockReserved", boolean=False),)

_STATUS = StepSpec(name="filter_status_conditions")
_ZONE = StepSpec(name="filter_correct_az")
_INSTRUCTIONS = StepSpec(name="filter_host_instructions")
_CAPABILITIES = StepSpec(name="filter_capabilities")
_TRAITS = StepSpec(name="filter_has_requested_traits")
_CUSTOMER = StepSpec(
    name="filter_external_customer",
    params=(StepParam(key="domainNamePrefixes", strings=CUSTOMER_DOMAIN_PREFIXES),),
)
_ACCELERATORS = StepSpec(name="filter_has_accelerators")
_AFFINITY = StepSpec(name="filter_instance_group_affinity")
_ANTI_AFFINITY = StepSpec(name="filter_instance_group_anti_affinity")
_CAPACITY = StepSpec(name="filter_has_enough_capacity")
_PROJECTS = StepSpec(name="filter_allowed_projects")
_MIGRATABLE = StepSpec(name="filter_live_migratable")
_DESTINATION = StepSpec(name="filter_requested_destination")
_SMALLER = StepSpec(name="kvm_prefer_smaller_hosts", params=_MEMORY)
_SOFT_AFFINITY = StepSpec(name="kvm_instance_group_soft_affinity")
_EVACUATION = StepSpec(name="kvm_failover_evacuation")

F16: tuple[StepSpec, ...] = (
    _STATUS,
    _ZONE,
    _INSTRUCTIONS,
    StepSpec(name="filter_image_properties"),
    _CAPABILITIES,
    _TRAITS,
    _CUSTOMER,
    _ACCELERATORS,
    _AFFINITY,
    _ANTI_AFFINITY,
    _CAPACITY,
    _PROJECTS,
    StepSpec(name="filter_aggregate_metadata"),
    _MIGRATABLE,
    _DESTINATION,
    StepSpec(name="filter_quota_enforcement", params=(StepParam(key="enforce", boolean=False),)),
)
"""The common filters in order; quota in shadow mode (spec scheduling, 9.1)."""

_F16_UNLOCKED = tuple(
    replace(step, params=_UNLOCKED) if step == _CAPACITY else step for step in F16
)


def _binpack(multiplier: float) -> StepSpec:
    return StepSpec(name="kvm_binpack", params=_MEMORY, multiplier=multiplier)


def w5(binpack_multiplier: float) -> tuple[StepSpec, ...]:
    """Return the common weighers in order (spec scheduling, 9.1).

    Args:
        binpack_multiplier: 1.0 packs, -1.0 spreads.
    """
    return (
        _SMALLER,
        _SOFT_AFFINITY,
        _binpack(binpack_multiplier),
        _EVACUATION,
        StepSpec(name="kvm_committed_resource_reservation"),
    )


def _contended(term: str) -> StepSpec:
    bounds = {
        "avgCPUContentionLowerBound": 0.0,
        "avgCPUContentionUpperBound": 10.0,
        "avgCPUContentionActivationLowerBound": 0.0,
        "avgCPUContentionActivationUpperBound": -0.75,
        "maxCPUContentionLowerBound": 0.0,
        "maxCPUContentionUpperBound": 10.0,
        "maxCPUContentionActivationLowerBound": 0.0,
        "maxCPUContentionActivationUpperBound": -0.25,
    }
    return StepSpec(
        name=f"vmware_avoid_{term}_term_contended_hosts",
        params=tuple(StepParam(key=key, number=bound) for key, bound in bounds.items()),
    )


CURRENT: tuple[PipelineSpec, ...] = (
    PipelineSpec(
        name="kvm-general-purpose-load-balancing",
        description="Spreads VMs over all KVM hosts.",
        ignore_preselection=True,
        filters=F16,
        weighers=w5(-1.0),
    ),
    PipelineSpec(
        name="kvm-hana-bin-packing",
        description="Packs HANA VMs on as few KVM hosts as possible.",
        ignore_preselection=True,
        filters=F16,
        weighers=w5(1.0),
    ),
    PipelineSpec(
        name="vmware-general-purpose-load-balancing",
        description="Spreads VMs over Nova's choice of VMware hosts, off the contended ones.",
        weighers=(
            StepSpec(name="vmware_binpack", params=_MEMORY, multiplier=-1.0),
            _contended("long"),
            _contended("short"),
        ),
    ),
    PipelineSpec(name="vmware-hana-bin-packing", description="Keeps Nova's order of VMware hosts."),
    PipelineSpec(
        name="kvm-descheduler",
        type=TYPE_DETECTOR,
        description="Finds VMs that wait for CPUs too long.",
        detectors=(
            StepSpec(
                name="avoid_high_steal_pct",
                params=(StepParam(key="maxStealPctOverObservedTimeSpan", number=20.0),),
            ),
        ),
    ),
)

LEGACY: tuple[PipelineSpec, ...] = (
    PipelineSpec(
        name="kvm-valid-host-reuse-failover-reservation",
        description="Legacy: hosts whose failover slot a VM may use.",
        create_history=False,
        filters=(
            _STATUS,
            _INSTRUCTIONS,
            _ZONE,
            _TRAITS,
            _ACCELERATORS,
            _CUSTOMER,
            _PROJECTS,
            _CAPABILITIES,
        ),
    ),
    PipelineSpec(
        name="kvm-new-failover-reservation",
        description="Legacy: hosts for a new failover slot.",
        ignore_preselection=True,
        create_history=False,
        filters=(
            _STATUS,
            _INSTRUCTIONS,
            _ZONE,
            replace(_CAPACITY, params=_LOCKED),
            _TRAITS,
            _ACCELERATORS,
            _PROJECTS,
            _CAPABILITIES,
            _AFFINITY,
            _ANTI_AFFINITY,
            _MIGRATABLE,
            _DESTINATION,
        ),
        weighers=(_SMALLER, _SOFT_AFFINITY, _binpack(-1.0)),
    ),
    PipelineSpec(
        name="kvm-acknowledge-failover-reservation",
        description="Legacy: whether a failover slot still serves its VM.",
        create_history=False,
        filters=(
            _STATUS,
            _INSTRUCTIONS,
            _ZONE,
            replace(_CAPACITY, params=_LOCKED),
            _TRAITS,
            _ACCELERATORS,
            _CUSTOMER,
            _PROJECTS,
            _CAPABILITIES,
        ),
        weighers=(_EVACUATION,),
    ),
    PipelineSpec(
        name="kvm-report-capacity",
        description="Legacy: capacity of empty hosts.",
        ignore_preselection=True,
        create_history=False,
        filters=(
            _STATUS,
            _ZONE,
            replace(
                _CAPACITY,
                params=(
                    StepParam(key="ignoreAllocations", boolean=True),
                    StepParam(
                        key="ignoredReservationTypes",
                        strings=("CommittedResourceReservation", "FailoverReservation"),
                    ),
                ),
            ),
            _TRAITS,
            _CAPABILITIES,
        ),
    ),
    PipelineSpec(
        name="kvm-general-purpose-load-balancing-no-history",
        description="Legacy: spreads VMs without recording the decision.",
        ignore_preselection=True,
        create_history=False,
        filters=_F16_UNLOCKED,
        weighers=w5(-1.0),
    ),
    PipelineSpec(
        name="kvm-hana-bin-packing-no-history",
        description="Legacy: packs HANA VMs without recording the decision.",
        ignore_preselection=True,
        create_history=False,
        filters=_F16_UNLOCKED,
        weighers=w5(1.0),
    ),
)

SHIPPED: Mapping[str, PipelineSpec] = MappingProxyType(
    {spec.name: spec for spec in (*CURRENT, *LEGACY)}
)
"""Every pipeline that comes with the product by its name."""
