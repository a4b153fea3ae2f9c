"""Filters: which hosts may take a request at all (spec scheduling, 7)."""

from __future__ import annotations

from scheduling.filters.base import Filter, StepError, StepEvent
from scheduling.filters.capacity import capacity_filter, filter_has_enough_capacity
from scheduling.filters.features import (
    filter_capabilities,
    filter_has_accelerators,
    filter_has_requested_traits,
    filter_image_properties,
    filter_live_migratable,
    filter_packed_virtqueue,
)
from scheduling.filters.groups import (
    filter_instance_group_affinity,
    filter_instance_group_anti_affinity,
    filter_requested_destination,
)
from scheduling.filters.state import (
    conditions_allow_placement,
    filter_correct_az,
    filter_exclude_hosts,
    filter_host_instructions,
    filter_maintenance,
    filter_status_conditions,
)
from scheduling.filters.tenants import (
    filter_aggregate_metadata,
    filter_allowed_projects,
    filter_external_customer,
    filter_quota_enforcement,
    tenant_classes_open_to,
)
from scheduling.free import FreeColumns, Rows, free_columns

__all__ = [
    "Filter",
    "FreeColumns",
    "Rows",
    "StepError",
    "StepEvent",
    "capacity_filter",
    "conditions_allow_placement",
    "filter_aggregate_metadata",
    "filter_allowed_projects",
    "filter_capabilities",
    "filter_correct_az",
    "filter_exclude_hosts",
    "filter_external_customer",
    "filter_has_accelerators",
    "filter_has_enough_capacity",
    "filter_has_requested_traits",
    "filter_host_instructions",
    "filter_image_properties",
    "filter_instance_group_affinity",
    "filter_instance_group_anti_affinity",
    "filter_live_migratable",
    "filter_maintenance",
    "filter_packed_virtqueue",
    "filter_quota_enforcement",
    "filter_requested_destination",
    "filter_status_conditions",
    "free_columns",
    "tenant_classes_open_to",
]
