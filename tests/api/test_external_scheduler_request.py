from __future__ import annotations

from typing import Any

import pytest

from capacity.models import ReservationKind, SchedulingDecision
from hosts.models import Host
from tests.api.scheduler_client import (
    DATA,
    READ_ONLY,
    NovaClient,
    in_flight,
)
from tests.factories import make_host, make_hosts, make_reservation, make_vm

pytestmark = pytest.mark.django_db
recorded_in_rows = pytest.mark.django_db(transaction=True)  # decisions are written on commit


def test_the_vms_project_decides_not_the_callers(nova: NovaClient) -> None:
    make_host("h1", allowed_projects=["vm-project"])
    make_host("h2", allowed_projects=["caller-project"])
    body = nova.body(project_id="vm-project", offered=("h1", "h2"))
    body["context"]["project_id"] = "caller-project"
    assert nova.hosts(body) == ["h1"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ignore_hosts": ["h1"]}, {"h2", "h3"}),
        ({"force_hosts": ["h2"]}, {"h2"}),
        ({"force_hosts": []}, set()),
        ({"availability_zone": "az-b"}, {"h3"}),
        ({"requested_destination": {DATA: {"host": "h3", "aggregates": None}}}, {"h3"}),
        (
            {"instance_group": {DATA: {"policy": "affinity", "hosts": ["h1"], "members": []}}},
            {"h1"},
        ),
        (
            {
                "instance_group": {
                    DATA: {
                        "policy": "anti-affinity",
                        "hosts": None,
                        "members": None,
                        "_rules": {"max_server_per_host": "2"},
                    }
                }
            },
            {"h1", "h2", "h3"},
        ),
        ({"image": {DATA: {"properties": {DATA: {"img_hv_type": "vmware"}}}}}, set()),
        ({"image": None}, {"h1", "h2", "h3"}),
        ({"num_instances": 17}, set()),
        ({"num_instances": 0}, {"h1", "h2", "h3"}),
    ],
)
def test_the_parts_of_a_spec_reach_their_filters(
    nova: NovaClient, changes: dict[str, Any], expected: set[str]
) -> None:
    make_hosts(2)
    make_host("h3", zone="az-b")
    assert set(nova.hosts(**changes)) == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param(None, {"h1"}, id="no rule"),
        pytest.param({}, {"h1"}, id="empty rule"),
        pytest.param({"max_server_per_host": 2}, {"h1", "h2"}, id="2"),
        pytest.param({"max_server_per_host": 2.0}, {"h1", "h2"}, id="2.0, as JSON may decode it"),
        pytest.param({"max_server_per_host": "3"}, {"h1", "h2", "h3"}, id="text"),
        pytest.param({"max_server_per_host": 2.5}, {"h1"}, id="no whole number"),
    ],
)
def test_the_limit_of_a_server_group_comes_from_its_rule(
    nova: NovaClient, rules: dict[str, Any] | None, expected: set[str]
) -> None:
    members = []
    for count, host in enumerate(make_hosts(3)):
        members += [make_vm(host=host).openstack_id for _ in range(count)]
    group = {"policy": "anti-affinity", "members": members, "hosts": [], "_rules": rules}
    found = nova.hosts(instance_group={DATA: group}, options=READ_ONLY)
    assert set(found) == expected


@recorded_in_rows
@pytest.mark.parametrize(
    ("hints", "recorded"),
    [
        ({"_nova_check_type": "rebuild"}, "rebuild"),
        ({"_nova_check_type": ["evacuate"]}, "evacuate"),
        ({"_nova_check_type": "resize"}, "resize"),
        ({"_nova_check_type": "live_migrate"}, "live_migration"),
        ({"_nova_check_type": ""}, "create"),
        ({"_nova_check_type": "x"}, "create"),
        ({"_nova_check_type": "reserve_for_failover"}, "reserve_for_failover"),
        ({"_nova_check_type": "capacity_probe"}, "capacity_probe"),
        (None, "create"),
        ({}, "create"),
        ({"_nova_check_type": 123}, "create"),
        ({"_nova_check_type": []}, "create"),
        ({"_nova_check_type": [123]}, "create"),
    ],
)
def test_the_intent_is_told_from_the_hints_or_that_nobody_knows_the_vm(
    nova: NovaClient, hints: dict[str, Any] | None, recorded: str
) -> None:
    make_hosts(3)
    assert nova.post(hints=hints).status_code == 200
    assert SchedulingDecision.objects.get().intent.lower() == recorded.lower()


@pytest.mark.parametrize("hint", ["reserve_for_failover", "capacity_probe"])
def test_runs_that_bring_no_vm_hold_nothing(nova: NovaClient, hint: str) -> None:
    make_hosts(5)
    offered = tuple(f"h{number}" for number in range(1, 6))
    hosts = nova.hosts(offered=offered, hints={"_nova_check_type": hint})
    assert len(hosts) == 5
    assert in_flight() == []


def test_ignored_reservations_block_nothing(nova: NovaClient) -> None:
    host = make_host("h1", memory_gib=4, vcpus=1)
    make_reservation(host, kind=ReservationKind.FAILOVER, memory_gib=4, vcpus=1)
    assert nova.hosts(options=READ_ONLY) == []
    ignoring = {**READ_ONLY, "ignored_reservation_types": ["FailoverReservation"]}
    assert nova.hosts(options=ignoring) == ["h1"]


def test_empty_hosts_may_be_assumed(nova: NovaClient) -> None:
    make_host("h1", memory_gib=4, vcpus=1)
    Host.objects.update(effective_memory_bytes=4 << 30)
    make_host("h2", memory_gib=2, vcpus=1)
    hosts = nova.hosts(options={**READ_ONLY, "assume_empty_hosts": True})
    assert hosts == ["h1"]


@recorded_in_rows
def test_legacy_pipelines_keep_no_history(nova: NovaClient) -> None:
    make_hosts(3)
    nova.hosts(pipeline="kvm-general-purpose-load-balancing-no-history")
    assert not SchedulingDecision.objects.exists()
