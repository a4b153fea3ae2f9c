from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from capacity.models import Reservation, ReservationKind, SchedulingDecision
from journal.models import AuditEntry
from tests.api.scheduler_client import (
    DATA,
    READ_ONLY,
    NovaClient,
    in_flight,
    recorded_request,
)
from tests.factories import make_allocation, make_host, make_hosts, make_reservation, make_vm
from tests.hosts.agents.agents import fence_host

pytestmark = pytest.mark.django_db
recorded_in_rows = pytest.mark.django_db(transaction=True)  # decisions are written on commit
VM_UUID = "e814cbde-0481-44a3-8e59-062b2298952f"


@recorded_in_rows
def test_the_recorded_request_of_nova_is_answered_with_hosts_of_its_own(nova: NovaClient) -> None:
    body = recorded_request()
    names = [entry["host"] for entry in body["hosts"]]
    for name in names:
        make_host(name, zone=name[-4:], memory_gib=256)
    hosts = nova.hosts(body)
    assert len(hosts) == 3
    assert set(hosts) <= set(names)
    assert in_flight() == sorted(hosts)
    decision = SchedulingDecision.objects.get()
    assert decision.is_successful
    assert decision.target_host_name == hosts[0]
    assert decision.pipeline_name == "kvm-general-purpose-load-balancing"
    assert decision.pipeline_version == 1
    assert decision.request_id == "req-0221e2c2-ffd7-4894-b246-cbcfd1028568"
    assert (decision.vm_uuid, decision.hosts_in) == (VM_UUID, 9)


@recorded_in_rows
def test_no_suitable_host_is_an_empty_list_and_a_decision(nova: NovaClient) -> None:
    make_hosts(3, memory_gib=2)
    assert nova.hosts() == []
    assert in_flight() == []
    decision = SchedulingDecision.objects.get()
    assert not decision.is_successful
    assert decision.target_host_name == ""


def test_the_same_request_gives_the_same_order(nova: NovaClient) -> None:
    make_hosts(3)
    answers = [nova.hosts(options=READ_ONLY) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert sorted(answers[0]) == ["h1", "h2", "h3"]


@recorded_in_rows
def test_a_read_only_run_writes_nothing(nova: NovaClient) -> None:
    make_hosts(3)
    audited = AuditEntry.objects.count()
    assert len(nova.hosts(options=READ_ONLY)) == 3
    assert in_flight() == []
    assert not SchedulingDecision.objects.exists()
    assert AuditEntry.objects.count() == audited


@recorded_in_rows
@pytest.mark.parametrize(
    ("option", "held", "recorded"),
    [
        ("skip_inflight", 0, True),
        ("skip_history", 3, False),
        ("skip_committed_resource_tracking", 3, True),
    ],
)
def test_a_skip_option_skips_that_alone(
    nova: NovaClient, option: str, held: int, *, recorded: bool
) -> None:
    make_hosts(3)
    assert len(nova.hosts(options={option: True})) == 3
    assert len(in_flight()) == held
    assert SchedulingDecision.objects.exists() is recorded


def test_nova_gets_and_holds_three_candidates_unless_it_asks_otherwise(nova: NovaClient) -> None:
    make_hosts(5)
    offered = tuple(f"h{number}" for number in range(1, 6))
    assert len(nova.hosts(offered=offered)) == 3
    assert len(in_flight()) == 3
    assert len(nova.hosts(offered=offered, options={"max_candidates": 1})) == 1
    assert len(in_flight()) == 1
    assert len(nova.hosts(offered=offered, options={"skip_inflight": True})) == 5


@pytest.mark.parametrize(
    ("limit", "count"), [(0, 4), (1, 1), (2, 2), (10, 4)], ids=["0", "1", "2", "10"]
)
def test_max_candidates_keeps_the_best(nova: NovaClient, limit: int, count: int) -> None:
    weights = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    hosts = nova.hosts(
        offered=tuple(weights),
        weights=weights,
        pipeline="vmware-hana-bin-packing",
        options={**READ_ONLY, "max_candidates": limit},
    )
    assert hosts == list(weights)[:count]


def test_without_weighers_novas_own_order_is_kept(nova: NovaClient) -> None:
    weights = {"a": 50.0, "b": 55.0, "c": 60.0}
    for _ in range(3):
        hosts = nova.hosts(
            offered=tuple(weights),
            weights=weights,
            pipeline="vmware-hana-bin-packing",
            options=READ_ONLY,
        )
        assert hosts == ["c", "b", "a"]


def test_a_vm_without_uuid_is_answered_and_holds_nothing(nova: NovaClient) -> None:
    make_hosts(5)
    hosts = nova.hosts(instance_uuid=None, offered=("h1", "h2", "h3", "h4"))
    assert len(hosts) == 3
    assert in_flight() == []


def test_a_retry_is_not_blocked_by_its_own_hosts(nova: NovaClient) -> None:
    make_hosts(3, memory_gib=4, vcpus=1)
    assert sorted(nova.hosts()) == ["h1", "h2", "h3"]
    assert sorted(nova.hosts()) == ["h1", "h2", "h3"]
    other = nova.hosts(instance_uuid="11111111-0481-44a3-8e59-062b2298952f")
    assert other == []


# -- limiting to the request


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (("h1", "h2", "h3"), {"h1", "h2", "h3"}),
        (("h1", "h3"), {"h1", "h3"}),
        (("h4",), set()),
        ((), set()),
    ],
)
def test_the_answer_has_hosts_of_the_request_only(
    nova: NovaClient, offered: tuple[str, ...], expected: set[str]
) -> None:
    make_hosts(3)
    assert set(nova.hosts(offered=offered)) == expected
    assert set(in_flight()) == expected


