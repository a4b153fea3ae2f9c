"""Whether a host has room, asked over HTTP (spec hosts, A.9, D.6)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from capacity.models import HostCapacity
from hosts.agents.models import HostAgent
from hosts.models import Host
from journal.clock import database_now
from tests.api.liquid_client import VIEWER
from tests.capacity.test_slot_resources import gpu_group
from tests.factories import make_commitment, make_host, make_slot
from tests.hosts.agents.agents import report
from tests.hosts.agents.test_orders import _tokens, refusal, told  # noqa: F401 - a fixture
from tests.hosts.agents.workloads import enforcing

pytestmark = pytest.mark.django_db
GIB = 1 << 30


def ask(request: object, host: str = "h1") -> Any:
    return Client(raise_request_exception=False).post(
        f"/api/v1/hosts/{host}/check-admission",
        json.dumps(request),
        "application/json",
        headers={"X-Auth-Token": VIEWER},
    )


def answer(**request: Any) -> dict[str, Any]:
    return told(ask(request), "Admission")


def short(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    failures = found["failures"]
    return [(one["resource"], one["requested"], one["available"]) for one in failures]


def resource(kind: str, limit: int, allocated: int = 0, **changes: Any) -> dict[str, Any]:
    status = report()[kind] | {"capacity": limit, "effective_limit": limit, "allocated": allocated}
    return {**status, **changes}


def reported(**changes: Any) -> None:
    now = database_now()
    document = report(**changes)
    HostAgent.objects.update(report=document, reported_at=now, generated_at=now)


def test_cpus_and_memory_are_the_ledgers_with_slots_in_them() -> None:
    host = make_host("h1", memory_gib=64, vcpus=16)
    make_slot(make_commitment(), host, memory_gib=60, vcpus=12)

    assert answer(vcpus=4, memory_bytes=4 * GIB)["fits"]
    found = answer(vcpus=5, memory_bytes=8 * GIB, disk_bytes=2)

    assert short(found) == [("cpu", 5, 4), ("memory", 8 * GIB, 4 * GIB)]
    assert found["failures"][1]["message"].startswith("memory: requested 8.0 GB, available 4.0 GB")
    assert (found["largest_fit"]["vcpus"], found["largest_fit"]["memory_bytes"]) == (2, 4 * GIB)
    assert found["unchecked"] == ["disk"]
    assert answer() == {
        "host": "h1", "fits": True, "failures": [], "unchecked": [],
        "largest_fit": {**dict.fromkeys(found["largest_fit"], 0), "needs_gpu": False},
    }  # fmt: skip


def test_the_rest_is_as_the_agent_reported_it() -> None:
    enforcing("h1")
    gpu = {"mode": "vgpu", "total_slots": 4, "used_slots": 4, "allocatable_slots": 0,
           "quarantined_slots": 0}  # fmt: skip
    reported(
        disk=resource("disk", 100, 90),
        network=resource("network", 125_000_000, 50_000_000),
        disk_io=resource("disk_io", 100, stale=True, error="no lister"),
        gpu=gpu,
    )
    found = answer(
        vcpus=1,
        disk_bytes=20,
        network_download_bps=10_000_000,
        network_upload_bps=80_000_000,
        disk_io_bps=1,
        needs_gpu=True,
    )
    assert short(found) == [
        ("disk", 20, 10),
        ("network", 80_000_000, 75_000_000),
        ("disk_io", 1, 0),
        ("gpu", 1, 0),
    ]
    assert "no lister" in found["failures"][2]["message"]
    assert found["largest_fit"] is None  # no GPU is left, whatever the size
    reported(network=resource("network", 0, source="unknown"))
    assert answer(network_upload_bps=10**12)["fits"]
    assert not answer(needs_gpu=True)["fits"]
    HostAgent.objects.update(decommissioned_at=database_now())
    assert answer(disk_bytes=1)["unchecked"] == ["disk"]


def test_what_slots_hold_of_the_rest_is_not_there_for_others() -> None:
    gpu_group()
    enforcing("h1")
    host = Host.objects.get()
    gpu = {"mode": "vgpu", "total_slots": 4, "used_slots": 2, "allocatable_slots": 2,
           "quarantined_slots": 0}  # fmt: skip
    reported(network=resource("network", 10_000_000, 1_000_000), gpu=gpu)
    assert answer(needs_gpu=True, network_upload_bps=9_000_000)["fits"]
    commitment = make_commitment()
    make_slot(commitment, host, memory_gib=1)
    assert answer(needs_gpu=True, network_upload_bps=8_000_000)["fits"]
    make_slot(commitment, host, memory_gib=1)

    found = answer(needs_gpu=True, network_upload_bps=8_000_000)

    assert short(found) == [("network", 8_000_000, 7_000_000), ("gpu", 1, 0)]
    assert "all slots are in use (mode vgpu, total 4, used 4)" in found["failures"][1]["message"]


def test_what_cannot_be_answered_is_refused_and_nothing_is_held() -> None:
    make_host("h1")
    before = HostCapacity.objects.values().get()
    assert answer(vcpus=1)["fits"]
    for host in ("h9", "a%00b", "%ff"):
        assert refusal(ask({}, host)) == (404, "host_room_unknown")
    wrong: list[object] = [[], {"vcpus": -1}, {"vcpus": "1"}, {"vcpus": 2**63}, {"needs_gpu": 1}]
    for request in wrong:
        assert refusal(ask(request)) == (400, "invalid_input")
    assert HostCapacity.objects.values().get() == before
    HostCapacity.objects.all().delete()
    assert Host.objects.exists()
    assert refusal(ask({})) == (404, "host_room_unknown")
