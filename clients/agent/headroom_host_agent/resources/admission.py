"""Does a VM fit on its host, and if not, what would (spec hosts, A.9, A.14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Protocol

from headroom_host_agent.resources.facts import ResourceError, ResourceType, Source
from headroom_host_agent.resources.numa import (
    CellNeed,
    CellStatus,
    fitting_cells,
    largest_share,
)
from headroom_host_agent.resources.sizes import human_size
from headroom_host_agent.resources.status import ResourceStatus

UNITS = {
    ResourceType.CPU: "vCPUs",
    ResourceType.MEMORY: "bytes",
    ResourceType.DISK: "bytes",
    ResourceType.NETWORK: "bytes/s",
    ResourceType.DISK_IO: "bytes/s",
    ResourceType.GPU: "slots",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRequest:
    """What a VM asks of its host; zero and less ask nothing.

    Attributes:
        network_download_bps: Bytes per second towards the VM.
        network_upload_bps: Bytes per second from the VM.
        pinned_cpus: CPUs that are the VM's alone, all of one NUMA cell.
        hugepages: Pages of ``hugepage_size_bytes``, of the same cell.
    """

    vcpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    network_download_bps: int = 0
    network_upload_bps: int = 0
    disk_io_bps: int = 0
    needs_gpu: bool = False
    pinned_cpus: int = 0
    hugepages: int = 0
    hugepage_size_bytes: int = 0

    @property
    def cell_need(self) -> CellNeed | None:
        """What must come from one NUMA cell, None when nothing must."""
        if self.pinned_cpus <= 0 and self.hugepages <= 0:
            return None
        return CellNeed(
            pinned_cpus=max(0, self.pinned_cpus),
            page_size_bytes=self.hugepage_size_bytes,
            pages=max(0, self.hugepages),
        )

    def amount_of(self, kind: ResourceType) -> int:
        """Return what is asked of a resource, in its unit; never negative."""
        asked = {
            ResourceType.CPU: self.vcpus,
            ResourceType.MEMORY: self.memory_bytes,
            ResourceType.DISK: self.disk_bytes,
            ResourceType.NETWORK: max(self.network_download_bps, self.network_upload_bps),
            ResourceType.DISK_IO: self.disk_io_bps,
            ResourceType.GPU: int(self.needs_gpu),
        }
        return max(0, asked[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlots:
    """GPU slots as admission sees them.

    Attributes:
        allocatable: Healthy and free, less those of operations under way.
    """

    mode: str
    total: int
    used: int
    allocatable: int
    disabled_reason: str = ""


class GpuUse(Protocol):
    """A host's GPUs as admission reads them."""

    @property
    def mode(self) -> str:
        """How they are handed out."""

    @property
    def total_slots(self) -> int:
        """All slots."""

    @property
    def used_slots(self) -> int:
        """Slots in use."""

    @property
    def allocatable_slots(self) -> int:
        """Slots that are healthy and free."""

    @property
    def placement_disabled_reason(self) -> str:
        """Why nothing may be placed; empty when it may."""


