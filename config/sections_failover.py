"""The section of the deployment settings for failover."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from journal.conf import Section


class FailoverSettings(Section):
    """The failover loop (spec failover, 4); how many reservations a flavor needs is in rows."""

    enabled: bool = Field(default=True, description="Plan failover reservations at all.")
    reconcile_interval_seconds: float = Field(
        30.0, gt=0, description="Normal time from the end of a zone's run to the next."
    )
    short_reconcile_interval_seconds: float = Field(
        0.1, ge=0, description="The same while there is much to do; 0 never uses it."
    )
    min_success_for_short_interval: int = Field(
        1, ge=0, description="Fewest successes of a run that is followed soon."
    )
    max_failures_for_short_interval: int = Field(
        99, ge=0, description="Most failures of a run that is followed soon."
    )
    max_vms_to_process: int = Field(
        -1, description="VMs a run handles, largest first; 0 and less is all."
    )
    vm_selection_rotation_interval: int = Field(
        4, ge=0, description="Every so many limited runs start at a random VM; 0 never does."
    )
    limit_one_new_reservation_per_host: bool = Field(
        default=False, description="At most one new reservation per host and run."
    )
    trust_host_location: bool = Field(
        default=False, description="Believe hosts, not the VM list, about where VMs are."
    )
    revalidation_interval_seconds: float = Field(
        1800.0, gt=0, description="Time between validations of one reservation."
    )
    revalidation_jitter_ratio: float = Field(
        0.1, ge=0, lt=1, description="How much that time varies, as a share of it."
    )
    use_flavor_group_resources: bool = Field(
        default=False, description="Size reservations by the largest flavor of the group."
    )
    creator: str = Field(
        "cortex-failover-controller", min_length=1, description="Creator of reservations."
    )
    reuse_order: Literal["fewest_users", "most_users", "oldest"] = Field(
        "fewest_users",
        description="Which reservation a VM joins: tight size and fewest users, or as the "
        "reference does most users, or tight size and oldest.",
    )
    max_users_per_reservation: int = Field(
        20, ge=1, description="Most VMs that share a reservation, as long as the zone is large."
    )
    consolidate: bool = Field(
        default=False, description="Put new reservations on hosts that hold many already."
    )
    max_removal_ratio: float = Field(
        0.05, ge=0, le=1, description="Share of a zone's memberships a run removes at most."
    )
    max_vm_list_shrink_ratio: float = Field(
        0.2, ge=0, le=1, description="Share by which the VM list may shrink between two runs."
    )
    brake_floor: int = Field(
        20, ge=1, description="Removals, and VMs gone, up to which a run never halts."
    )
    retry_cooldown_seconds: float = Field(
        900.0, ge=0, description="How long a refused host is not proposed to a VM again."
    )
    max_retry_cooldown_seconds: float = Field(
        21600.0, ge=0, description="The same after many refusals; it doubles up to this."
    )
    stopped_grace_seconds: float = Field(
        86400.0, ge=0, description="How long a stopped VM keeps its reservations."
    )
    cover_non_ha_hosts: bool = Field(
        default=False, description="Cover VMs on hosts that say they have no high availability."
    )
    shrink_reservations: bool = Field(
        default=True, description="Reduce reservations to their largest user."
    )
    trim_surplus: bool = Field(
        default=True, description="Release reservations that a VM has beyond its need."
    )
    event_retention_days: int = Field(
        30, ge=1, le=3650, description="Age in days from which runs and events are forgotten."
    )
    rebalance: bool = Field(
        default=True, description="Carry out nightly shadow plans that save enough."
    )
    rebalance_threshold_ratio: float = Field(
        0.1, ge=0, le=1, description="Share of reserved memory that a shadow plan has to save."
    )
    rebalance_steps_per_run: int = Field(
        500, ge=1, description="Most single steps towards a shadow plan in one run."
    )
