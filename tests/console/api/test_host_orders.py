"""``PATCH`` of a host: maintenance, allowed projects, its agent's mode (spec hosts, C.1, D.6)."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from capacity.models import HostCapacity
from hosts.agents.models import HostAgent
from hosts.domain.capacity import HostInventory, resources_of
from hosts.domain.maintenance import maintenance_problem
from hosts.domain.overcommit import ratio_problem
from hosts.models import Aggregate, Host
from journal.models import AuditEntry
from tests.api.liquid_client import ADMIN, VIEWER
from tests.console.api.conftest import ask, page, problem
from tests.contract.test_operator_openapi import checked, document  # noqa: F401 - a fixture
from tests.factories import make_host
from tests.hosts.agents.workloads import enforcing, make_workload
from tests.hosts.region_files import load, small_region, write_file

pytestmark = pytest.mark.django_db


def patch(body: object, host: str = "h1", *, token: str = ADMIN) -> Any:
    return Client(raise_request_exception=False).patch(
        f"/api/v1/hosts/{host}",
        json.dumps(body),
        "application/json",
        headers={"X-Auth-Token": token} if token else {},
    )


def changed(**body: Any) -> dict[str, Any]:
    answer = patch(body)
    assert answer.status_code == 200, answer.content
    told: dict[str, Any] = answer.json()
    return told


TERMINATES = "the host is being terminated: only ha ends that, and nothing else changes"
NEEDS = "manual maintenance needs a reason"


@pytest.mark.parametrize(
    ("before", "after", "reason", "more", "wanted"),
    [
        ("", "termination", "", True, ""),
        ("termination", "termination", "", False, ""),
        ("termination", "termination", "", True, TERMINATES),
        ("termination", "manual", "x", False, TERMINATES),
        ("termination", "auto", "", False, TERMINATES),
        ("termination", "", "", False, TERMINATES),
        ("termination", "ha", "", True, ""),
        ("termination", "ha", "", False, ""),
        ("", "manual", "", False, NEEDS),
        ("auto", "manual", " ", False, NEEDS),
        ("termination", "manual", "", False, NEEDS),
        ("manual", "auto", "", True, ""),
    ],
)
def test_maintenance_becomes_what_the_table_allows(
    before: str, after: str, reason: str, *, more: bool, wanted: str
) -> None:
    assert maintenance_problem(before, after, reason=reason, is_more_changed=more) == wanted


def test_a_host_goes_into_maintenance_and_comes_back(document: dict[str, Any]) -> None:  # noqa: F811
    make_host("h1")
    first = changed(maintenance="manual", maintenance_reason="fans", reason="ticket 7")
    schema = {"$ref": "#/components/schemas/HostsChangedHost"}
    checked(first, {"components": document["components"], **schema})
    assert (first["maintenance"], first["maintenance_reason"]) == ("manual", "fans")
    row = page("/api/v1/hosts/h1")
    assert (row["is_ready"], row["maintenance"]) == (False, "manual")
    generation = Host.objects.get().generation
    assert changed(maintenance="manual", maintenance_reason="fans") == first
    assert Host.objects.get().generation == generation

    assert changed(maintenance="")["maintenance_reason"] == ""
    assert page("/api/v1/hosts/h1")["is_ready"]
    entries = AuditEntry.objects.filter(action="host_changed", object_id="h1").order_by("id")
    assert [entry.reason for entry in entries] == ["ticket 7", ""]
    assert problem(patch({"maintenance": "manual"}), 409)["code"] == "maintenance_refused"


def test_what_is_terminated_stays_so_until_ha() -> None:
    make_host("h1")
    changed(maintenance="termination", allowed_projects=["p1"])
    assert Host.objects.get().terminating_since is not None
    bodies: tuple[dict[str, Any], ...] = (
        {"maintenance": ""},
        {"allowed_projects": []},
        {"maintenance": "termination", "allowed_projects": ["p2"]},
    )
    for body in bodies:
        assert problem(patch(body), 409)["code"] == "maintenance_refused"
    assert changed(allowed_projects=["p1"])["maintenance"] == "termination"
    assert changed(maintenance="ha", allowed_projects=[])["allowed_projects"] == []


def test_orders_outlive_the_lists_of_the_cloud(tmp_path: Any) -> None:
    region = small_region()
    load(write_file(tmp_path, region))
    name = Host.objects.order_by("name").values_list("name", flat=True)[0]
    listed = page(f"/api/v1/hosts/{name}")["allowed_projects"]
    body = {"allowed_projects": ["p2", "p1", "p2"], "maintenance": "auto"}
    assert patch(body, name).json()["allowed_projects"] == ["p1", "p2"]

    load(write_file(tmp_path, region))

    told = page(f"/api/v1/hosts/{name}")
    assert (told["allowed_projects"], told["maintenance"]) == (["p1", "p2"], "auto")
    back = patch({"allowed_projects": None}, name).json()
    assert (back["allowed_projects"], back["are_projects_ordered"]) == (listed, False)
    load(write_file(tmp_path, region))
    assert page(f"/api/v1/hosts/{name}")["allowed_projects"] == listed


def test_projects_are_the_aggregates_again() -> None:
    make_host("h1")
    Aggregate.objects.create(
        uuid="a", name="a", host_names=["h1"], metadata={"filter_tenant_id": "p9, p8"}
    )
    changed(allowed_projects=["p1"])
    assert changed(allowed_projects=None)["allowed_projects"] == ["p8", "p9"]


def test_a_mode_is_ordered_with_the_rest_or_not_at_all() -> None:
    enforcing("h1")
    work = make_workload()
    refused = patch({"agent_mode": "observe", "maintenance": "manual"})
    assert problem(refused, 409)["code"] == "maintenance_refused"
    assert HostAgent.objects.get().mode == "enforce"

    assert changed(agent_mode="observe", maintenance="auto")["agent_mode"] == "observe"

    work.refresh_from_db()
    assert (HostAgent.objects.get().mode, work.to_delete) == ("observe", True)
    make_host("h2")
    assert problem(patch({"agent_mode": "none"}, "h2"), 404)["code"] == "unknown_agent"


@pytest.mark.parametrize(
    ("resource", "ratio", "problem"),
    [
        ("cpu", "1", ""),
        ("memory", "1.5", ""),
        ("cpu", "999.999", ""),
        ("cpu", "0.9", "must be from 1 and below 1000"),
        ("cpu", "0", "must be from 1 and below 1000"),
        ("cpu", "-1", "must be from 1 and below 1000"),
        ("cpu", "1000", "must be from 1 and below 1000"),
        ("cpu", "NaN", "must be from 1 and below 1000"),
        ("cpu", "1e99", "must be from 1 and below 1000"),
        ("memory", "1.0005", "has three decimals at most"),
        ("disk", "2", "is not known; known are cpu, memory"),
    ],
)
def test_ratios_that_may_be_ordered(resource: str, ratio: str, problem: str) -> None:
    assert ratio_problem(resource, Decimal(ratio)) == problem


def test_overcommit_is_the_rooms_at_once_and_outlives_the_lists(
    tmp_path: Any,
    document: dict[str, Any],  # noqa: F811
) -> None:
    region = small_region()
    load(write_file(tmp_path, region))
    host = Host.objects.order_by("name")[0]
    listed = (host.vcpus_ratio, host.effective_vcpus, host.effective_memory_bytes)

    told = patch({"overcommit": {"cpu": 2.5}, "reason": "test"}, host.name).json()

    schema = {"$ref": "#/components/schemas/HostsChangedHost"}
    checked(told, {"components": document["components"], **schema})
    assert (told["overcommit"]["cpu"], told["ordered_overcommit"]) == (2.5, {"cpu": 2.5})
    host.refresh_from_db()
    wanted = (host.total_vcpus - host.reserved_vcpus) * 5 // 2
    assert (host.effective_vcpus, host.effective_memory_bytes) == (wanted, listed[2])
    room = HostCapacity.objects.get(host=host)
    assert room.effective_vcpus == wanted
    entry = AuditEntry.objects.get(action="host_changed", object_id=host.name)
    assert entry.before is not None
    assert (entry.before["ordered_overcommit"], entry.reason) == ({}, "test")
    generation = Host.objects.get(pk=host.pk).generation
    load(write_file(tmp_path, region))
    host.refresh_from_db()
    assert (host.effective_vcpus, host.generation) == (wanted, generation)

    back = patch({"overcommit": None}, host.name).json()

    assert back["ordered_overcommit"] == {}
    host.refresh_from_db()
    again = (host.vcpus_ratio, host.effective_vcpus, host.effective_memory_bytes)
    assert again == listed
    assert HostCapacity.objects.get(host=host).effective_vcpus == listed[1]
    load(write_file(tmp_path, region))
    host.refresh_from_db()
    assert host.effective_vcpus == listed[1]


def test_cpus_that_are_vms_alone_keep_their_ratio() -> None:
    inventories = {
        "VCPU": HostInventory(total=10, reserved=2, ratio=Decimal(16)),
        "PCPU": HostInventory(total=4),
        "MEMORY_MB": HostInventory(total=100, ratio=Decimal("1.2")),
    }
    vcpus, memory, disk = resources_of(inventories, {"cpu": Decimal("1.125")})
    assert (vcpus.effective, vcpus.total, vcpus.ratio) == (9 + 4, 14, Decimal("1.125"))
    assert (memory.effective, disk.effective) == (120 << 20, 0)
    assert resources_of({}, {"cpu": Decimal(2)})[0].effective == 0
    huge = {"MEMORY_MB": HostInventory(total=2**43)}
    assert resources_of(huge, {"memory": Decimal(999)})[1].effective == 2**63 - 1


def test_a_host_of_which_only_sums_are_known_is_oversold_as_a_whole() -> None:
    make_host("h1", memory_gib=10, vcpus=40)
    told = changed(overcommit={"memory": 1.5, "cpu": 2})
    assert told["overcommit"] == {"cpu": 2.0, "memory": 1.5}
    host = Host.objects.get()
    assert (host.effective_vcpus, host.effective_memory_bytes) == (80, 15 << 30)
    assert changed(overcommit={})["ordered_overcommit"] == {}
    host.refresh_from_db()
    assert (host.effective_vcpus, host.effective_memory_bytes) == (40, 10 << 30)


def test_a_host_without_high_availability_is_told_so() -> None:
    make_host("h1")
    assert page("/api/v1/hosts/h1")["high_availability"] is True
    assert changed(high_availability=False)["high_availability"] is False
    assert page("/api/v1/hosts/h1")["high_availability"] is False
    changed(maintenance="termination")
    refused = patch({"high_availability": True})
    assert problem(refused, 409)["code"] == "maintenance_refused"


def test_what_cannot_be_ordered_is_refused_and_changes_nothing() -> None:
    make_host("h1")
    make_host("own", is_self_described=True)
    before = list(Host.objects.order_by("pk").values())
    bodies: list[object] = [
        [], {}, {"reason": "x"}, {"maintenance_reason": "x"}, {"maintenance": None},
        {"maintenance": "soon"}, {"agent_mode": 1}, {"allowed_projects": "p1"},
        {"allowed_projects": [""]}, {"allowed_projects": ["p" * 65]},
        {"allowed_projects": ["p"] * 1001}, {"maintenance": "auto", "name": "h2"},
        {"maintenance": "auto", "reason": "a\0"}, {"overcommit": 2}, {"overcommit": {"cpu": "2"}},
        {"overcommit": {"cpu": True}}, {"overcommit": {"cpu": 0.9}}, {"overcommit": {"gpu": 2}},
        {"overcommit": {"cpu": 1e308}}, {"overcommit": {"cpu": None}}, {"overcommit": []},
        {"high_availability": None}, {"high_availability": 1}, {"high_availability": "no"},
    ]  # fmt: skip
    for body in bodies:
        assert problem(patch(body), 400)["code"] == "invalid_input", body
    good = {"maintenance": "auto"}
    for host in ("h9", "a%00b", "%ff"):
        problem(patch(good, host), 404)
    assert problem(patch(good, "own"), 409)["code"] == "host_described_elsewhere"
    problem(patch(good, token=VIEWER), 403)
    problem(patch(good, token=""), 401)
    problem(ask("/api/v1/hosts/h1", method="POST", token=ADMIN), 405)
    problem(ask("/api/v1/vms/h1", method="PATCH", token=ADMIN), 405)
    assert list(Host.objects.order_by("pk").values()) == before
