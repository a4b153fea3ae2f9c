"""What somebody who runs the demo's region has decided, by the services that the admin calls.

Each decision is made once in the life of a database: who takes it back is not contradicted.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from decimal import Decimal
from typing import Final

import structlog
from django.core.management import call_command
from django.core.management.base import CommandError, OutputWrapper

from capacity.groups.editing import save_group_rule
from capacity.models import FlavorGroup, FlavorGroupRule, Reservation, ReservationKind
from commitments.services.evicting import evict_slots
from commitments.services.prices import TOPIC as PRICE
from commitments.services.prices import save_price
from commitments.usage_models import GroupPrice
from failover.models import FailoverPolicy
from failover.selectors.zone import failover_zones
from failover.services.policies import TOPIC as POLICY
from failover.services.policies import save_policy
from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.modes import set_mode
from hosts.demo.cloud import DemoCloud
from hosts.models import (
    Host,
    HostState,
    HostStatus,
    Maintenance,
    OvercommitRule,
    PlannedHostChange,
    PlannedHostEdit,
)
from hosts.services.host_orders import HostOrder, change_host
from hosts.services.overcommit_rules import OBJECT_TYPE as OVERCOMMIT_RULE
from hosts.services.overcommit_rules import save_rule
from hosts.services.planned_changes import OBJECT_TYPE as PLANNED_CHANGE
from hosts.services.planned_changes import save_planned_change
from journal.actors import Actor
from journal.clock import database_now
from journal.models import AuditEntry

log = structlog.get_logger(__name__)

ACTOR: Final = Actor(name="demo operator")
REQUEST_ID: Final = "demo-operator"
COVERED: Final = "gpu_*"
"""VMs that failover was not owed to."""
COVERED_GROUP: Final = "gpu_v1"
COVERED_HOSTS: Final = "CUSTOM_GPU_HOST"
CLOSED_BECAUSE: Final = "GPU drivers are replaced"
CURRENCY: Final = "EUR"
PRICES: Final = {"memory": Decimal("0.004"), "cores": Decimal("0.011")}
SHARED_HOSTS: Final = "CUSTOM_SHARED_CORES"
"""Hosts that are bought next year; none has the trait yet."""
SHARED_CPU_RATIO: Final = Decimal(4)
DRAIN_AFTER: Final = timedelta(days=14)


def decide() -> None:
    """Owe failover to more VMs, set prices, plan a drain and more, each unless it was before."""
    if not _was_decided(POLICY, object_id=COVERED):
        save_policy(
            policy_id=None,
            pattern=COVERED,
            required_count=1,
            position=FailoverPolicy.objects.count(),
            actor=ACTOR,
            request_id=REQUEST_ID,
        )
    if not _was_decided("flavor_group_rule"):
        save_group_rule(
            rule_id=None,
            group_name=COVERED_GROUP,
            flavor_pattern=COVERED,
            position=FlavorGroupRule.objects.count(),
            actor=ACTOR,
            request_id=REQUEST_ID,
        )
    if not AuditEntry.objects.filter(action="host_agent_mode_set").exists():
        _let_agents_make_slots()
    if not _was_decided(PRICE):
        _set_prices()
    if not _was_decided(PLANNED_CHANGE):
        _plan_drain()
    if not _was_decided(OVERCOMMIT_RULE):
        rule = OvercommitRule(position=1, has_trait=SHARED_HOSTS, cpu_ratio=SHARED_CPU_RATIO)
        save_rule(rule, actor=ACTOR, request_id=REQUEST_ID)
    if not AuditEntry.objects.filter(action="host_evicted").exists():
        _empty_a_host()


def close_hosts(cloud: DemoCloud) -> list[str]:
    """Take the hosts of COVERED out of service where most of them are, but for one.

    VMs of the zone go on, and find no room for failover. In Nova that is said, so the cloud is
    told; what was said before stays so.

    Returns:
        Names of the hosts that are closed now and were not before.
    """
    by_zone = [cloud.names_with(COVERED_HOSTS, zone=zone) for zone in failover_zones()]
    if any(cloud.is_closed(name, CLOSED_BECAUSE) for names in by_zone for name in names):
        return []
    usable = [[name for name in names if cloud.is_in_service(name)] for names in by_zone]
    closed = max(usable, key=len, default=[])[1:]
    for name in closed:
        cloud.close_host(name, reason=CLOSED_BECAUSE)
    return closed


def plan_failover_from_scratch(told: OutputWrapper) -> None:
    """Compute a shadow plan of each zone, as ``rebalance_failover`` shows it; nothing is moved."""
    for zone in failover_zones():
        try:
            call_command("rebalance_failover", zone, stdout=told)
        except CommandError as error:
            log.warning("demo_shadow_plan_failed", zone=zone, error=str(error))


def _was_decided(object_type: str, **which: str) -> bool:
    return AuditEntry.objects.filter(object_type=object_type, **which).exists()


def _let_agents_make_slots() -> None:
    """Have agents make the slots of their hosts, where there are some."""
    slots = Reservation.objects.filter(kind=ReservationKind.COMMITTED)
    names = slots.values("target_host__name")
    for agent in HostAgent.objects.filter(host_name__in=names, mode=AgentMode.OBSERVE):
        set_mode(agent.host_name, AgentMode.ENFORCE, actor=ACTOR, request_id=REQUEST_ID)


def _set_prices() -> None:
    since = database_now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    groups = FlavorGroup.objects.order_by("name").values_list("name", flat=True)
    for name, (resource, price) in itertools.product(groups, PRICES.items()):
        row = GroupPrice(
            flavor_group_name=name,
            resource_type=resource,
            valid_from=since,
            currency=CURRENCY,
            hourly_price=price,
        )
        save_price(row, actor=ACTOR, request_id=REQUEST_ID)


def _empty_a_host() -> None:
    """Have a host become empty, of COVERED if there is one; the cloud has yet to move its VMs."""
    hosts = Host.objects.order_by("-name")
    host = hosts.filter(traits__contains=[COVERED_HOSTS]).first() or next(iter(hosts[1:2]), None)
    if host is None:
        return
    order = HostOrder(maintenance=Maintenance.MANUAL, maintenance_reason=CLOSED_BECAUSE)
    change_host(host.name, order, actor=ACTOR, request_id=REQUEST_ID, reason=CLOSED_BECAUSE)
    evict_slots(
        host.name,
        now=database_now(),
        actor=ACTOR,
        request_id=REQUEST_ID,
        reason=CLOSED_BECAUSE,
    )


def _plan_drain() -> None:
    usable = Host.objects.filter(state=HostState.UP, status=HostStatus.ENABLED)
    host = usable.order_by("-name").first()
    if host is not None:
        row = PlannedHostChange(
            edit=PlannedHostEdit.DRAIN,
            at=database_now() + DRAIN_AFTER,
            host=host,
            note="memory modules are replaced",
        )
        row.full_clean()
        save_planned_change(row, actor=ACTOR, request_id=REQUEST_ID)
