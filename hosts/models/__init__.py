"""What exists in the region: hosts, VMs, flavors, aggregates, images, projects."""

from __future__ import annotations

from hosts.models.cloud import Aggregate, Domain, Flavor, Image, Project, Region, ServerGroup
from hosts.models.columns import parts_of_names
from hosts.models.conditions import HostCondition
from hosts.models.evictions import Eviction, EvictionEnd
from hosts.models.feed import FeedHint, FeedPass, ListedProvider
from hosts.models.hosts import (
    OS_VERSION_MAX,
    Host,
    HostState,
    HostStatus,
    Maintenance,
    PlannedHostChange,
    PlannedHostEdit,
)
from hosts.models.lifecycles import HostLifecycle, LifecycleKind
from hosts.models.overcommit import OvercommitRule
from hosts.models.vms import DeletedVM, Instance, ServerMigration

__all__ = [
    "OS_VERSION_MAX",
    "Aggregate",
    "DeletedVM",
    "Domain",
    "Eviction",
    "EvictionEnd",
    "FeedHint",
    "FeedPass",
    "Flavor",
    "Host",
    "HostCondition",
    "HostLifecycle",
    "HostState",
    "HostStatus",
    "Image",
    "Instance",
    "LifecycleKind",
    "ListedProvider",
    "Maintenance",
    "OvercommitRule",
    "PlannedHostChange",
    "PlannedHostEdit",
    "Project",
    "Region",
    "ServerGroup",
    "ServerMigration",
    "parts_of_names",
]

# Last: these refer to the models above, and are here to be registered with Django.
from hosts.agents import (
    cell_models,  # noqa: F401 - as said
    models,  # noqa: F401 - as said
    resource_models,  # noqa: F401 - as said
    rollout_models,  # noqa: F401 - as said
    workload_models,  # noqa: F401 - as said
)
