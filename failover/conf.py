"""Configuration of failover under its published names and defaults (spec failover, 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from django.conf import settings

from failover.domain.plan import PlanOptions, ReuseOrder
from journal.durations import duration_seconds


def parse_duration(text: str) -> timedelta:
    """Return a duration as Go writes it: ``100ms``, ``30s``, ``1h30m``.

    Raises:
        ValueError: If it is not one, or negative.
    """
    if text == "0":
        return timedelta()
    return timedelta(seconds=float(duration_seconds(text)))


#: Reservations that VMs need while there is no policy.
SHIPPED_REQUIREMENTS: Final[Mapping[str, int]] = MappingProxyType({"*": 2})


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverConfig:
    """What the loop may do and how often; None, empty texts and zero durations are unset.

    Attributes:
        flavor_failover_requirements: Flavor pattern -> required count.
        reconcile_interval: Normal distance between runs.
        short_reconcile_interval: Distance after the start and while there is much to do.
        min_success_for_short_interval: Fewest successes of a run for the short distance.
        max_failures_for_short_interval: Most failures for it.
        max_vms_to_process: VMs handled in a run; negative is no limit, 0 is unset.
        vm_selection_rotation_interval: Every so many runs start at a random VM; 0 is never.
        limit_one_new_reservation_per_hypervisor: At most one new reservation per host and run.
        trust_hypervisor_location: Whether hosts, not the VM list, say where VMs are.
        revalidation_interval: Distance between validations of one reservation.
        use_flavor_group_resources: Size by the largest flavor of the group.
        creator: Who made a reservation.
        datasource_name: Where VMs come from.
        scheduler_url: External scheduler; empty asks in process.
    """

    flavor_failover_requirements: Mapping[str, int] | None = None
    reconcile_interval: timedelta | None = None
    short_reconcile_interval: timedelta | None = None
    min_success_for_short_interval: int | None = None
    max_failures_for_short_interval: int | None = None
    max_vms_to_process: int | None = None
    vm_selection_rotation_interval: int | None = None
    limit_one_new_reservation_per_hypervisor: bool | None = None
    trust_hypervisor_location: bool | None = None
    revalidation_interval: timedelta | None = None
    use_flavor_group_resources: bool | None = None
    creator: str = ""
    datasource_name: str = ""
    scheduler_url: str = ""

    def __post_init__(self) -> None:
        for name in ("reconcile_interval", "short_reconcile_interval", "revalidation_interval"):
            duration = getattr(self, name)
            if duration is not None and duration < timedelta():
                raise ValueError(f"{name} must not be negative")

    @classmethod
    def defaults(cls) -> FailoverConfig:
        """Return the published defaults."""
        return cls(
            flavor_failover_requirements=SHIPPED_REQUIREMENTS,
            reconcile_interval=timedelta(seconds=30),
            short_reconcile_interval=timedelta(milliseconds=100),
            min_success_for_short_interval=1,
            max_failures_for_short_interval=99,
            max_vms_to_process=30,
            vm_selection_rotation_interval=4,
            limit_one_new_reservation_per_hypervisor=True,
            trust_hypervisor_location=False,
            revalidation_interval=timedelta(minutes=30),
            use_flavor_group_resources=False,
            creator="cortex-failover-controller",
            datasource_name="nova-servers",
            scheduler_url="http://localhost:8080/scheduler/nova/external",
        )

    def with_defaults(self) -> FailoverConfig:
        """Return the configuration with every unset value replaced by its default.

        An explicit zero of the three nullable numbers and an empty map are kept.

        Source: spec failover, 4 "Rules of ApplyDefaults".
        """
        standard = self.defaults()
        zero_is_kept = {
            "min_success_for_short_interval",
            "max_failures_for_short_interval",
            "vm_selection_rotation_interval",
        }
        missing: dict[str, Any] = {}  # Any: values of several types
        for one in fields(self):
            given = getattr(self, one.name)
            is_unset = given is None or (
                one.name not in zero_is_kept
                and not isinstance(given, bool | Mapping)
                and given in {"", 0, timedelta()}
            )
            if is_unset:
                missing[one.name] = getattr(standard, one.name)
        return replace(self, **missing)

    @classmethod
    def from_published(cls, document: Mapping[str, Any]) -> FailoverConfig:
        """Return the configuration of a document with the published JSON names.

        Raises:
            ValueError: If a name is unknown or a duration is not one.
        """
        by_name = {_published_name(one.name): one.name for one in fields(cls)}
        unknown = sorted(set(document) - set(by_name))
        if unknown:
            raise ValueError(f"unknown keys: {', '.join(unknown)}")
        values: dict[str, Any] = {}  # Any: values of several types
        for key, given in document.items():
            name = by_name[key]
            values[name] = (
                parse_duration(given)
                if name.endswith("_interval") and isinstance(given, str)
                else given
            )
        return cls(**values)


def plan_options() -> PlanOptions:
    """Return what plans of this deployment may do."""
    chosen = settings.HEADROOM.failover
    return PlanOptions(
        reuse_order=ReuseOrder(chosen.reuse_order),
        max_users=chosen.max_users_per_reservation,
        consolidate=chosen.consolidate,
        shrinks=chosen.shrink_reservations,
        trims=chosen.trim_surplus,
        max_removal_ratio=chosen.max_removal_ratio,
        max_shrink_ratio=chosen.max_vm_list_shrink_ratio,
        brake_floor=chosen.brake_floor,
    )


def _published_name(name: str) -> str:
    head, *rest = name.split("_")
    words = {"vms": "VMs", "vm": "Vm", "url": "URL"}
    return head + "".join(words.get(word, word.capitalize()) for word in rest)


def current_config(requirements: Mapping[str, int]) -> FailoverConfig:
    """Return the configuration of this deployment: settings, and policies from their rows.

    Args:
        requirements: Flavor pattern -> count, see ``FailoverPolicy``.
    """
    chosen = settings.HEADROOM.failover
    return FailoverConfig(
        flavor_failover_requirements=requirements,
        reconcile_interval=timedelta(seconds=chosen.reconcile_interval_seconds),
        short_reconcile_interval=timedelta(seconds=chosen.short_reconcile_interval_seconds),
        min_success_for_short_interval=chosen.min_success_for_short_interval,
        max_failures_for_short_interval=chosen.max_failures_for_short_interval,
        max_vms_to_process=chosen.max_vms_to_process,
        vm_selection_rotation_interval=chosen.vm_selection_rotation_interval,
        limit_one_new_reservation_per_hypervisor=chosen.limit_one_new_reservation_per_host,
        trust_hypervisor_location=chosen.trust_host_location,
        revalidation_interval=timedelta(seconds=chosen.revalidation_interval_seconds),
        use_flavor_group_resources=chosen.use_flavor_group_resources,
        creator=chosen.creator,
        datasource_name="nova-servers",
        scheduler_url="",
    )
