"""What is decided about a demo's region, once, by the services that the admin calls."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import OutputWrapper

from capacity.models import FlavorGroupRule
from commitments.usage_models import GroupPrice
from console.demo_operator import (
    ACTOR,
    CLOSED_BECAUSE,
    COVERED,
    COVERED_HOSTS,
    close_hosts,
    decide,
    plan_failover_from_scratch,
)
from failover.drill_models import ShadowPlan
from failover.models import FailoverDecision, FailoverPolicy
from failover.selectors.zone import failover_zones
from failover.services.policies import remove_policy
from hosts.demo.cloud import DemoCloud
from hosts.models import Eviction, Instance, OvercommitRule, PlannedHostChange
from journal.actors import Actor
from journal.models import AuditEntry
from tests.factories import make_host

pytestmark = pytest.mark.django_db(transaction=True)

HOSTS = 120


def cloud_of(hosts: dict[str, str]) -> DemoCloud:
    """Return a cloud of hosts for GPUs, each with its zone."""
    usable = {"state": "up", "status": "enabled"}
    return DemoCloud(
        {
            "compute": {
                "hypervisors": [
                    {"id": name, "hypervisor_hostname": name, **usable,
                     "service": {"host": name, "id": name, "disabled_reason": None}}
                    for name in hosts
                ],
                "services": [
                    {"binary": "nova-compute", "host": name, "zone": zone, **usable}
                    for name, zone in hosts.items()
                ],
                "aggregates": [], "servers": [], "flavors": [],
            },
            "placement": {
                "resource_providers": [
                    {"uuid": name, "name": name, "inventories": {"inventories": {}},
                     "traits": {"traits": [COVERED_HOSTS]}}
                    for name in hosts
                ]
            },
        }
    )  # fmt: skip


def test_all_hosts_for_gpus_but_one_are_closed_in_one_zone_and_once() -> None:
    hosts = {"a1": "az-a", "b1": "az-b", "b2": "az-b", "b3": "az-b", "c1": "az-c", "c2": "az-c"}
    for name, zone in hosts.items():
        make_host(name, zone=zone)
    cloud = cloud_of(hosts)

    assert close_hosts(cloud) == ["b2", "b3"]
    assert [name for name in hosts if not cloud.is_in_service(name)] == ["b2", "b3"]
    assert cloud.services["b3"]["status"] == "disabled"
    assert cloud.is_closed("b2", CLOSED_BECAUSE)
    assert close_hosts(cloud) == []
    assert close_hosts(cloud_of({"a1": "az-a"})) == []


def test_everything_is_decided_once_and_what_was_taken_back_stays_so(tmp_path: Path) -> None:
    call_command("set_up_demo", hosts=HOSTS, password_file=tmp_path / "password", verbosity=0)
    decide()
    call_command("reconcile_failover", verbosity=0)
    plan_failover_from_scratch(OutputWrapper(StringIO()))

    short = FailoverDecision.objects.values_list("vm_uuid", flat=True)
    assert Instance.objects.filter(openstack_id__in=short, flavor_name__startswith="gpu_").exists()
    assert FlavorGroupRule.objects.get().flavor_pattern == COVERED
    assert set(ShadowPlan.objects.values_list("zone", flat=True)) == set(failover_zones())
    assert PlannedHostChange.objects.count() == 1
    assert OvercommitRule.objects.count() == 1
    assert Eviction.objects.get().host.maintenance == "manual"
    assert GroupPrice.objects.count() > 2
    policy = FailoverPolicy.objects.get(flavor_pattern=COVERED)
    remove_policy(policy_id=policy.pk, actor=Actor(name="ann"), request_id="r")
    GroupPrice.objects.all().delete()
    told = AuditEntry.objects.filter(actor=ACTOR.name).count()

    decide()

    assert AuditEntry.objects.filter(actor=ACTOR.name).count() == told
    assert not FailoverPolicy.objects.filter(flavor_pattern=COVERED).exists()
