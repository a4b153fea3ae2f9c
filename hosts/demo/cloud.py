"""The demo's world as Nova and Placement would tell it, for the feed's own readers and writers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from io import BytesIO
from typing import Any, Final
from urllib.parse import unquote

import orjson

from hosts.clients.listing import COMPUTE, PLACEMENT
from hosts.domain.demo_world import DemoHost, DemoVM, Size, World
from hosts.region.dump import dump_region
from hosts.region.registry import DumpOptions

Json = Any  # bodies keep the APIs' own shapes

ACTIVE: Final[Mapping[str, Json]] = {
    "status": "ACTIVE",
    "OS-EXT-STS:vm_state": "active",
    "OS-EXT-STS:power_state": 1,
    "OS-EXT-STS:task_state": None,
}


class DemoCloud:
    """Bodies of the cloud's APIs over a region as it was dumped, changed as the world changes."""

    def __init__(self, region: Json) -> None:
        """Take a region file's document."""
        compute = region["compute"]
        self.hypervisors: dict[str, Json] = {
            one["hypervisor_hostname"]: one for one in compute["hypervisors"]
        }
        self.services: dict[str, Json] = {
            one["host"]: one for one in compute["services"] if one["binary"] == "nova-compute"
        }
        self.aggregates: list[Json] = compute["aggregates"]
        self.servers: dict[str, Json] = {one["id"]: one for one in compute["servers"]}
        self.flavors: dict[str, Json] = {one["name"]: one for one in compute["flavors"]}
        self.providers: dict[str, Json] = {
            one["uuid"]: one for one in region["placement"]["resource_providers"]
        }
        self._changed: dict[str, Json] = {}

    @property
    def region_name(self) -> str:
        """Name that the region gets where it has none."""
        return "demo"

    def has(self, service: str) -> bool:
        """Return whether the catalog lists a service."""
        return service in {COMPUTE, PLACEMENT}

    def get(self, service: str, path: str) -> Json:
        """Return the body of a GET, None for 404."""
        place, _, query = path.partition("?")
        if "marker=" in query:
            return {place.split("/")[1].removeprefix("os-"): []}
        parts = [unquote(part) for part in place.split("/")[1:]]
        if service == PLACEMENT:
            return self._placement(parts, query)
        if parts == ["servers", "detail"]:
            is_delta = "changes-since=" in query
            return {"servers": list((self._changed if is_delta else self.servers).values())}
        lists: Mapping[str, Iterable[Json]] = {
            "os-hypervisors": self.hypervisors.values(),
            "os-services": self.services.values(),
            "os-aggregates": self.aggregates,
        }
        if parts[0] in lists and parts[1:] in ([], ["detail"]):
            return {parts[0].removeprefix("os-"): list(lists[parts[0]])}
        return self._one(*parts)

    def forget_changes(self) -> None:
        """Tell from now on only what changes from now on."""
        self._changed.clear()

    def show_vm(self, vm: DemoVM, *, zone: str, now: datetime) -> None:
        """Tell of a VM that came, moved or changed its size."""
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        known = self.servers.get(vm.uuid) or self._new_server(vm, stamp)
        embedded = {**known["flavor"], **self._embedded(vm.size.flavor)}
        body = {
            **known,
            **ACTIVE,
            "flavor": embedded,
            "updated": stamp,
            "OS-EXT-AZ:availability_zone": zone,
            "OS-EXT-SRV-ATTR:host": self.hypervisors[vm.host]["service"]["host"],
            "OS-EXT-SRV-ATTR:hypervisor_hostname": vm.host,
        }
        self.servers[vm.uuid] = self._changed[vm.uuid] = body

    def hide_vm(self, uuid: str, *, now: datetime) -> None:
        """Tell that a VM was deleted."""
        gone = self.servers.pop(uuid)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self._changed[uuid] = {**gone, "status": "DELETED", "updated": stamp}

    def show_host(self, host: DemoHost) -> None:
        """Tell whether a host's nova-compute answers."""
        state = "up" if host.is_up else "down"
        hypervisor = self.hypervisors[host.name]
        hypervisor["state"] = state
        self.services[hypervisor["service"]["host"]]["state"] = state

    def names_with(self, trait: str, *, zone: str) -> list[str]:
        """Return the hosts of a zone that have a trait, in order of name."""
        return sorted(
            provider["name"]
            for provider in self.providers.values()
            if trait in (provider["traits"] or {}).get("traits", ())
            and provider["name"] in self.hypervisors
            and self._service(provider["name"]).get("zone") == zone
        )

    def is_in_service(self, name: str) -> bool:
        """Return whether a host takes VMs."""
        hypervisor = self.hypervisors[name]
        return bool(hypervisor["state"] == "up" and hypervisor["status"] == "enabled")

    def is_closed(self, name: str, reason: str) -> bool:
        """Return whether a host was taken out of service for a reason."""
        told = self.hypervisors[name]
        return bool(told["status"] == "disabled" and told["service"]["disabled_reason"] == reason)

    def close_host(self, name: str, *, reason: str) -> None:
        """Tell that an operator takes a host out of service; its VMs go on."""
        hypervisor = self.hypervisors[name]
        hypervisor["status"] = self._service(name)["status"] = "disabled"
        hypervisor["service"]["disabled_reason"] = reason

    def _service(self, name: str) -> Json:
        return self.services.get(self.hypervisors[name]["service"]["host"], {})

    def _embedded(self, flavor: str) -> Json:
        known = self.flavors[flavor]
        return {
            "original_name": flavor,
            "vcpus": known["vcpus"],
            "ram": known["ram"],
            "disk": known["disk"],
            "extra_specs": known["extra_specs"],
        }

    def _new_server(self, vm: DemoVM, stamp: str) -> Json:
        return {
            "id": vm.uuid,
            "name": f"demo-{vm.uuid[:8]}",
            "tenant_id": vm.project_id,
            "user_id": "demo",
            "created": stamp,
            "flavor": {"ephemeral": 0, "swap": 0},
            "image": "",
            "metadata": {},
            "OS-SRV-USG:launched_at": stamp,
        }

    def _one(self, kind: str, key: str = "") -> Json:
        if kind == "servers" and key in self.servers:
            return {"server": self.servers[key]}
        if kind == "os-hypervisors":
            for one in self.hypervisors.values():
                if str(one["id"]) == key:
                    return {"hypervisor": one}
        return None

    def _placement(self, parts: list[str], query: str) -> Json:
        if len(parts) == 1:
            wanted = query.removeprefix("uuid=") if query.startswith("uuid=") else ""
            found = [one for uuid, one in self.providers.items() if wanted in {"", uuid}]
            return {"resource_providers": found}
        return self.providers.get(parts[1], {}).get(parts[2])


