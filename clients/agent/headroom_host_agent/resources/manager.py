"""The resources of one host: status, admission, what is under way (spec hosts, A.5 to A.10)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from headroom_host_agent.resources import admission, detect, images, numa
from headroom_host_agent.resources.admission import AllocationRequest, InsufficientCapacityError
from headroom_host_agent.resources.defaults import BURST_FACTOR, share_of_host
from headroom_host_agent.resources.facts import (
    Capacity,
    ListerFailedError,
    ResourceError,
    ResourceType,
    Source,
    UnknownResourceError,
)
from headroom_host_agent.resources.gpu.detect import get_gpu_status
from headroom_host_agent.resources.gpu.functions import ProfileCache
from headroom_host_agent.resources.gpu.status import GpuStatus
from headroom_host_agent.resources.listers import Listers, Observation, observe
from headroom_host_agent.resources.settings import ResourceSettings
from headroom_host_agent.resources.sizes import human_size
from headroom_host_agent.resources.status import (
    FullResourceStatus,
    ResourceStatus,
    as_ratio,
    effective_limit,
)
from headroom_host_agent.resources.tree import SYSTEM, read_or_none
from headroom_host_agent.resources.uplink import detect_network


class InstanceLimitError(ResourceError):
    """A VM is larger than one VM may be on this host."""

    code = "instance_limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What was visible, at a time when so many operations had ended."""

    finished: int
    gpu: GpuStatus | None
    seen: Observation


