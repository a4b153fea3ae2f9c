"""Where VMs come from: the VM list and the flavors of Nova (spec failover, 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import orjson
import structlog
from django.db import DatabaseError

from hosts.domain.capacity import MIB
from hosts.domain.vm import VM
from hosts.domain.vm_list import ReportedVM, ReportingHost, vms_on_hosts
from hosts.models import Flavor, Host, Instance
from journal.errors import HeadroomError

log = structlog.get_logger(__name__)

DELETED = "DELETED"
_SHOWN_CHARACTERS = 100

__all__ = ["VM", "DatabaseVMSource", "NovaReader", "VMSource", "VMSourceError"]


class VMSourceError(HeadroomError):
    """VMs could not be read; nothing partial is returned."""

    code = "vm_source_failed"


class ServerRecord(NamedTuple):
    """A server as Nova's list has it; empty host means that it is on none."""

    vm_uuid: str
    name: str
    status: str
    project_id: str
    flavor_name: str
    host: str
    zone: str
    created_at: str = ""
    os_type: str = ""


class FlavorRecord(NamedTuple):
    """A flavor; ``extra_specs`` is the JSON text."""

    name: str
    vcpus: int
    memory_mib: int
    disk_gib: int = 0
    extra_specs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedVMInfo:
    """What is known of a server that may be gone.

    Attributes:
        memory_mib: Memory of that flavor.
        vcpus: vCPUs of that flavor.
    """

    project_id: str
    zone: str
    flavor_name: str
    memory_mib: int
    vcpus: int


class NovaReader(Protocol):
    """Where servers and flavors are read."""

    def servers(
        self, *, vm_uuid: str | None = None, project_id: str | None = None
    ) -> Sequence[ServerRecord]:
        """Return servers in order: all, one, or those of a project."""

    def flavors(self) -> Sequence[FlavorRecord]:
        """Return all flavors."""


class DatabaseReader:
    """Reads what the region import stored."""

    def servers(
        self, *, vm_uuid: str | None = None, project_id: str | None = None
    ) -> Sequence[ServerRecord]:
        """Return servers by key of their row."""
        rows = Instance.objects.select_related("host").order_by("pk")
        if vm_uuid is not None:
            rows = rows.filter(openstack_id=vm_uuid)
        if project_id is not None:
            rows = rows.filter(project_id=project_id)
        return [
            ServerRecord(
                vm_uuid=row.openstack_id,
                name=row.name,
                status=row.status,
                project_id=row.project_id,
                flavor_name=row.flavor_name,
                host=row.host.name if row.host else "",
                zone=row.zone,
                created_at=row.nova_created_at.isoformat() if row.nova_created_at else "",
                os_type=row.os_type,
            )
            for row in rows.iterator(chunk_size=5000)
        ]

    def flavors(self) -> Sequence[FlavorRecord]:
        """Return flavors by name."""
        return [
            FlavorRecord(
                name=row.name,
                vcpus=row.vcpus,
                memory_mib=row.memory_bytes // MIB,
                disk_gib=row.disk_gib,
                extra_specs=orjson.dumps(row.extra_specs).decode(),
            )
            for row in Flavor.objects.order_by("name")
        ]


class VMSource(Protocol):
    """Where failover learns of VMs (spec failover, 5.1)."""

    def list_vms(self) -> list[VM]:
        """Return every VM with a host and a known flavor."""

    def list_vms_by_project(self, project_id: str) -> list[VM]:
        """Return the VMs of one project, by the same rule."""

    def list_vms_on_hosts(
        self, hosts: Sequence[ReportingHost], *, trust_host_location: bool
    ) -> list[VM]:
        """Return the VMs that run on hosts; see :func:`hosts.domain.vm_list.vms_on_hosts`."""

    def get_vm(self, vm_uuid: str) -> VM | None:
        """Return a VM; None if it does not exist, has no host, or its flavor is unknown."""

    def is_server_active(self, vm_uuid: str) -> bool:
        """Return whether a server is there and not deleted."""

    def get_deleted_vm_info(self, vm_uuid: str) -> DeletedVMInfo | None:
        """Return what is known of a server that may be gone; None without a row."""


