"""A VM as failover sees it (spec failover, 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

#: Statuses of VMs that hold nothing even when a host is still named.
ABSENT_STATUSES: Final = ("DELETED", "SOFT_DELETED", "SHELVED_OFFLOADED")
_NO_SPECS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class VM:
    """A Nova server that runs on a host.

    Attributes:
        vm_uuid: Server id.
        host: Name of the host it runs on now.
        name: Display name.
        status: Nova's status, upper case.
        created_at: ISO 8601, empty if not known.
        memory_bytes: Memory of its flavor; None if not known.
        vcpus: vCPUs of its flavor; None if not known.
        extra_specs: Extra specs of its flavor.
        disk_gib: Root disk of its flavor.
        os_type: Operating system, ``unknown`` when not known.

    Source: spec failover, 3.2.
    """

    vm_uuid: str
    host: str
    name: str = ""
    status: str = "ACTIVE"
    flavor_name: str = ""
    project_id: str = ""
    zone: str = ""
    created_at: str = ""
    memory_bytes: int | None = None
    vcpus: int | None = None
    extra_specs: Mapping[str, str] = field(default_factory=lambda: _NO_SPECS)
    disk_gib: int = 0
    os_type: str = "unknown"
