"""Hosts with configured capacities and told contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headroom_host_agent.resources.facts import InstanceAllocation
from headroom_host_agent.resources.listers import Listers
from headroom_host_agent.resources.manager import Manager
from headroom_host_agent.resources.settings import ResourceSettings

GIB = 1024**3


@dataclass
class Told:
    """Lists what it was told; ``fails`` names calls that fail. Counts its calls."""

    vms: list[InstanceAllocation] = field(default_factory=list)
    images: int = 0
    oci_cache: int = 0
    volumes: int = 0
    fails: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None

    def _answer(self, name: str) -> None:
        self.calls.append(name)
        self.before(name)
        if name in self.fails:
            raise OSError(f"{name} is out of order")

    def list_instance_allocations(self) -> Iterable[InstanceAllocation]:
        self._answer("instances")
        return list(self.vms)

    def total_image_bytes(self) -> int:
        self._answer("images")
        return self.images

    def total_oci_cache_bytes(self) -> int:
        self._answer("oci_cache")
        return self.oci_cache

    def total_volume_bytes(self) -> int:
        self._answer("volumes")
        return self.volumes


def vm(name: str = "vm", **facts: Any) -> InstanceAllocation:  # Any: fields of the dataclass
    defaults: dict[str, Any] = {"vcpus": 0, "memory_bytes": 0, "state": "Running"}
    return InstanceAllocation(id=name, name=f"name of {name}", **(defaults | facts))


def manager(root: Path, told: Told | None = None, **settings: Any) -> Manager:  # Any: as above
    """Return an initialized manager; what no setting names is small."""
    known: dict[str, Any] = {
        "capacity_cpu": 16,
        "capacity_memory": 64 * GIB,
        "capacity_disk": 500 * GIB,
        "capacity_network": 125_000_000,
    }
    listers = Listers(instances=told, images=told, volumes=told) if told else Listers()
    made = Manager(ResourceSettings(**(known | settings)), listers, sysroot=root)
    made.initialize()
    return made