def test_all_candidates_are_answered_when_the_limit_is_off(
    nova: NovaClient, scheduler_settings: Any
) -> None:
    make_hosts(3)
    scheduler_settings(nova_limit_hosts_to_request=False)
    assert sorted(nova.hosts(offered=("h1",))) == ["h1", "h2", "h3"]


def test_a_host_listed_for_several_nodes_counts_once(nova: NovaClient) -> None:
    make_hosts(2)
    hosts = [{"host": "h1", "hypervisor_hostname": f"node-{number}"} for number in range(3)]
    assert nova.hosts(hosts=hosts, weights={"h1": 0.0}) == ["h1"]


# -- evacuation


def test_the_best_hosts_of_an_evacuation_are_shuffled_by_the_vm(
    nova: NovaClient, scheduler_settings: Any
) -> None:
    offered = ("a", "b", "c", "d")
    weights = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    asked: dict[str, Any] = {
        "offered": offered,
        "weights": weights,
        "pipeline": "vmware-hana-bin-packing",
        "options": READ_ONLY,
        "hints": {"_nova_check_type": ["evacuate"]},
    }
    answers = {tuple(nova.hosts(**asked, instance_uuid=f"vm-{number}")) for number in range(20)}
    assert len(answers) > 1
    assert all(answer[3] == "d" and set(answer[:3]) == set("abc") for answer in answers)
    again = [nova.hosts(**asked, instance_uuid="vm-1") for _ in range(2)]
    assert again[0] == again[1]
    for count in (0, 1):
        scheduler_settings(evacuation_shuffle_k=count)
        assert nova.hosts(**asked) == list(offered)


def test_the_host_of_a_vms_failover_slot_stays_first_in_an_evacuation(nova: NovaClient) -> None:
    make_hosts(3, memory_gib=64)
    full = make_host("h4", memory_gib=64)  # spreading weighs against it
    make_vm(host=full, memory_gib=50, vcpus=1)
    slot = make_reservation(full, kind=ReservationKind.FAILOVER, memory_gib=4, vcpus=1)
    make_allocation(slot, make_vm(host=make_host("h9"), openstack_id=VM_UUID), state="expected")
    offered = ("h1", "h2", "h3", "h4")
    hosts = nova.hosts(offered=offered, options=READ_ONLY, hints={"_nova_check_type": ["evacuate"]})
    assert hosts[0] == "h4"
    assert sorted(hosts) == list(offered)
    assert nova.hosts(offered=offered, options=READ_ONLY)[-1] == "h4"


# -- what nobody tells


@recorded_in_rows
@pytest.mark.parametrize(
    ("flavor", "state", "told"),
    [
        pytest.param(None, "up", ("create", "no host carries the VM"), id="not known"),
        pytest.param("", "up", ("resize", "it is of flavor other on h9"), id="other flavor"),
        pytest.param(
            "same", "up", ("live_migration", "it is on h9, which is not lost"), id="same flavor"
        ),
        pytest.param("same", "down", ("evacuate", "its host h9 is down or fenced"), id="host down"),
        pytest.param(
            "same", "fenced", ("evacuate", "its host h9 is down or fenced"), id="host fenced"
        ),
    ],
)
def test_the_intent_is_inferred_where_nobody_tells_it(
    nova: NovaClient, admin_client: Client, flavor: str | None, state: str, told: tuple[str, str]
) -> None:
    make_hosts(3)
    asked = nova.template["spec"][DATA]["flavor"][DATA]["name"]
    if flavor is not None:
        home = make_host("h9", state="down" if state == "down" else "up")
        if state == "fenced":
            fence_host("h9")
        make_vm(host=home, openstack_id=VM_UUID, flavor_name=asked if flavor else "other")
    assert nova.hosts()
    decision = SchedulingDecision.objects.get()
    assert (decision.intent, decision.intent_reason) == told
    assert set(Reservation.objects.values_list("intent", flat=True)) == {told[0]}
    url = reverse("admin:capacity_schedulingdecision_change", args=[decision.pk])
    page = admin_client.get(url).content.decode()
    assert f"{told[0]}, not told, but {told[1]}" in page

    SchedulingDecision.objects.all().delete()
    assert nova.hosts(hints={"_nova_check_type": ["rebuild"]})
    decision = SchedulingDecision.objects.get()
    assert (decision.intent, decision.intent_reason) == ("rebuild", "")


def test_other_intents_are_not_shuffled(nova: NovaClient) -> None:
    weights = {"a": 4.0, "b": 3.0, "c": 2.0}
    for hint in ("rebuild", "resize", "live_migrate", "", "x"):
        hosts = nova.hosts(
            offered=tuple(weights),
            weights=weights,
            pipeline="vmware-hana-bin-packing",
            options=READ_ONLY,
            hints={"_nova_check_type": hint},
        )
        assert hosts == ["a", "b", "c"]


def test_the_answer_is_json_of_hosts_alone(nova: NovaClient) -> None:
    make_hosts(1)
    response = nova.post()
    assert response["Content-Type"] == "application/json"
    assert json.loads(response.content) == {"hosts": ["h1"]}
