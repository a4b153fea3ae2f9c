"""What agents see on their hosts: VMs, and what they have made (spec hosts, D.6)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from headroom_host_agent.provision.built_in.base import Place
from headroom_host_agent.provision.built_in.capacity_slice import CapacitySlice
from headroom_host_agent.provision.built_in.disk_quota import DiskQuota
from headroom_host_agent.provision.built_in.hugepages import Hugepages
from headroom_host_agent.provision.built_in.vgpu import Vgpu
from headroom_host_agent.provision.provisioners import Accounting, Provisioner
from headroom_host_agent.server.identity import Identity

from hosts.agents import observed
from hosts.agents.models import HostAgent
from hosts.agents.observed import expected_of, instances_digest
from hosts.domain.vm_list import ReportedVM, ReportingHost
from hosts.metrics import _of_agents
from hosts.models import Host
from hosts.vm_source import reporting_hosts
from journal.clock import database_now
from journal.models import AuditEntry
from tests.agent.provision.workshop import reservation
from tests.factories import make_vm
from tests.hosts.agents.agents import signed
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import agent_named, enforcing, make_workload

pytestmark = pytest.mark.django_db(transaction=True)


def vm(uuid: str, *, active: bool = True) -> dict[str, Any]:
    return {"uuid": uuid, "name": f"name {uuid}", "active": active}


def send(
    identity: Identity, part: str, document: dict[str, Any], *, method: str = "PUT", ago: int = 0
) -> HttpResponse:
    at = (database_now() - timedelta(seconds=ago)).isoformat()
    path = f"/hosts/v1/{identity.host_id}/{part}"
    return signed(identity, {"generated_at": at, **document}, method=method, path=path).send()


def put(identity: Identity, *vms: dict[str, Any], ago: int = 0) -> HttpResponse:
    return send(identity, "instances", {"instances": list(vms)}, ago=ago)


def patch(identity: Identity, digest: str, *added: dict[str, Any], removed: str = "") -> Any:
    document = {"added": list(added), "removed": removed.split(), "base_digest": digest}
    return send(identity, "instances", document, method="PATCH")


def kept() -> list[ReportingHost]:
    return reporting_hosts()


def digest() -> str:
    return instances_digest(Host.objects.get().reported_instances or [])


def test_a_list_is_kept_as_the_hosts_own_and_changed_by_its_digest() -> None:
    identity = enforcing()
    assert put(identity, vm("b"), vm("a", active=False)).status_code == 204
    a = ReportedVM(vm_uuid="a", name="name a", is_active=False)
    b, c = (ReportedVM(vm_uuid=name, name=f"name {name}") for name in "bc")
    assert kept() == [ReportingHost(name="h1", vms=(a, b))]

    assert patch(identity, digest(), vm("c"), removed="b x").status_code == 204

    assert kept() == [ReportingHost(name="h1", vms=(a, c))]
    assert code_of(patch(identity, "0" * 64, vm("d"))) == (409, "digest_mismatch")
    assert put(identity, vm("b"), ago=60).status_code == 204  # older than what is kept
    assert kept() == [ReportingHost(name="h1", vms=(a, c))]


def test_an_empty_list_needs_the_cloud_to_say_so_too() -> None:
    identity = enforcing()
    row = make_vm(host=Host.objects.get())
    put(identity, vm("a"))

    assert code_of(put(identity)) == (409, "empty_list_unproven")
    assert code_of(patch(identity, digest(), removed="a")) == (409, "empty_list_unproven")

    assert [len(host.vms) for host in kept()] == [1]
    row.delete()
    assert put(identity).status_code == 204
    assert kept() == [ReportingHost(name="h1")]


def test_changes_make_no_list_longer_than_one_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "MOST_VMS", 3)
    identity = enforcing()
    put(identity, vm("a"), vm("b"))

    assert patch(identity, digest(), vm("b"), vm("c")).status_code == 204
    before = kept()
    assert code_of(patch(identity, digest(), vm("d"))) == (400, "invalid_report")
    assert kept() == before
    assert patch(identity, digest(), vm("d"), removed="a").status_code == 204


@pytest.mark.parametrize(
    "document",
    [
        {"instances": None},
        {"instances": [{"uuid": "a"}]},
        {"instances": [{**vm("a"), "active": 1}]},
        {"instances": [], "generated_at": "yesterday"},
        {"instances": [], "generated_at": "2999-01-01T00:00:00Z"},
        {"instances": [], "more": 1},
    ],
)
def test_what_is_no_list_changes_nothing(document: dict[str, Any]) -> None:
    identity = enforcing()
    assert code_of(send(identity, "instances", document)) == (400, "invalid_report")
    assert kept() == []


def stats(identity: Identity, cru: int, mru: int, count: int, *, ago: int = 0) -> HttpResponse:
    units = {"cru": cru, "mru": mru, "hru": 0, "sru": 0}
    document = {"units": units, "workloads": {"accounting": count}}
    return send(identity, "stats", document, ago=ago)


def test_drift_is_shown_and_audited_once_and_overwrites_nothing() -> None:
    identity = enforcing()
    row = make_workload(cpus=8, memory_bytes=32)
    assert stats(identity, 0, 0, 0).status_code == 204
    assert agent_named().stats_drift is None  # something is open
    tell(identity, row)

    assert stats(identity, 8, 32, 1).status_code == 204
    assert agent_named().stats_drift == {}
    for _ in range(2):
        assert stats(identity, 8, 16, 2).status_code == 204
    assert agent_named().stats_drift == {"mru": [32, 16], "workloads.accounting": [1, 2]}
    assert stats(identity, 0, 0, 0, ago=30).status_code == 204
    assert agent_named().stats == {
        "units": {"cru": 8, "mru": 16, "hru": 0, "sru": 0}, "workloads": {"accounting": 2},
    }  # fmt: skip
    row.refresh_from_db()
    assert row.state == "deployed"
    assert stats(identity, 8, 32, 1).status_code == 204
    told = AuditEntry.objects.filter(action__startswith="host_stats").order_by("id")
    assert list(told.values_list("action", flat=True)) == [
        "host_stats_drifted",
        "host_stats_agree",
    ]
    assert code_of(stats(identity, -1, 0, 0)) == (400, "invalid_report")


KINDS: tuple[tuple[str, Provisioner, dict[str, Any]], ...] = (
    ("accounting", Accounting(), {}),
    ("capacity_slice", CapacitySlice(Place()), {"cpu_weight": 100}),
    ("hugepages", Hugepages(Place()), {"page_size": "1GiB", "count": 3}),
    ("hugepages", Hugepages(Place()), {"page_size": "2MiB", "count": 5}),
    ("disk_quota", DiskQuota(Place()), {"size_bytes": 77, "device_class": "ssd"}),
    ("vgpu", Vgpu(Place()), {"profile": "L40S-1Q"}),
)


@pytest.mark.parametrize(
    ("kind", "made", "data"), KINDS, ids=[f"{kind}{n}" for n, (kind, _, _) in enumerate(KINDS)]
)
def test_what_is_expected_of_a_type_is_what_its_provisioner_counts(
    kind: str, made: Provisioner, data: dict[str, Any]
) -> None:
    identity = enforcing()
    row = make_workload(1, type=kind, data=data, cpus=4, memory_bytes=3000, disk_bytes=0)
    other = make_workload(2, cpus=1, memory_bytes=10)
    assert tell(identity, row, type=kind).status_code == 201
    assert tell(identity, other).status_code == 201
    taken = {"cpu": 4, "memory": 3000}
    counted = made.units(
        reservation(row.gwid, kind, data=json.dumps(data).encode(), resources=taken)
    )

    expected = expected_of(agent_named())

    disk = counted.hru + counted.sru
    assert expected["units"] == {"cru": 1 + counted.cru, "mru": 10 + counted.mru, "disk": disk}
    wanted = {"accounting": 2} if kind == "accounting" else {kind: 1, "accounting": 1}
    assert expected["workloads"] == wanted


def test_a_scrape_tells_of_agents_what_they_were_asked_and_whether_they_agree() -> None:
    identity = enforcing()
    make_workload(1)
    row = make_workload(2)
    tell(identity, row, state="deleted")
    HostAgent.objects.update(stats_drift={"cru": [1, 2]})

    with connection.cursor() as cursor:
        _, liveness, reservations, drift, *_ = _of_agents(cursor)

    assert liveness == [["h1", "az-a", "enrolled", 1]]
    assert reservations == [["h1", "accounting", "pending", 1]]
    assert drift == [["h1", 1]]