def gpu_slots(status: GpuUse | None, *, pending: int) -> GpuSlots | None:
    """Return what admission sees of GPUs; None for a host without any."""
    if status is None:
        return None
    return GpuSlots(
        mode=status.mode,
        total=status.total_slots,
        used=status.used_slots,
        allocatable=max(0, status.allocatable_slots - pending),
        disabled_reason=status.placement_disabled_reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A resource that is short.

    Attributes:
        requested: As all amounts, in ``unit``.
        allocated: With operations under way.
    """

    resource: ResourceType
    requested: int
    available: int
    allocated: int
    effective_limit: int
    oversub_ratio: Decimal
    unit: str
    remark: str = ""

    def __str__(self) -> str:
        """Return the shortage for people."""
        if self.remark:
            return f"{self.resource}: {self.remark}"
        return (
            f"{self.resource}: requested {self._amount(self.requested)}, "
            f"available {self._amount(self.available)} "
            f"(allocated {self._amount(self.allocated)}, "
            f"limit {self._amount(self.effective_limit)}, ratio {self.oversub_ratio:.1f})"
        )

    def _amount(self, number: int) -> str:
        if self.resource == ResourceType.CPU:
            return f"{number} vCPUs"
        suffix = "/s" if self.resource in (ResourceType.NETWORK, ResourceType.DISK_IO) else ""
        return human_size(number) + suffix

    def to_json(self) -> dict[str, object]:
        """Return it for programs."""
        return {
            "resource": self.resource.value,
            "requested": self.requested,
            "available": self.available,
            "allocated": self.allocated,
            "effective_limit": self.effective_limit,
            "oversub_ratio": float(self.oversub_ratio),
            "unit": self.unit,
            "message": str(self),
        }


class InsufficientCapacityError(ResourceError):
    """A host has not what is asked; ``failures`` in the order of the resources.

    Attributes:
        largest_fit: The largest request of the same shape that fits, None when none does.
    """

    code = "insufficient_capacity"

    def __init__(
        self, failures: tuple[Shortage, ...], largest_fit: AllocationRequest | None
    ) -> None:
        super().__init__("; ".join(str(failure) for failure in failures))
        self.failures = failures
        self.largest_fit = largest_fit


def is_unlimited(status: ResourceStatus) -> bool:
    """Return whether a resource is admitted without limit: an uplink of unknown speed is."""
    return status.type == ResourceType.NETWORK and status.source == Source.UNKNOWN


def room(status: ResourceStatus) -> int:
    """Return what may still be given away, with operations under way."""
    return max(0, status.effective_limit - status.allocated - status.pending)


def shortages(
    statuses: Mapping[ResourceType, ResourceStatus],
    gpu: GpuSlots | None,
    request: AllocationRequest,
    cells: tuple[CellStatus, ...] = (),
) -> tuple[Shortage, ...]:
    """Return every resource that is short; equal fits.

    What must come from one NUMA cell is named last.
    """
    found = [
        _shortage(status, request.amount_of(kind))
        for kind in ResourceType
        if (status := statuses.get(kind)) is not None
        and request.amount_of(kind) > room(status)
        and not is_unlimited(status)
    ]
    if request.needs_gpu and (gpu is None or gpu.allocatable < 1):
        found.append(_gpu_shortage(gpu))
    found += _cell_shortage(cells, request.cell_need)
    return tuple(found)


def largest_fit(
    statuses: Mapping[ResourceType, ResourceStatus],
    gpu: GpuSlots | None,
    request: AllocationRequest,
    cells: tuple[CellStatus, ...] = (),
) -> AllocationRequest | None:
    """Return the request made smaller by one factor for all until it fits, rounded down.

    None when nothing of a resource that is asked would be left, or no GPU.
    """
    if request.needs_gpu and (gpu is None or gpu.allocatable < 1):
        return None
    share = min(
        (
            Fraction(room(status), request.amount_of(kind))
            for kind, status in statuses.items()
            if request.amount_of(kind) > 0 and not is_unlimited(status)
        ),
        default=Fraction(1),
    )
    share = min(share, Fraction(1))
    need = request.cell_need
    if need is not None:
        share = min(share, largest_share(cells, need))
    smaller = replace(
        request,
        vcpus=int(request.vcpus * share),
        memory_bytes=int(request.memory_bytes * share),
        disk_bytes=int(request.disk_bytes * share),
        network_download_bps=int(request.network_download_bps * share),
        network_upload_bps=int(request.network_upload_bps * share),
        disk_io_bps=int(request.disk_io_bps * share),
        pinned_cpus=int(request.pinned_cpus * share),
        hugepages=int(request.hugepages * share),
    )
    return smaller if _asked(smaller) == _asked(request) else None


def _asked(request: AllocationRequest) -> tuple[bool, ...]:
    amounts = [request.amount_of(kind) for kind in ResourceType]
    return tuple(amount > 0 for amount in (*amounts, request.pinned_cpus, request.hugepages))


def _cell_shortage(cells: tuple[CellStatus, ...], need: CellNeed | None) -> list[Shortage]:
    if need is None or fitting_cells(
        cells,
        pinned_cpus=need.pinned_cpus,
        page_size_bytes=need.page_size_bytes,
        pages=need.pages,
    ):
        return []
    asked = []
    if need.pinned_cpus:
        asked.append(f"{need.pinned_cpus} CPUs to pin")
    if need.pages:
        asked.append(f"{need.pages} pages of {human_size(need.page_size_bytes)}")
    if need.pinned_cpus:
        kind, requested = ResourceType.CPU, need.pinned_cpus
        has = [status.free_cpu_count for status in cells]
    else:
        size_bytes = need.page_size_bytes
        kind, requested = ResourceType.MEMORY, need.pages * size_bytes
        has = [status.free_pages.get(size_bytes, 0) * size_bytes for status in cells]
    return [
        Shortage(
            resource=kind,
            requested=requested,
            available=max(has, default=0),
            allocated=0,
            effective_limit=max(has, default=0),
            oversub_ratio=Decimal(1),
            unit=UNITS[kind],
            remark=f"no NUMA cell has {' and '.join(asked)}",
        )
    ]


def _shortage(status: ResourceStatus, requested: int) -> Shortage:
    return Shortage(
        resource=status.type,
        requested=requested,
        available=room(status),
        allocated=status.allocated + status.pending,
        effective_limit=status.effective_limit,
        oversub_ratio=status.oversub_ratio,
        unit=UNITS[status.type],
    )


def _gpu_shortage(gpu: GpuSlots | None) -> Shortage:
    if gpu is None:
        remark = "no GPU on this host"
    elif gpu.disabled_reason:
        remark = f"placement is disabled: {gpu.disabled_reason}"
    elif gpu.used >= gpu.total:
        remark = f"all slots are in use (mode {gpu.mode}, total {gpu.total}, used {gpu.used})"
    else:
        remark = f"none is allocatable (mode {gpu.mode}, total {gpu.total}, used {gpu.used})"
    return Shortage(
        resource=ResourceType.GPU,
        requested=1,
        available=0,
        allocated=gpu.used if gpu else 0,
        effective_limit=gpu.total if gpu else 0,
        oversub_ratio=Decimal(1),
        unit=UNITS[ResourceType.GPU],
        remark=remark,
    )
