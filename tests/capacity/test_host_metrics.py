"""What a scrape tells of hosts with agents (spec hosts, D.13)."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from prometheus_client import REGISTRY

from capacity.metrics.hosts import HOSTS
from capacity.models import HostCapacity
from hosts.agents.resource_models import HostResource
from hosts.models import Host
from journal.metrics import metric_name
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, report, signed

pytestmark = pytest.mark.django_db(transaction=True)


def told() -> dict[str, float]:
    """Return the series of a scrape by name without prefix, then label values."""
    prefix = metric_name("")
    return {
        " ".join([sample.name.removeprefix(prefix), *sample.labels.values()]): sample.value
        for family in HOSTS.collect()
        for sample in family.samples
    }


def test_a_report_is_told_beside_what_reservations_hold() -> None:
    make_host(
        "h1",
        zone="az-a",
        conditions={"Ready": "True", "Evicting": "False"},
        condition_reasons={"Evicting": {"reason": "Succeeded", "message": "all gone"}},
    )
    make_host("h2")
    assert told() == {
        "host_condition h1 az-a Ready ": 1,
        "host_condition h1 az-a Evicting Succeeded": 0,
    }
    gpu: dict[str, Any] = {
        "mode": "vgpu",
        "total_slots": 8,
        "used_slots": 2,
        "allocatable_slots": 5,
        "quarantined_slots": 1,
        "profiles": [{"name": "L40S-1Q", "framebuffer_mb": 1024, "available": 5}],
    }
    cpu = report()["cpu"] | {"effective_limit": 128, "allocated": 100, "oversub_ratio": 2.0}
    parts = {"images_bytes": 1, "oci_cache_bytes": 2, "volumes_bytes": 3, "overlays_bytes": 4}
    health = [
        {"check": "clock", "ok": True, "message": ""},
        {"check": "disk", "ok": False, "message": "sda has died"},
    ]
    images = {"current_bytes": 3, "max_bytes": 20}
    document = report(cpu=cpu, gpu=gpu, disk_breakdown=parts, image_storage=images, health=health)
    assert signed(enrolled("h1"), document).send().status_code == 204
    HostCapacity.objects.filter(host__name="h1").update(committed_vcpus=20, failover_vcpus=10)
    HostResource.objects.filter(resource="gpu").update(reserved=3)

    found = told()

    amounts = ("capacity", "effective_limit", "allocated", "reserved", "available")
    of_cpu = [found[f"host_resource_{name} h1 az-a cpu"] for name in amounts]
    assert of_cpu == [64, 128, 100, 30, 0]
    assert [found[f"host_resource_{name} h1 az-a gpu"] for name in amounts] == [8, 7, 2, 3, 2]
    assert found["host_oversub_ratio h1 az-a cpu"] == 2
    assert "host_oversub_ratio h1 az-a gpu" not in found
    kinds = ("images", "oci_cache", "volumes", "overlays")
    assert [found[f"host_disk_breakdown_bytes h1 {kind}"] for kind in kinds] == [1, 2, 3, 4]
    shares = [found[f"host_image_storage_bytes h1 {kind}"] for kind in ("current", "max")]
    assert shares == [3, 20]
    slots = ("total", "used", "allocatable", "quarantined")
    assert [found[f"host_gpu_slots h1 {kind}"] for kind in slots] == [8, 2, 5, 1]
    assert found["host_gpu_profile_slots h1 L40S-1Q"] == 5
    assert found["host_condition h1 az-a clock "] == 1
    assert found["host_condition h1 az-a disk failed"] == 0
    assert not any(" h2" in name for name in found)


def test_a_large_region_tells_no_host(settings: Any) -> None:
    make_host("h1", conditions={"Ready": "True"})
    signed(enrolled("h1")).send()
    few = settings.HEADROOM.metrics.model_copy(update={"hosts_up_to": 0})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"metrics": few})
    assert Host.objects.count() == 1
    assert told() == {}


def test_refused_requests_of_agents_are_counted_by_code() -> None:
    def refused() -> float:
        name, code = metric_name("host_requests_rejected_total"), {"code": "replayed"}
        return REGISTRY.get_sample_value(name, code) or 0

    make_host("h1")
    request, before = signed(enrolled("h1")), refused()
    assert (request.send().status_code, refused()) == (204, before)
    assert (request.send().status_code, refused()) == (401, before + 1)
    assert Client().get("/hosts/v1/enrol").status_code == 405