def stored_region() -> Json:
    """Return the document of a region file of what the database holds."""
    stream = BytesIO()
    dump_region(stream, DumpOptions(with_ended=False))
    return orjson.loads(stream.getvalue())


def world_of(cloud: DemoCloud, resources: Mapping[str, int]) -> World:
    """Return the world that a cloud tells of: hosts with capacity, and the VMs on them.

    A host that is down but not disabled has failed, in an earlier life of the demo as well.
    """
    roots = {one["name"]: one for one in cloud.providers.values() if one["inventories"]}
    sizes = {
        name: Size(flavor=name, memory_mib=one["ram"], vcpus=one["vcpus"])
        for name, one in cloud.flavors.items()
    }
    hosts = []
    failed = []
    for name, one in cloud.hypervisors.items():
        service = cloud.services.get(one["service"]["host"])
        if name not in roots or service is None:
            continue
        inventories = roots[name]["inventories"]["inventories"]
        if not {"MEMORY_MB", "VCPU"} <= set(inventories):
            continue
        is_enabled = service["status"] == "enabled"
        is_up = service["state"] == "up" and is_enabled
        if is_enabled and not is_up:
            failed.append(name)
        hosts.append(
            DemoHost(
                name=name,
                zone=service["zone"],
                memory_mib=_capacity(inventories["MEMORY_MB"]),
                vcpus=_capacity(inventories["VCPU"]),
                is_up=is_up,
            )
        )
    names = {host.name for host in hosts}
    vms = [
        DemoVM(
            uuid=one["id"],
            project_id=one["tenant_id"],
            size=sizes[one["flavor"]["original_name"]],
            host=one["OS-EXT-SRV-ATTR:hypervisor_hostname"],
        )
        for one in cloud.servers.values()
        if one["OS-EXT-SRV-ATTR:hypervisor_hostname"] in names
        and one["flavor"]["original_name"] in sizes
    ]
    return World(hosts=hosts, vms=vms, sizes=sizes.values(), resources=resources, failed=failed)


def _capacity(inventory: Json) -> int:
    return int((inventory["total"] - inventory["reserved"]) * inventory["allocation_ratio"])
