"""The slots, VMs and events of one host, and filters by what its agent says (spec hosts, D.6)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from console.api.host_rows import ROWS_OF_HOSTS
from hosts.agents.leases import fence
from hosts.models import Host
from hosts.services.evictions import open_eviction
from journal.actors import Actor
from journal.services import Change, record_changes
from tests.console.api.conftest import ask, page, problem, walked
from tests.factories import make_commitment, make_host, make_slot, make_vm
from tests.hosts.agents.workloads import enforcing, make_workload

pytestmark = pytest.mark.django_db
ANN = Actor(name="ann")


def names(query: str) -> set[str]:
    return {row["name"] for row in walked(f"/api/v1/hosts?limit=2&{query}")}


def test_a_host_has_its_own_rows_and_none_of_others() -> None:
    enforcing("h1")
    enforcing("h2")
    commitment = make_commitment()
    slots = {name: make_slot(commitment, Host.objects.get(name=name)) for name in ("h1", "h2")}
    vms = {name: make_vm(host=Host.objects.get(name=name)) for name in ("h1", "h2")}
    works = {name: make_workload(number, name) for number, name in enumerate(("h1", "h2"), 1)}
    for name in ("h1", "h2"):
        fence(name, actor=ANN, request_id="r", reason=f"of {name}")
    record_changes(
        [Change(action="made", object_type="Reservation", object_id="h1")],
        actor=ANN,
        request_id="r",
    )

    for name in ("h1", "h2"):
        base = f"/api/v1/hosts/{name}"
        assert [row["uuid"] for row in walked(f"{base}/slots?limit=1")] == [str(slots[name].uuid)]
        listed = [row["uuid"] for row in walked(f"{base}/instances?limit=1")]
        assert listed == [vms[name].openstack_id]
        told = walked(f"{base}/events?limit=1")
        assert [row["action"] for row in told] == [
            "host_agent_down",
            "host_workload_created",
            "host_agent_enrolled",
        ]
        assert told[0]["reason"] == f"of {name}"
        assert told[1]["object_id"] == works[name].gwid
        assert walked(f"{base}/events?action=host_workload_created") == told[1:2]


def test_conditions_and_evictions_of_a_host_are_told() -> None:
    host = make_host("h1", conditions={"Ready": "True", "Evicting": "False"}, maintenance="manual")
    make_host("h2", conditions={"Ready": "False"})
    items = walked("/api/v1/hosts/h1/conditions?limit=1")
    assert [(one["type"], one["status"]) for one in items] == [
        ("Evicting", "False"), ("Ready", "True"),
    ]  # fmt: skip
    assert all(one["last_transition_at"] for one in items)
    (only,) = walked("/api/v1/hosts/h1/conditions?type=Ready")
    assert only == items[1]

    make_vm("vm", host, memory_gib=4)
    with transaction.atomic():
        open_eviction(host, reason="new disks", actor=ANN)
    (told,) = walked("/api/v1/hosts/h1/evictions")
    assert (told["outstanding_vms"], told["reason"], told["closed_at"]) == (1, "new disks", None)
    assert told["outstanding"][0]["step"] == "live migration"
    assert walked("/api/v1/hosts/h1/evictions?end=succeeded") == []
    assert walked("/api/v1/hosts/h2/evictions") == []


@pytest.mark.parametrize("view", ROWS_OF_HOSTS, ids=lambda view: view.path_label)
def test_rows_of_a_host_that_there_is_not_are_not_found(view: Any) -> None:
    make_host("h1")
    assert page(view.path_label.format(name="h1")) == {"items": [], "next": None}
    for name in ("h9", "a%00b", "%ff", "h1%0a"):
        problem(ask(view.path_label.format(name=name)), 404)
    problem(ask(view.path_label.format(name="h1") + "?surprise=1"), 400)
    problem(ask(view.path_label.format(name="h1"), method="POST"), 405)


def test_hosts_are_found_by_agent_readiness_and_trait() -> None:
    enforcing("h1")
    make_host("bare", traits=["CUSTOM_FAST"])
    facts_of: dict[str, dict[str, Any]] = {
        "down": {"state": "down"},
        "manual": {"maintenance": "manual"},
        "ha": {"maintenance": "ha", "custom_traits": ["CUSTOM_FAST"]},
        "unready": {"conditions": {"Ready": "Unknown"}},
        "silent": {"conditions": {"Evicting": "False"}},
        "sound": {"conditions": {"Ready": "True", "Terminating": "False"}},
        "leaving": {"conditions": {"Ready": "True", "Terminating": "True"}},
    }
    for name, facts in facts_of.items():
        make_host(name, **facts)

    assert names("liveness=enrolled") == names("agent_mode=enforce") == {"h1"}
    assert names("liveness=unmanaged") == names("agent_mode=none") == names("") - {"h1"}
    assert names("trait=CUSTOM_FAST") == {"bare", "ha"}
    ready = {row["name"] for row in walked("/api/v1/hosts") if row["is_ready"]}
    assert names("is_ready=true") == ready == {"h1", "bare", "ha", "sound"}
    assert names("is_ready=false") == names("") - ready
    told = page("/api/v1/hosts/h1")
    assert (told["agent_mode"], told["liveness"]) == ("enforce", "enrolled")