class DatabaseVMSource:
    """VMs from servers and flavors.

    Attributes:
        reader: Where they are read.
    """

    def __init__(self, reader: NovaReader | None = None) -> None:
        self.reader: NovaReader = reader or DatabaseReader()

    def list_vms(self) -> list[VM]:
        """Return every VM with a host and a known flavor, in the order of the servers.

        Raises:
            VMSourceError: If servers or flavors could not be read; the text says which.

        Source: spec failover, 5.2.
        """
        return self._vms()

    def list_vms_by_project(self, project_id: str) -> list[VM]:
        """Return the VMs of one project, by the same rule."""
        return self._vms(project_id=project_id)

    def list_vms_on_hosts(
        self, hosts: Sequence[ReportingHost], *, trust_host_location: bool
    ) -> list[VM]:
        """Return the VMs that run on hosts, and log where list and hosts disagree.

        Source: spec failover, 5.3.
        """
        listed = vms_on_hosts(self.list_vms(), hosts, trust_host_location=trust_host_location)
        for vm_uuid in listed.not_in_list:
            log.warning("vm_not_in_list", vm_uuid=vm_uuid)
        counts = {
            name: getattr(listed, name)
            for name in ("not_reported", "unknown_host", "elsewhere", "nowhere", "duplicates")
        }
        if any(counts.values()):
            log.warning("vm_locations_disagree", counts=counts)
        return list(listed.vms)

    def get_vm(self, vm_uuid: str) -> VM | None:
        """Return a VM; None if it does not exist, has no host, or its flavor is unknown.

        Raises:
            VMSourceError: If it could not be looked up.
        """
        return next(iter(self._vms(vm_uuid=vm_uuid)), None)

    def is_server_active(self, vm_uuid: str) -> bool:
        """Return whether a server is there and not deleted."""
        return any(row.status != DELETED for row in self._servers(vm_uuid=vm_uuid))

    def get_deleted_vm_info(self, vm_uuid: str) -> DeletedVMInfo | None:
        """Return what is known of a server that may be gone; None without a row.

        Raises:
            VMSourceError: If the row's flavor is not known.
        """
        for row in self._servers(vm_uuid=vm_uuid):
            flavor = self._flavors().get(row.flavor_name)
            if flavor is None:
                raise VMSourceError(
                    f"VM {vm_uuid}: flavor {row.flavor_name} is not known", vm_uuid=vm_uuid
                )
            return DeletedVMInfo(
                project_id=row.project_id,
                zone=row.zone,
                flavor_name=row.flavor_name,
                memory_mib=flavor.memory_mib,
                vcpus=flavor.vcpus,
            )
        return None

    def _vms(self, **chosen: str) -> list[VM]:
        servers, flavors = self._servers(**chosen), self._flavors()
        skipped: Counter[str] = Counter()
        vms = []
        for row in servers:
            flavor = flavors.get(row.flavor_name)
            if not row.host:
                skipped["skipped_no_host"] += 1
            elif flavor is None:
                skipped[f"unknown flavor {row.flavor_name}"] += 1
            else:
                vms.append(_vm(row, flavor))
        if skipped:
            log.info("vms_skipped", counts=dict(skipped))
        return vms

    def _servers(self, **chosen: str) -> Sequence[ServerRecord]:
        try:
            return self.reader.servers(**chosen)
        except (DatabaseError, OSError) as error:
            raise VMSourceError(f"failed to read servers: {error}") from error

    def _flavors(self) -> Mapping[str, FlavorRecord]:
        try:
            return {flavor.name: flavor for flavor in self.reader.flavors()}
        except (DatabaseError, OSError) as error:
            raise VMSourceError(f"failed to read flavors: {error}") from error


def _vm(row: ServerRecord, flavor: FlavorRecord) -> VM:
    return VM(
        vm_uuid=row.vm_uuid,
        host=row.host,
        name=row.name,
        status=row.status,
        flavor_name=row.flavor_name,
        project_id=row.project_id,
        zone=row.zone,
        created_at=row.created_at,
        memory_bytes=flavor.memory_mib * MIB,
        vcpus=flavor.vcpus,
        extra_specs=_extra_specs(flavor),
        disk_gib=flavor.disk_gib,
        os_type=row.os_type or "unknown",
    )


def _extra_specs(flavor: FlavorRecord) -> Mapping[str, str]:
    if not flavor.extra_specs:
        return {}
    try:
        specs: Any = orjson.loads(flavor.extra_specs)  # Any: whatever the column holds
    except orjson.JSONDecodeError:
        specs = None
    if not isinstance(specs, dict):
        log.warning(
            "extra_specs_unreadable",
            flavor=flavor.name,
            text=flavor.extra_specs[:_SHOWN_CHARACTERS],
        )
        return {}
    return {str(key): str(word) for key, word in specs.items()}


def reporting_hosts(zone: str | None = None) -> list[ReportingHost]:
    """Return the hosts that report their VMs, with their lists, by name."""
    rows = Host.objects.filter(reported_instances__isnull=False).order_by("name")
    if zone is not None:
        rows = rows.filter(zone=zone)
    return [
        ReportingHost(name=name, vms=tuple(_reported(one) for one in listed or ()))
        for name, listed in rows.values_list("name", "reported_instances")
    ]


def _reported(one: Mapping[str, object]) -> ReportedVM:
    return ReportedVM(
        vm_uuid=str(one.get("id", "")),
        is_active=bool(one.get("active")),
        name=str(one.get("name", "")),
    )
