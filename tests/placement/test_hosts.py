"""Hosts of the region as providers (spec placement, 8.4)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from threading import Barrier
from typing import Any

import pytest

from capacity.models import HostCapacity
from hosts.models import Host, OvercommitRule
from hosts.services.host_orders import HostOrder, change_host
from hosts.services.overcommit_rules import reconcile_overcommit, save_rule
from placement.models import Aggregate, ResourceProvider
from placement.services.hosts import (
    HostReconciliation,
    current_plan,
    reconcile_host_providers,
)
from placement.tasks import reconcile_hosts
from tests.concurrency.test_change_races import on_own_connection
from tests.factories import make_host, make_hosts
from tests.hosts.agents.workloads import ANN
from tests.placement.client import PlacementClient, drift, placement_settings, uuid

pytestmark = pytest.mark.django_db(transaction=True)

AGGREGATE = uuid()
GIB = 1 << 30


@pytest.fixture
def placement(settings: Any) -> PlacementClient:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    return PlacementClient()


def provider_of(host: Host) -> str:
    return str(ResourceProvider.objects.get(name=host.name).uuid)


def test_a_host_becomes_a_root_provider(placement: PlacementClient) -> None:
    traits = ["HW_CPU_X86_AVX", "CUSTOM_FAST", "NOBODY_KNOWS"]
    host = make_host("h1", memory_gib=64, vcpus=32, traits=traits, aggregate_uuids=[AGGREGATE])
    assert reconcile_hosts()["created"] == 1
    path = f"/resource_providers/{host.openstack_id}"
    shown = placement.get(path).json
    assert (shown["name"], shown["parent_provider_uuid"]) == ("h1", None)
    inventories = placement.get(f"{path}/inventories").json["inventories"]
    totals = {name: inventory["total"] for name, inventory in inventories.items()}
    assert totals == {"VCPU": 32, "MEMORY_MB": 65536, "DISK_GB": 1000}
    traits = placement.get(f"{path}/traits").json["traits"]
    assert traits == ["CUSTOM_FAST", "HW_CPU_X86_AVX"]
    assert placement.get(f"{path}/aggregates").json["aggregates"] == [AGGREGATE]
    assert ResourceProvider.objects.get().zone == "az-a"
    generation = placement.generation(host.openstack_id)
    assert set(reconcile_hosts().values()) == {0}
    assert placement.generation(host.openstack_id) == generation


def test_runs_at_once_make_each_provider_once_and_refuse_none(placement: PlacementClient) -> None:
    del placement
    runs, hosts = 4, 30
    make_hosts(hosts)
    together = Barrier(runs)

    def run(_: int) -> HostReconciliation:
        together.wait()
        return on_own_connection(reconcile_host_providers)

    with ThreadPoolExecutor(runs) as pool:
        done = list(pool.map(run, range(runs)))
    assert [one.refused for one in done] == [{}] * runs
    assert sum(one.created for one in done) == hosts
    assert ResourceProvider.objects.count() == hosts


def test_what_a_host_gains_and_loses_is_passed_on_and_the_rest_kept(
    placement: PlacementClient,
) -> None:
    host = make_host("h1", traits=["CUSTOM_A", "CUSTOM_B"])
    reconcile_hosts()
    path = f"/resource_providers/{host.openstack_id}/traits"
    generation = placement.generation(host.openstack_id)
    written = {
        "traits": ["CUSTOM_A", "HW_CPU_X86_SSE"],
        "resource_provider_generation": generation,
    }
    assert placement.put(path, written).status == 200
    reconcile_hosts()
    assert placement.get(path).json["traits"] == ["CUSTOM_A", "HW_CPU_X86_SSE"]
    Host.objects.update(traits=["CUSTOM_B", "CUSTOM_C"])
    assert reconcile_hosts()["updated"] == 1
    assert placement.get(path).json["traits"] == ["CUSTOM_C", "HW_CPU_X86_SSE"]


@pytest.mark.parametrize(
    ("method", "rest", "body", "fragment"),
    [
        ("PUT", "", {"name": "other"}, "cannot change the name of a kvm hypervisor"),
        ("PUT", "", {"name": "h1", "parent_provider_uuid": "P"}, "cannot change the parent"),
        ("DELETE", "", None, "is a host of this region"),
        ("DELETE", "/inventories", None, "are those of its host"),
        ("POST", "/inventories", {"resource_class": "VGPU", "total": 1}, "are those of its host"),
    ],
)
def test_clients_may_not_take_a_host_away(
    placement: PlacementClient, method: str, rest: str, body: Any, fragment: str
) -> None:
    host = make_host("h1")
    reconcile_hosts()
    if body and "parent_provider_uuid" in body:
        body = {**body, "parent_provider_uuid": placement.make_provider("parent")}
    answer = placement.call(method, f"/resource_providers/{host.openstack_id}{rest}", body)
    assert answer.status == 409
    assert fragment in answer.error["detail"]
    kept = placement.put(f"/resource_providers/{host.openstack_id}", {"name": "h1"})
    assert kept.status == 200


def test_a_provider_that_compute_made_first_is_taken_over(
    placement: PlacementClient, settings: Any
) -> None:
    placement_settings(settings, host_inventories="api", enforce_new_defaults=False)
    made = placement.make_provider("h1", VCPU=7)
    make_host("h1", openstack_id=made)
    reconcile_hosts()
    assert placement.delete(f"/resource_providers/{made}").status == 409
    assert placement.used(made) == {"VCPU": 0}
    placement.set_inventory(made, VCPU=9)
    assert set(reconcile_hosts().values()) == {0}


def test_a_host_that_is_gone_goes_with_its_last_allocation(placement: PlacementClient) -> None:
    host = make_host("h1")
    reconcile_hosts()
    consumer = uuid()
    assert placement.allocate(consumer, {host.openstack_id: {"VCPU": 1}}).status == 204
    HostCapacity.objects.all().delete()
    host.delete()
    assert reconcile_hosts()["retired"] == 1
    assert ResourceProvider.objects.get().is_retiring
    assert placement.allocate(uuid(), {host.openstack_id: {"VCPU": 1}}).status == 409
    assert reconcile_hosts()["retired"] == 1
    placement.delete(f"/allocations/{consumer}")
    assert reconcile_hosts()["removed"] == 1
    assert not ResourceProvider.objects.exists()
    assert drift() == []


def test_a_source_that_lost_many_hosts_retires_none(placement: PlacementClient) -> None:
    make_hosts(10)
    assert reconcile_hosts()["created"] == 10
    HostCapacity.objects.all().delete()
    Host.objects.filter(name__in=[f"h{number}" for number in range(1, 8)]).delete()
    result = reconcile_hosts()
    assert (result["retired"], result["removed"]) == (0, 0)
    assert ResourceProvider.objects.count() == 10
    assert placement.get("/resource_providers").status == 200


def test_hosts_that_share_an_id_or_have_none(placement: PlacementClient) -> None:
    first = make_host("h1")
    make_host("h2", openstack_id=first.openstack_id)
    make_host("h3", openstack_id="")
    make_host("h4")
    placement.make_provider("h4")
    result = reconcile_hosts()
    assert (result["created"], result["refused"]) == (1, 2)
    assert provider_of(first) == first.openstack_id


def test_reported_capacity_becomes_that_of_the_host(
    placement: PlacementClient, settings: Any
) -> None:
    placement_settings(settings, host_capacity=True, host_inventories="api")
    host = make_host("h1", memory_gib=64, vcpus=32)
    reconcile_hosts()
    placement.set_inventory(
        host.openstack_id,
        VCPU={"total": 40, "reserved": 4, "allocation_ratio": 1.5},
        MEMORY_MB={"total": 4096, "reserved": 1024},
        DISK_GB=77,
    )
    assert reconcile_hosts()["capacities"] == 1
    host.refresh_from_db()
    assert (host.total_vcpus, host.reserved_vcpus, host.effective_vcpus) == (40, 4, 54)
    assert (host.total_memory_bytes, host.effective_memory_bytes) == (4 * GIB, 3 * GIB)
    assert host.effective_disk_gib == 77
    room = HostCapacity.objects.get()
    assert (room.effective_vcpus, room.effective_memory_bytes) == (54, 3 * GIB)
    assert reconcile_hosts()["capacities"] == 0


def test_ratios_that_an_operator_ordered_outlive_what_clients_report(
    placement: PlacementClient, settings: Any
) -> None:
    placement_settings(settings, host_capacity=True, host_inventories="api")
    host = make_host("h1", memory_gib=64, vcpus=32)
    reconcile_hosts()

    def report(total: int) -> None:
        placement.set_inventory(
            host.openstack_id,
            VCPU={"total": total, "reserved": 4, "allocation_ratio": 16.0},
            MEMORY_MB={"total": 4096, "allocation_ratio": 1.5},
        )
        reconcile_hosts()
        host.refresh_from_db()

    report(40)
    assert (host.effective_vcpus, host.effective_memory_bytes) == (576, 6 * GIB)
    order = HostOrder(overcommit={"cpu": Decimal("1.15")})
    change_host("h1", order, actor=ANN, request_id="r")
    host.refresh_from_db()
    assert (host.effective_vcpus, host.effective_memory_bytes) == (41, 6 * GIB)
    report(104)
    assert (host.effective_vcpus, host.effective_memory_bytes) == (115, 6 * GIB)
    assert HostCapacity.objects.get().effective_vcpus == 115
    change_host("h1", HostOrder(overcommit={}), actor=ANN, request_id="r")
    report(104)
    assert host.effective_vcpus == 1600
    rule = OvercommitRule(position=1, hasnt_trait="CUSTOM_NONE", cpu_ratio=Decimal(2))
    save_rule(rule, actor=ANN, request_id="r")
    assert reconcile_overcommit(actor=ANN, request_id="r") == 1
    report(54)
    assert (host.effective_vcpus, host.effective_memory_bytes) == (100, 6 * GIB)


@pytest.mark.parametrize(
    "reported",
    [
        {"VCPU": {"total": 4, "allocation_ratio": 1e30}, "MEMORY_MB": 4096},
        {"VCPU": {"total": 4, "allocation_ratio": 10000}, "MEMORY_MB": 4096},
        {"VCPU": 4, "MEMORY_MB": {"total": 4096, "allocation_ratio": 3e38}},
        {"VCPU": 4, "MEMORY_MB": {"total": 2**31 - 1, "allocation_ratio": 9999}},
        {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": {"total": 1, "allocation_ratio": 1e9}},
    ],
    ids=["vCPUs", "ratio", "memory", "bytes", "disk"],
)
def test_capacity_that_is_too_large_for_us_stops_no_other_host(
    placement: PlacementClient, settings: Any, reported: dict[str, Any]
) -> None:
    placement_settings(settings, host_capacity=True, host_inventories="api")
    odd, other = make_host("h1", memory_gib=64, vcpus=32), make_host("h2")
    reconcile_hosts()
    placement.set_inventory(odd.openstack_id, **reported)
    placement.set_inventory(other.openstack_id, VCPU=40, MEMORY_MB=4096)
    assert reconcile_hosts()["capacities"] == 1
    odd.refresh_from_db()
    other.refresh_from_db()
    assert (odd.effective_vcpus, odd.effective_memory_bytes) == (32, 64 * GIB)
    assert (other.effective_vcpus, other.effective_memory_bytes) == (40, 4 * GIB)


def test_provider_that_another_run_removed_stops_no_other(
    placement: PlacementClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = make_host("h1")
    make_host("h2")
    reconcile_hosts()
    gone.delete()
    plan = current_plan()
    (leaving,) = plan.retire
    monkeypatch.setattr(
        "placement.services.hosts.current_plan",
        lambda: replace(plan, retire=(uuid(), leaving)),
    )
    assert reconcile_hosts()["removed"] == 1
    assert set(ResourceProvider.objects.values_list("name", flat=True)) == {"h2"}


def test_names_of_aggregates_are_shown(placement: PlacementClient) -> None:
    from hosts.models import Aggregate as NovaAggregate  # noqa: PLC0415 - same name as ours

    NovaAggregate.objects.create(uuid=AGGREGATE, name="rack 1")
    host = make_host("h1", aggregate_uuids=[AGGREGATE])
    reconcile_hosts()
    assert Aggregate.objects.get().name == "rack 1"
    shown = placement.get(f"/resource_providers/{host.openstack_id}/aggregates")
    assert shown.json["aggregates"] == [AGGREGATE]


def test_hosts_are_left_alone_where_configured(settings: Any) -> None:
    placement_settings(settings, host_providers=False)
    make_host("h1")
    assert reconcile_hosts() == {}
    assert not ResourceProvider.objects.exists()
