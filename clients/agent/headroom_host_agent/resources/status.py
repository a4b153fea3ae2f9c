"""Oversubscription and what a host reports of its resources (spec hosts, A.6, A.10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Protocol

from headroom_host_agent.resources.facts import InstanceAllocation, ResourceType, Source
from headroom_host_agent.resources.numa import CellStatus, HugepagePool

ONE = Decimal("1.000")


def as_ratio(number: Decimal | float | str | None) -> Decimal:
    """Return an oversubscription ratio with three places; unset, zero and negative mean 1."""
    if number is None:
        return ONE
    ratio = Decimal(str(number)).quantize(ONE, rounding=ROUND_HALF_EVEN)
    return ratio if ratio > 0 else ONE


def effective_limit(capacity: int, ratio: Decimal, *, reserved_for_host: int = 0) -> int:
    """Return what may be given away: the floor of what the host does not keep times the ratio.

    Args:
        ratio: As ``as_ratio`` returns it.
        reserved_for_host: In the unit of the capacity, subtracted before the ratio.
    """
    thousandths = int(ratio * 1000)
    return max(0, capacity - reserved_for_host) * thousandths // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """A resource of a host, in the unit of its type.

    Attributes:
        capacity: What there is, before oversubscription.
        allocated: What counted VMs take; visible only.
        pending: What operations under way will take.
        error: Why ``allocated`` is not what it should be; empty when it is.
    """

    type: ResourceType
    capacity: int
    effective_limit: int
    allocated: int
    oversub_ratio: Decimal
    source: Source
    pending: int = 0
    error: str = ""

    @property
    def available(self) -> int:
        """What is left, operations under way aside."""
        return max(0, self.effective_limit - self.allocated)

    @property
    def over_by(self) -> int:
        """By how much the host gives away more than it may."""
        return max(0, self.allocated - self.effective_limit)

    @property
    def stale(self) -> bool:
        """Whether a lister failed, so that part of ``allocated`` is missing."""
        return self.error != ""

    def to_json(self) -> dict[str, object]:
        """Return the fields in the order of the report."""
        fields: dict[str, object] = {
            "type": self.type.value,
            "capacity": self.capacity,
            "effective_limit": self.effective_limit,
            "allocated": self.allocated,
            "available": self.available,
            "oversub_ratio": float(self.oversub_ratio),
            "source": self.source.value,
            "pending": self.pending,
            "over_by": self.over_by,
            "stale": self.stale,
        }
        return fields | ({"error": self.error} if self.error else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskBreakdown:
    """What fills the data file system, in bytes."""

    images_bytes: int
    oci_cache_bytes: int
    volumes_bytes: int
    overlays_bytes: int

    @property
    def total_bytes(self) -> int:
        """What counts as allocated."""
        return self.images_bytes + self.oci_cache_bytes + self.volumes_bytes + self.overlays_bytes

    def to_json(self) -> dict[str, int]:
        """Return the fields in the order of the report."""
        return {
            "images_bytes": self.images_bytes,
            "oci_cache_bytes": self.oci_cache_bytes,
            "volumes_bytes": self.volumes_bytes,
            "overlays_bytes": self.overlays_bytes,
        }


class GpuReport(Protocol):
    """What a report needs of the GPUs."""

    def to_json(self) -> dict[str, object]:
        """Return mode, slots, profiles or devices."""


def allocation_json(instance: InstanceAllocation) -> dict[str, object]:
    """Return what a VM takes; its disk counts volumes where the total counts their overlays."""
    return {
        "instance_id": instance.id,
        "instance_name": instance.name,
        "cpu": instance.vcpus,
        "memory_bytes": instance.memory_bytes,
        "disk_bytes": instance.overlay_bytes + instance.volume_bytes,
        "network_download_bps": instance.network_download_bps,
        "network_upload_bps": instance.network_upload_bps,
        "disk_io_bps": instance.disk_io_bps,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FullResourceStatus:
    """Everything a host reports of its resources.

    Attributes:
        resources: Each type but the GPU.
        disk_breakdown: None when disk usage could not be read.
        max_image_bytes: What images and layers may take of the disk; 0 without a limit.
        allocations: Counted VMs only.
        boot_id: The kernel's, None when unknown.
    """

    resources: Mapping[ResourceType, ResourceStatus]
    disk_breakdown: DiskBreakdown | None
    gpu: GpuReport | None
    allocations: tuple[InstanceAllocation, ...]
    generated_at: datetime
    boot_id: str | None
    cells: tuple[CellStatus, ...]
    hugepages: tuple[HugepagePool, ...]
    max_image_bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the report, keys in their order; what is absent is left out."""
        report: dict[str, object] = {
            kind.value: self.resources[kind].to_json()
            for kind in ResourceType
            if kind in self.resources
        }
        if self.disk_breakdown is not None:
            report["disk_breakdown"] = self.disk_breakdown.to_json()
        if self.gpu is not None:
            report["gpu"] = self.gpu.to_json()
        report |= {
            "allocations": [allocation_json(instance) for instance in self.allocations],
            "generated_at": self.generated_at.isoformat(),
            "boot_id": self.boot_id,
            "numa": [status.to_json() for status in self.cells],
            "hugepages": [pool.to_json() for pool in self.hugepages],
        }
        if self.disk_breakdown is not None:
            images = self.disk_breakdown.images_bytes + self.disk_breakdown.oci_cache_bytes
            report["image_storage"] = {"current_bytes": images, "max_bytes": self.max_image_bytes}
        return report
