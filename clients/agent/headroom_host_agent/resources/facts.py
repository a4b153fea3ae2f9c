"""Words and values of resources (spec hosts, A.1, A.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class ResourceType(StrEnum):
    """What a host gives away, in the order in which admission looks at it."""

    CPU = "cpu"  # logical CPUs
    MEMORY = "memory"  # bytes
    DISK = "disk"  # bytes
    NETWORK = "network"  # bytes per second
    DISK_IO = "disk_io"  # bytes per second
    GPU = "gpu"  # slots


class Source(StrEnum):
    """Where a capacity is from."""

    DETECTED = "detected"
    CONFIGURED = "configured"
    UNKNOWN = "unknown"  # detection failed
    REPORTED = "reported"  # from a Hypervisor object or from Placement


class Counting(StrEnum):
    """Which VMs count: a stopped VM of OpenStack keeps what it has."""

    OPENSTACK = "openstack"  # every one defined on the host
    ACTIVE = "active"  # running, paused, created


class ResourceError(Exception):
    """What has to do with a host's resources failed; the text is for people."""

    code = "resource_error"


class DetectionError(ResourceError):
    """A file of the system is missing or not as expected."""

    code = "detection_failed"


class UnknownResourceError(ResourceError):
    """Nothing is known of a resource of this type."""

    code = "unknown_resource"

    def __init__(self, resource: str) -> None:
        super().__init__(f"unknown resource type {resource!r}")
        self.resource = resource


class ListerFailedError(ResourceError):
    """What uses a resource cannot be listed, so nothing is admitted to it."""

    code = "lister_failed"

    def __init__(self, resource: str, reason: str) -> None:
        super().__init__(f"{resource}: what uses it cannot be listed: {reason}")
        self.resource = resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How much of a resource a host has, and where the number is from.

    Attributes:
        details: JSON values for people and for later readers.
    """

    amount: int
    source: Source
    details: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


_ACTIVE_STATES = frozenset({"Running", "Paused", "Created"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceAllocation:
    """What one VM takes of its host.

    Attributes:
        memory_bytes: Base and hot-plugged memory.
        volume_overlay_bytes: Overlays of volumes that are attached as such.
        network_download_bps: Bytes per second towards the VM.
        network_upload_bps: Bytes per second from the VM.
        state: As the hypervisor's lister words it, case matters.
        volume_bytes: Full size of attached volumes; for reports on the VM only.
        pinned_cpus: Logical CPUs of the host that are the VM's alone.
        hugepages: (NUMA node, page size in bytes, pages) that the VM holds.
    """

    id: str
    name: str
    vcpus: int
    memory_bytes: int
    overlay_bytes: int = 0
    volume_overlay_bytes: int = 0
    network_download_bps: int = 0
    network_upload_bps: int = 0
    disk_io_bps: int = 0
    state: str
    volume_bytes: int = 0
    pinned_cpus: frozenset[int] = frozenset()
    hugepages: tuple[tuple[int, int, int], ...] = ()

    @property
    def link_bps(self) -> int:
        """Bytes per second of the uplink: both directions share it."""
        return max(self.network_download_bps, self.network_upload_bps)


def counts(instance: InstanceAllocation, counting: Counting) -> bool:
    """Return whether a VM takes from its host."""
    return counting == Counting.OPENSTACK or instance.state in _ACTIVE_STATES