class Manager:
    """Knows one host's capacities after ``initialize``; asks its listers once per answer.

    Safe to use from threads: only what is under way is shared, under one lock.
    """

    def __init__(
        self,
        settings: ResourceSettings,
        listers: Listers,
        *,
        sysroot: Path = SYSTEM,
        gpu_health_file: Path | None = None,
    ) -> None:
        self.settings, self.listers, self.sysroot = settings, listers, sysroot
        self._gpu_health_file = gpu_health_file
        self._gpu_profiles = ProfileCache()
        self._capacities: dict[ResourceType, Capacity] = {}
        self._pending: dict[str, AllocationRequest] = {}
        self._finished = 0
        self._lock = threading.Lock()
        self._ratios = {
            ResourceType.CPU: settings.oversubscription_cpu,
            ResourceType.MEMORY: settings.oversubscription_memory,
            ResourceType.DISK: settings.oversubscription_disk,
            ResourceType.NETWORK: settings.oversubscription_network,
            ResourceType.DISK_IO: settings.oversubscription_disk_io,
        }
        self._reserved = {
            ResourceType.CPU: settings.reserved_cpu,
            ResourceType.MEMORY: settings.reserved_memory,
            ResourceType.DISK: settings.reserved_disk,
        }

    def initialize(self) -> None:
        """Discover what the host has, then ask each lister once, which warms their caches.

        Raises:
            DetectionError: CPUs, memory or disk are neither configured nor found.
            ListerFailedError: A lister fails.
        """
        settings, root = self.settings, self.sysroot
        self._capacities = {
            ResourceType.CPU: _configured(settings.capacity_cpu) or detect.detect_cpu(root),
            ResourceType.MEMORY: _configured(settings.capacity_memory)
            or detect.detect_memory(root),
            ResourceType.DISK: _configured(settings.capacity_disk)
            or detect.detect_disk(root / settings.data_dir.relative_to("/")),
            ResourceType.NETWORK: _configured(settings.capacity_network)
            or detect_network(settings.uplink_interface, root),
            ResourceType.DISK_IO: Capacity(
                amount=settings.capacity_disk_io, source=Source.CONFIGURED
            ),
        }
        seen = self._observe()
        for kind in self._capacities:
            if seen.error_of(kind):
                raise ListerFailedError(kind.value, seen.error_of(kind))

    def capacity(self, kind: ResourceType) -> Capacity:
        """Return what was discovered.

        Raises:
            UnknownResourceError: Nothing was, or it is the GPU, which has a status of its own.
        """
        try:
            return self._capacities[kind]
        except KeyError:
            raise UnknownResourceError(kind) from None

    @property
    def cpu_capacity(self) -> int:
        """Logical CPUs; 0 before ``initialize``."""
        return self._amount(ResourceType.CPU)

    @property
    def network_capacity(self) -> int:
        """Bytes per second; 0 before ``initialize``."""
        return self._amount(ResourceType.NETWORK)

    @property
    def disk_io_capacity(self) -> int:
        """Bytes per second; 0 before ``initialize``."""
        return self._amount(ResourceType.DISK_IO)

    def get_oversub_ratio(self, kind: ResourceType) -> Decimal:
        """Return a resource's ratio; 1 when it is unset, not positive, or of another type."""
        return as_ratio(self._ratios.get(kind))

    def get_status(self, kind: ResourceType) -> ResourceStatus:
        """Return a resource's status; when a lister fails it is stale and says why.

        Raises:
            UnknownResourceError: As ``capacity``.
        """
        self.capacity(kind)
        return self._statuses(self._observe(), self._pending_totals())[kind]

    def get_full_status(self) -> FullResourceStatus:
        """Return the report on everything, from one look at the listers."""
        gpu, seen = self.get_gpu_status(), self._observe()
        return FullResourceStatus(
            resources=self._statuses(seen, self._pending_totals()),
            disk_breakdown=None if seen.error_of(ResourceType.DISK) else seen.breakdown,
            gpu=gpu,
            allocations=seen.counted,
            generated_at=datetime.now(UTC),
            boot_id=read_or_none(self.sysroot / "proc/sys/kernel/random/boot_id"),
            cells=numa.cell_statuses(numa.detect_cells(self.sysroot), seen.counted),
            hugepages=numa.hugepages_of_host(self.sysroot),
            max_image_bytes=self.max_image_storage_bytes(),
        )

    def get_gpu_status(self) -> GpuStatus | None:
        """Return the status of the GPUs, None without any."""
        return get_gpu_status(
            self.sysroot,
            vendors=self.settings.gpu_vendors,
            health_file=self._gpu_health_file,
            profiles=self._gpu_profiles,
        )

    def can_allocate(self, kind: ResourceType, amount: int) -> bool:
        """Return whether so much is left; without operations under way.

        Raises:
            UnknownResourceError: As ``capacity``.
            ListerFailedError: What is allocated is not known.
        """
        status = self.get_status(kind)
        if status.stale:
            raise ListerFailedError(kind.value, status.error)
        return admission.is_unlimited(status) or amount <= status.available

    def check_instance_limits(self, request: AllocationRequest, *, overlay_bytes: int = 0) -> None:
        """Check what one VM may have at most.

        Raises:
            InstanceLimitError: It asks more.
        """
        settings = self.settings
        limits = (
            ("vcpus", request.vcpus, settings.max_vcpus_per_instance, str),
            ("memory", request.memory_bytes, settings.max_memory_per_instance, human_size),
            ("overlay", overlay_bytes, settings.max_overlay_per_instance, human_size),
        )
        for name, asked, limit, text in limits:
            if 0 < limit < asked:
                raise InstanceLimitError(
                    f"{name}: requested {text(asked)}, one VM may have {text(limit)}"
                )

    def validate_allocation(  # noqa: PLR0917  # the validator's documented signature
        self,
        vcpus: int,
        memory_bytes: int,
        network_download_bps: int,
        network_upload_bps: int,
        disk_io_bps: int,
        needs_gpu: bool,  # noqa: FBT001
        disk_bytes: int = 0,
    ) -> None:
        """Check that a VM fits beside those that are there and under way.

        Raises:
            InsufficientCapacityError: It does not; all shortages are named.
            ListerFailedError: What is allocated is not known.
        """
        request = AllocationRequest(
            vcpus=vcpus,
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
            network_download_bps=network_download_bps,
            network_upload_bps=network_upload_bps,
            disk_io_bps=disk_io_bps,
            needs_gpu=needs_gpu,
        )
        look = self._look()
        with self._lock:
            self._admit(request, look, without="")

    def reserve_allocation(self, operation: str, request: AllocationRequest) -> None:
        """Admit a VM and count it until ``finish_allocation``.

        What is under way with the same id is replaced, and does not stand against itself.

        Raises:
            InsufficientCapacityError: As ``validate_allocation``; what was under way stays.
            ListerFailedError: The same.
        """
        look = self._look()
        with self._lock:
            self._admit(request, look, without=operation)
            self._pending[operation] = request

    def finish_allocation(self, operation: str) -> None:
        """Forget what is under way; whether it succeeded, the listers tell. Unknown: nothing."""
        with self._lock:
            self._finished += self._pending.pop(operation, None) is not None

    def default_network_bandwidth(self, vcpus: int) -> tuple[int, int]:
        """Return download and upload in bytes per second of a VM that names none."""
        share = self._default(ResourceType.NETWORK, vcpus)
        return share, share

    def default_disk_io_bandwidth(self, vcpus: int) -> tuple[int, int]:
        """Return sustained and burst bytes per second of a VM that names none."""
        share = self._default(ResourceType.DISK_IO, vcpus)
        return share, share * BURST_FACTOR

    def with_defaults(self, request: AllocationRequest) -> AllocationRequest:
        """Return a request with default rates in place of zeros, each direction by itself."""
        download, upload = self.default_network_bandwidth(request.vcpus)
        sustained, _ = self.default_disk_io_bandwidth(request.vcpus)
        return replace(
            request,
            network_download_bps=request.network_download_bps or download,
            network_upload_bps=request.network_upload_bps or upload,
            disk_io_bps=request.disk_io_bps or sustained,
        )

    def has_sufficient_disk_for_pull(self) -> None:
        """Check the room that an image pull needs at least.

        Raises:
            ImageStorageError: There is less than 5 GiB.
            ListerFailedError: What is allocated is not known.
            UnknownResourceError: The disk was not discovered.
        """
        status = self.get_status(ResourceType.DISK)
        if status.stale:
            raise ListerFailedError(ResourceType.DISK.value, status.error)
        images.check_disk_for_pull(status.available)

    def has_sufficient_image_storage(self) -> None:
        """Check the share of the disk that images may take.

        Raises:
            ImageStorageError: They take it or more.
            ListerFailedError: What they take is not known.
        """
        images.check_image_storage(
            self.current_image_storage_bytes(),
            disk_capacity=self._amount(ResourceType.DISK),
            fraction=self.settings.max_image_storage,
        )

    def max_image_storage_bytes(self) -> int:
        """Return what images may take; 0 without a known disk."""
        return images.max_image_bytes(
            self._amount(ResourceType.DISK), self.settings.max_image_storage
        )

    def current_image_storage_bytes(self) -> int:
        """Return what images and layers take; 0 without a lister.

        Raises:
            ListerFailedError: It is not known.
        """
        seen = observe(Listers(images=self.listers.images), self.settings.counting)
        if seen.disk_error:
            raise ListerFailedError(ResourceType.DISK.value, seen.disk_error)
        return seen.breakdown.images_bytes + seen.breakdown.oci_cache_bytes

    def _amount(self, kind: ResourceType) -> int:
        found = self._capacities.get(kind)
        return found.amount if found else 0

    def _default(self, kind: ResourceType, vcpus: int) -> int:
        is_sold = self.settings.apply_oversubscription
        ratio = self.get_oversub_ratio(kind) if is_sold else as_ratio(None)
        limit = effective_limit(self._amount(kind), ratio)
        return share_of_host(vcpus, limit=limit, cpu_capacity=self.cpu_capacity)

    def _observe(self) -> Observation:
        return observe(self.listers, self.settings.counting)

    def _statuses(
        self, seen: Observation, pending: Mapping[ResourceType, int]
    ) -> dict[ResourceType, ResourceStatus]:
        allocated = {
            ResourceType.CPU: sum(vm.vcpus for vm in seen.counted),
            ResourceType.MEMORY: sum(vm.memory_bytes for vm in seen.counted),
            ResourceType.DISK: seen.breakdown.total_bytes,
            ResourceType.NETWORK: sum(vm.link_bps for vm in seen.counted),
            ResourceType.DISK_IO: sum(vm.disk_io_bps for vm in seen.counted),
        }
        return {
            kind: ResourceStatus(
                type=kind,
                capacity=capacity.amount,
                effective_limit=effective_limit(
                    capacity.amount,
                    self.get_oversub_ratio(kind),
                    reserved_for_host=self._reserved.get(kind, 0),
                ),
                allocated=allocated[kind],
                oversub_ratio=self.get_oversub_ratio(kind),
                source=capacity.source,
                pending=pending[kind],
                error=seen.error_of(kind),
            )
            for kind, capacity in self._capacities.items()
        }

    def _pending_totals(self) -> dict[ResourceType, int]:
        with self._lock:
            return self._totals_without("")

    def _totals_without(self, operation: str) -> dict[ResourceType, int]:
        others = self._others(operation)
        return {kind: sum(request.amount_of(kind) for request in others) for kind in ResourceType}

    def _others(self, operation: str) -> list[AllocationRequest]:
        return [request for name, request in self._pending.items() if name != operation]

    def _cells_left(self, seen: Observation, *, without: str) -> tuple[numa.CellStatus, ...]:
        statuses = numa.cell_statuses(numa.detect_cells(self.sysroot), seen.counted)
        needs = (request.cell_need for request in self._others(without))
        return numa.with_pending(statuses, (need for need in needs if need is not None))

    def _look(self) -> _Look:
        """Look at GPUs and VMs, which is slow, so without the lock."""
        finished = self._finished
        return _Look(finished=finished, gpu=self.get_gpu_status(), seen=self._observe())

    def _admit(self, request: AllocationRequest, look: _Look, *, without: str) -> None:
        if look.finished != self._finished:
            # What ended meanwhile is not pending any more and may not be in the look yet.
            look = self._look()
        gpu, seen = look.gpu, look.seen
        pending = self._totals_without(without)
        for kind in self._capacities:
            if request.amount_of(kind) and seen.error_of(kind):
                raise ListerFailedError(kind.value, seen.error_of(kind))
        cells: tuple[numa.CellStatus, ...] = ()
        if request.cell_need is not None:
            if seen.instances_error:
                raise ListerFailedError("numa", seen.instances_error)
            cells = self._cells_left(seen, without=without)
        statuses = self._statuses(seen, pending)
        slots = admission.gpu_slots(gpu, pending=pending[ResourceType.GPU])
        failures = admission.shortages(statuses, slots, request, cells)
        if failures:
            fit = admission.largest_fit(statuses, slots, request, cells)
            raise InsufficientCapacityError(failures, fit)


def _configured(amount: int | None) -> Capacity | None:
    return None if amount is None else Capacity(amount=amount, source=Source.CONFIGURED)
