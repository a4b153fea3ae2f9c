"""A region whose hosts come from Hypervisor objects gives the answers of the same in a file."""

from __future__ import annotations

import json
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from bridge.hypervisors.reading import building_block
from bridge.hypervisors.writing import told_by, write_list
from capacity.figures.group_capacity import refresh_group_capacity
from capacity.models import FlavorCapacity, GroupCapacity, HostCapacity, Reservation
from capacity.nova.pipelines import ensure_shipped_pipelines
from hosts.models import Flavor, Host, Instance
from journal.actors import Actor
from tests.api.scheduler_client import DATA, NovaClient
from tests.bridge.hypervisor_objects import Json, object_of
from tests.hosts.region_files import empty_database, load, write_file
from tests.hosts.test_generate_region import generate

pytestmark = pytest.mark.django_db(transaction=True)

ROOM = [
    f"{what}_{part}"
    for what in ("effective", "allocated", "committed", "failover", "in_flight")
    for part in ("memory_bytes", "vcpus")
]


def lying(region: Json) -> Json:
    """Return a region whose lists say of hosts what is not so, but for whether they are up."""
    told = deepcopy(region)
    for number, provider in enumerate(told["placement"]["resource_providers"]):
        for inventory in provider["inventories"]["inventories"].values():
            inventory["total"] = max(1, inventory["total"] // (2 + number % 3))
        provider["traits"] = {"traits": ["CUSTOM_LIE"]}
    told["headroom"]["hosts"] = []
    return told


def objects() -> list[Json]:
    vms = defaultdict(list)
    for vm in Instance.objects.exclude(host=None).order_by("openstack_id"):
        vms[vm.host_id].append(vm)
    return [object_of(host, vms[host.pk]) for host in Host.objects.order_by("name")]


def scheduled() -> list[Any]:
    """Return what becomes of each host when some flavors are asked for."""
    nova = NovaClient(hosts=())
    answers = []
    zones = sorted(set(Host.objects.values_list("zone", flat=True)))
    for number, flavor in enumerate(Flavor.objects.order_by("name")[::4]):
        asked = {
            "name": flavor.name,
            "memory_mb": flavor.memory_bytes >> 20,
            "vcpus": flavor.vcpus,
            "extra_specs": flavor.extra_specs,
        }
        body = nova.body(availability_zone=zones[number % len(zones)], offered=())
        body["spec"][DATA]["flavor"][DATA].update(asked)
        path = "/api/v1/scheduling/explain"
        response = nova.send("POST", json.dumps(body).encode(), path=path, token="admin")
        assert response.status_code == 200, response.content
        answer = response.json()
        answers.append((answer["target"], answer["hosts"]))
    return answers


def simulated() -> list[Any]:
    """Return what the failure of each of some hosts would do."""
    client = Client(headers={"X-Auth-Token": "admin"})
    answers = []
    for name in Host.objects.order_by("name").values_list("name", flat=True)[::8]:
        asked = {"failed": {"hosts": [name]}, "explain": True}
        response = client.post("/api/v1/failover/simulations", asked, "application/json")
        assert response.status_code == 200, response.content
        answers.append(response.json())
    return answers


def figures() -> list[Any]:
    """Return what is sold of each flavor group and flavor, by zone."""
    refresh_group_capacity()
    groups = [
        name
        for name in ("group_name", "zone", *(field.name for field in GroupCapacity._meta.fields))
        if name not in {"id", "changed_xid", "created_at", "updated_at", "computed_at"}
    ]
    flavors = (
        "group_capacity__group_name",
        "group_capacity__zone",
        "flavor_name",
        "total_vm_slots",
        "total_hosts",
        "placeable_vms",
        "placeable_hosts",
    )
    return [
        *GroupCapacity.objects.order_by("group_name", "zone").values_list(*groups),
        *FlavorCapacity.objects.order_by(*flavors[:3]).values_list(*flavors),
    ]


def rooms() -> list[Any]:
    return sorted(HostCapacity.objects.values_list("host__name", "zone", *ROOM))


def answers() -> dict[str, Any]:
    slots = Reservation.objects.exclude(commitment=None)
    return {
        "rooms": rooms(),
        "slots": sorted(
            map(
                str,
                slots.values_list("commitment__commitment_uuid", "slot_index", "target_host__name"),
            )
        ),
        "capacity": figures(),
        "scheduler": scheduled(),
        "failover": simulated(),
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_answers_are_equal(seed: int, takes_objects: Any, tmp_path: Path) -> None:
    by_objects = takes_objects.HEADROOM.model_copy(update={"auth": "noauth"})
    off = by_objects.hypervisors.model_copy(update={"sync": "off"})
    by_file = by_objects.model_copy(update={"hypervisors": off, "allocation_source": "instances"})

    region = json.loads(generate(hosts=24, vms=240, commitments=20, seed=seed))
    region["headroom"]["hosts"] = [
        {
            "name": one["hypervisor_hostname"],
            "building_block": building_block(one["hypervisor_hostname"]),
            "conditions": {"Ready": "True", "HypervisorDisabled": "False"},
        }
        for one in region["compute"]["hypervisors"]
    ]
    takes_objects.HEADROOM = by_file
    load(write_file(tmp_path, region), place=True)
    told = dict(map(told_by, objects()))
    expected = answers()
    assert any(figures()), "the region sells nothing"

    empty_database()
    ensure_shipped_pipelines(request_id="test")
    lies = write_file(tmp_path, lying(region), "lies.json")
    load(lies)
    assert rooms() != expected["rooms"]
    takes_objects.HEADROOM = by_objects
    write_list(told, actor=Actor(name="test"))
    load(lies, place=True)
    found = answers()
    for name, answer in expected.items():
        assert found[name] == answer, name
