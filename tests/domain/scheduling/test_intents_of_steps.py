"""Which filters judge which intents (spec scheduling, 7.1; failover slots as failover, 16.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from scheduling import filters
from scheduling.filters import Filter
from scheduling.intents import Intent
from scheduling.quota import QuotaFacts
from scheduling.request import InstanceGroup, RequestedDestination
from scheduling.table import HostTable
from scheduling.table_rows import HostAggregate

from .full_worlds import NO_VM, kept
from .worlds import ask, roomy

SLOT_OR_PROBE = {Intent.RESERVE_FOR_COMMITTED_RESOURCE, Intent.CAPACITY_PROBE}
MOVES = {Intent.EVACUATE, Intent.LIVE_MIGRATION}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A filter with a host that it removes for every intent but some."""

    step: Filter
    host: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    skips: frozenset[Intent | None] = frozenset()


CASES = {
    "image properties": Case(
        step=filters.filter_image_properties,
        request={"image_properties": {"img_hv_type": "vmware"}},
        skips=frozenset(NO_VM),
    ),
    "external customer": Case(
        step=filters.filter_external_customer(domain_name_prefixes=("iaas-",)),
        request={"domain_name": "iaas-1"},
        skips=frozenset({Intent.CAPACITY_PROBE}),
    ),
    "allowed projects": Case(
        step=filters.filter_allowed_projects,
        host={"allowed_projects": ("q",)},
        request={"project_id": "p"},
        skips=frozenset({Intent.CAPACITY_PROBE}),
    ),
    "aggregate metadata": Case(
        step=filters.filter_aggregate_metadata,
        host={"aggregates": (HostAggregate(uuid="a", metadata={"filter_tenant_id": "q"}),)},
        request={"project_id": "p"},
        skips=frozenset({Intent.CAPACITY_PROBE}),
    ),
    "instance group affinity": Case(
        step=filters.filter_instance_group_affinity,
        request={"instance_group": InstanceGroup(policy="affinity", hosts=frozenset({"s"}))},
        skips=frozenset(SLOT_OR_PROBE),
    ),
    "instance group anti-affinity": Case(
        step=filters.filter_instance_group_anti_affinity,
        host={"instances": ("v",)},
        request={"instance_group": InstanceGroup(policy="anti-affinity", members=frozenset("v"))},
        skips=frozenset(SLOT_OR_PROBE),
    ),
    "requested destination": Case(
        step=filters.filter_requested_destination,
        request={"requested_destination": RequestedDestination(host="s")},
        skips=frozenset(NO_VM),
    ),
    "quota": Case(
        step=filters.filter_quota_enforcement(enforce=True),
        request={
            "project_id": "p",
            "zone": "az-1",
            "flavor_group": "g",
            "quota": QuotaFacts(quota={"hw_version_g_cores": 0}),
        },
        skips=frozenset(NO_VM | MOVES),
    ),
    "live migratable": Case(
        step=filters.filter_live_migratable,
        request={"source_host": "s"},
        skips=frozenset({None, *Intent} - {Intent.LIVE_MIGRATION}),
    ),
}
SOURCE = roomy("s", features=("sev",))


@pytest.mark.parametrize("intent", [None, *Intent], ids=lambda one: one.value if one else "none")
@pytest.mark.parametrize("name", CASES)
def test_a_step_does_nothing_for_the_intents_of_the_table(name: str, intent: Intent | None) -> None:
    case = CASES[name]
    table = HostTable.from_rows([roomy("h", **case.host), SOURCE])
    found = kept(table, ask(hosts=("h",), intent=intent, **case.request), case.step)
    assert found == (["h"] if intent in case.skips else [])
