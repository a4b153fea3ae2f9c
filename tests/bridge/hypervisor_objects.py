"""Hypervisor objects as an operator and a node agent write them, and what defines their kind."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from hosts.models import Host, Instance
from hosts.region.described import DescribedHost

Json = dict[str, Any]  # Any: objects keep the API's own shapes
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
#: Looser than the real one: an API server lets through here what ours has to bear.
DEFINITION: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "hypervisors.kvm.cloud.sap"},
    "spec": {
        "group": "kvm.cloud.sap",
        "scope": "Cluster",
        "names": {
            "kind": "Hypervisor",
            "listKind": "HypervisorList",
            "plural": "hypervisors",
            "singular": "hypervisor",
            "shortNames": ["hv"],
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": ANYTHING, "status": ANYTHING},
                    }
                },
            }
        ],
    },
}


def hypervisor_object(name: str = "node001-bb1", **status: Any) -> Json:
    """Return an object of a ready host of 64 vCPUs and 512 GiB without VMs; status is merged."""
    return {
        "apiVersion": "kvm.cloud.sap/v1",
        "kind": "Hypervisor",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "az-a"}},
        "spec": {},
        "status": {
            "hypervisorId": f"id-{name}",
            "capacity": {"cpu": "64", "memory": "512Gi"},
            "effectiveCapacity": {"cpu": "64", "memory": "512Gi"},
            "allocation": {"cpu": "0", "memory": "0"},
            "capabilities": {"cpuArch": "x86_64"},
            "domainCapabilities": {"hypervisorType": "kvm"},
            "instances": [],
            "conditions": [{"type": "Ready", "status": "True"}],
            **status,
        },
    }


def with_spec(body: Json, **spec: Any) -> Json:
    """Return an object with another specification."""
    return deepcopy(body) | {"spec": {**body["spec"], **spec}}


def instances(*vms: tuple[str, bool]) -> list[Json]:
    """Return a list of VMs with their ids and whether they run."""
    return [{"id": vm, "name": vm, "active": is_active} for vm, is_active in vms]


def object_of(host: Host, vms: Sequence[Instance]) -> Json:
    """Return the object that says of a host what its row says."""
    metadata = {"name": host.name, "labels": {"topology.kubernetes.io/zone": host.zone}}
    types = {"QEMU": "kvm", "CH": "ch"}
    return {
        "apiVersion": "kvm.cloud.sap/v1",
        "kind": "Hypervisor",
        "metadata": metadata,
        "spec": {
            "allowedProjects": host.allowed_projects,
            "customTraits": host.custom_traits,
            "overcommit": {"cpu": float(host.vcpus_ratio), "memory": float(host.memory_ratio)},
            **({"maintenance": host.maintenance} if host.maintenance else {}),
        },
        "status": {
            "hypervisorId": host.openstack_id,
            "capacity": {"cpu": str(host.total_vcpus), "memory": str(host.total_memory_bytes)},
            "effectiveCapacity": {
                "cpu": str(host.effective_vcpus),
                "memory": str(host.effective_memory_bytes),
            },
            "allocation": {
                "cpu": str(sum(vm.vcpus for vm in vms)),
                "memory": str(sum(vm.memory_bytes for vm in vms)),
            },
            "capabilities": {"cpuArch": host.cpu_arch},
            "domainCapabilities": {"hypervisorType": types.get(host.hypervisor_type, "other")},
            "traits": host.traits,
            "aggregates": [{"uuid": one, "name": one} for one in host.aggregate_uuids],
            "instances": instances(*((vm.openstack_id, True) for vm in vms)),
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "HypervisorDisabled", "status": "False"},
            ],
        },
    }


def described(name: str = "node001-bb1", **fields: Any) -> DescribedHost:
    """Return a host of 64 vCPUs and 512 GiB in zone az-a, as if an object described it."""
    return DescribedHost(
        **{
            "name": name,
            "zone": "az-a",
            "total_vcpus": 64,
            "total_memory_bytes": 512 << 30,
            "effective_vcpus": 64,
            "effective_memory_bytes": 512 << 30,
            "conditions": {"Ready": "True"},
            **fields,
        }
    )
