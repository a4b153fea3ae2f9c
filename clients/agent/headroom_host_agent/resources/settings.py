"""What an operator may set of a host's resources, and the defaults (spec hosts, A.2)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from headroom_host_agent.resources.facts import Counting
from headroom_host_agent.resources.gpu.detect import NVIDIA

DEFAULT_DISK_IO_BPS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSettings:
    """Capacities are None where they are detected; ratios as ``as_ratio`` returns them.

    Attributes:
        capacity_memory: Bytes, as disk; network and disk I/O bytes per second.
        max_image_storage: Share of the disk.
        max_vcpus_per_instance: 0 for no limit, as memory in bytes.
        uplink_interface: Empty for the interface of the default route.
        reserved_memory: Bytes that the host keeps, subtracted before the ratio, as disk.
        apply_oversubscription: Whether default bandwidths are shares of the limit or of the
            capacity.
        gpu_vendors: Of GPUs that are handed out whole.
        images_directory: Whose files count as images, as layers of containers and as volumes the
            next two; None counts nothing.
        server_url: Of Headroom; empty for an agent that reports to nobody.
        server_ca: File of certificates in place of the system's.
    """

    capacity_cpu: int | None = None
    capacity_memory: int | None = None
    capacity_disk: int | None = None
    capacity_network: int | None = None
    capacity_disk_io: int = DEFAULT_DISK_IO_BPS
    oversubscription_cpu: Decimal = Decimal(1)
    oversubscription_memory: Decimal = Decimal(1)
    oversubscription_disk: Decimal = Decimal(1)
    oversubscription_network: Decimal = Decimal(1)
    oversubscription_disk_io: Decimal = Decimal(1)
    max_image_storage: Decimal = Decimal("0.2")
    max_vcpus_per_instance: int = 0
    max_memory_per_instance: int = 0
    max_overlay_per_instance: int = 0
    uplink_interface: str = ""
    upload_burst_multiplier: int = 4
    download_burst_multiplier: int = 4
    reserved_cpu: int = 0
    reserved_memory: int = 0
    reserved_disk: int = 0
    counting: Counting = Counting.OPENSTACK
    apply_oversubscription: bool = True
    gpu_vendors: tuple[str, ...] = (NVIDIA,)
    data_dir: Path = Path("/var/lib/headroom")
    images_directory: Path | None = None
    oci_cache_directory: Path | None = None
    volumes_directory: Path | None = None
    server_url: str = ""
    server_ca: Path | None = None
    report_interval_seconds: int = 60
