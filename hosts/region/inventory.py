"""Reading hypervisors, services, aggregates and resource providers (spec region-file)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import orjson

from hosts.domain.capacity import HostInventory
from hosts.region.node import ID_MAX, INT64_MAX, Json, Node, plain_json
from hosts.region.run import ImportRun, Unique

HYPERVISORS: Final = "compute.hypervisors"
SERVICES: Final = "compute.services"
AGGREGATES: Final = "compute.aggregates"
PROVIDERS: Final = "placement.resource_providers"
COMPUTE_BINARY: Final = "nova-compute"
MAX_AMOUNT: Final = INT64_MAX >> 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypervisor:
    """A hypervisor as Nova describes it; amounts only before microversion 2.88."""

    openstack_id: str
    name: str
    hypervisor_type: str
    state: str
    status: str
    service_host: str
    service_id: str
    disabled_reason: str
    cpu_arch: str
    vcpus: int | None
    memory_mib: int | None
    local_gib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A resource provider with the sub-resources that matter here."""

    uuid: str
    name: str
    parent_uuid: str
    root_uuid: str
    inventories: dict[str, HostInventory]
    stored_inventories: Json
    traits: tuple[str, ...]
    aggregate_uuids: tuple[str, ...]


@dataclass(slots=True)
class ProviderTree:
    """Providers by uuid, roots by name, and children by root."""

    by_uuid: dict[str, Provider] = field(default_factory=dict)
    root_by_name: dict[str, Provider] = field(default_factory=dict)
    children_by_root: dict[str, list[Provider]] = field(default_factory=dict)

    def add(self, provider: Provider) -> None:
        """Add a provider."""
        self.by_uuid[provider.uuid] = provider
        if provider.root_uuid == provider.uuid:
            self.root_by_name[provider.name] = provider
        else:
            self.children_by_root.setdefault(provider.root_uuid, []).append(provider)

    def root_of(self, hypervisor: Hypervisor) -> Provider | None:
        """Return the root provider of a hypervisor: the same uuid, else the same name."""
        found = self.by_uuid.get(hypervisor.openstack_id)
        if found is not None and found.root_uuid == found.uuid:
            return found
        return self.root_by_name.get(hypervisor.name)

    def nested_in(self, root: Provider | None) -> list[Provider]:
        """Return the providers below a root, by name."""
        found = self.children_by_root.get(root.uuid, ()) if root else ()
        return sorted(found, key=lambda provider: (provider.name, provider.uuid))


def read_hypervisors(run: ImportRun) -> Callable[[Node], None]:
    """Collect hypervisors."""
    collected: list[Hypervisor] = []
    run.stash[HYPERVISORS] = collected
    ids, names = Unique("hypervisor"), Unique("hypervisor name")

    def read(node: Node) -> None:
        hypervisor_id, name = node.identifier("id"), node.text("hypervisor_hostname")
        ids.check(node, hypervisor_id, "id")
        names.check(node, name, "hypervisor_hostname")
        service = node.child("service")
        collected.append(
            Hypervisor(
                openstack_id=hypervisor_id,
                name=name,
                hypervisor_type=node.text("hypervisor_type", default="", max_length=ID_MAX),
                state=node.text("state"),
                status=node.text("status"),
                service_host=service.text("host"),
                service_id=service.identifier("id", default=""),
                disabled_reason=service.text("disabled_reason", default="", max_length=10_000),
                cpu_arch=_cpu_arch(node),
                vcpus=_optional_amount(node, "vcpus"),
                memory_mib=_optional_amount(node, "memory_mb"),
                local_gib=_optional_amount(node, "local_gb"),
            )
        )

    return read


def read_services(run: ImportRun) -> Callable[[Node], None]:
    """Collect the zone of each compute service."""
    zones: dict[str, str] = {}
    run.stash[SERVICES] = zones
    unique = Unique("service")

    def read(node: Node) -> None:
        binary, host, zone = node.text("binary"), node.text("host"), node.text("zone")
        node.text("state", default="")
        unique.check(node, (binary, host), "host")
        if binary == COMPUTE_BINARY:
            zones[host] = zone

    return read


def read_providers(run: ImportRun) -> Callable[[Node], None]:
    """Collect resource providers; trait and aggregate lists that repeat are kept once."""
    tree = ProviderTree()
    run.stash[PROVIDERS] = tree
    ids, names = Unique("resource provider"), Unique("resource provider name")
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}

    def once(texts: list[str]) -> tuple[str, ...]:
        as_tuple = tuple(texts)
        return shared.setdefault(as_tuple, as_tuple)

    def read(node: Node) -> None:
        uuid, name = node.text("uuid", max_length=ID_MAX), node.text("name")
        ids.check(node, uuid, "uuid")
        names.check(node, name, "name")
        parent = node.text("parent_provider_uuid", default="", max_length=ID_MAX)
        inventories = node.child("inventories").child("inventories")
        tree.add(
            Provider(
                uuid=uuid,
                name=name,
                parent_uuid=parent,
                root_uuid=node.text("root_provider_uuid", default=parent or uuid),
                inventories={key: _inventory(inventories.child(key)) for key in inventories.fields},
                stored_inventories=plain_json(inventories.fields),
                traits=once(_listed(node, "traits")),
                aggregate_uuids=once(_listed(node, "aggregates")),
            )
        )

    return read


def _listed(node: Node, key: str) -> list[str]:
    if not node.has(key):
        return []
    return node.child(key).texts(key)


def _inventory(node: Node) -> HostInventory:
    ratio = node.ratio("allocation_ratio")
    total = node.integer("total", high=MAX_AMOUNT)
    reserved = node.integer("reserved", high=MAX_AMOUNT, default=0)
    if Decimal(total) * ratio > MAX_AMOUNT:
        raise node.error("allocation_ratio", f"{total} times {ratio} is out of range")
    return HostInventory(total=total, reserved=reserved, ratio=ratio)


def _optional_amount(node: Node, key: str) -> int | None:
    return node.integer(key, high=MAX_AMOUNT) if node.has(key) else None


def _cpu_arch(node: Node) -> str:
    found = node.fields.get("cpu_info")
    if isinstance(found, str):  # before microversion 2.28 a JSON text
        try:
            found = orjson.loads(found)
        except orjson.JSONDecodeError:
            return ""
    arch = found.get("arch") if isinstance(found, dict) else ""
    return arch[:32] if isinstance(arch, str) else ""
