"""What is on a host, asked once for each answer (spec hosts, A.7, A.13, A.14)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from headroom_host_agent.plugins import entry_points_of
from headroom_host_agent.resources.facts import Counting, InstanceAllocation, ResourceType, counts
from headroom_host_agent.resources.settings import ResourceSettings
from headroom_host_agent.resources.status import DiskBreakdown

T = TypeVar("T")
ENTRY_POINTS = "headroom.host_listers"
_BLOCK_BYTES = 512  # the unit of st_blocks on Linux


class InstanceLister(Protocol):
    """Knows the VMs of a host."""

    def list_instance_allocations(self) -> Iterable[InstanceAllocation]:
        """Return every VM, whatever its state."""


class ImageLister(Protocol):
    """Knows what images take, in bytes."""

    def total_image_bytes(self) -> int:
        """Return what images ready for use take."""

    def total_oci_cache_bytes(self) -> int:
        """Return what layers of container images take."""


class VolumeLister(Protocol):
    """Knows what volumes take, in bytes."""

    def total_volume_bytes(self) -> int:
        """Return what all volumes of the host take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listers:
    """Those that a host has; what none lists counts nothing."""

    instances: InstanceLister | None = None
    images: ImageLister | None = None
    volumes: VolumeLister | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directories:
    """Images and volumes that are files: counts the blocks they take. Missing ones are empty."""

    images: Path | None = None
    oci_cache: Path | None = None
    volumes: Path | None = None

    def total_image_bytes(self) -> int:
        """Return what Nova's image cache, or its like, takes."""
        return disk_usage_bytes(self.images) if self.images else 0

    def total_oci_cache_bytes(self) -> int:
        """Return what the store of container images takes."""
        return disk_usage_bytes(self.oci_cache) if self.oci_cache else 0

    def total_volume_bytes(self) -> int:
        """Return what volumes in files take."""
        return disk_usage_bytes(self.volumes) if self.volumes else 0


def configured_listers(settings: ResourceSettings, sysroot: Path) -> Listers:
    """Return listers of the folders that the settings name; of none when none is named."""

    def below(folder: Path | None) -> Path | None:
        return sysroot / folder.relative_to("/") if folder else None

    folders = Directories(
        images=below(settings.images_directory),
        oci_cache=below(settings.oci_cache_directory),
        volumes=below(settings.volumes_directory),
    )
    has_images = settings.images_directory or settings.oci_cache_directory
    return Listers(
        images=folders if has_images else None,
        volumes=folders if settings.volumes_directory else None,
    )


def disk_usage_bytes(directory: Path) -> int:
    """Return the blocks of all files below, those with many names once; symlinks not followed.

    Raises:
        OSError: A directory cannot be read; one that is missing or goes meanwhile counts nothing.
    """
    seen: set[tuple[int, int]] = set()
    total, pending = 0, [directory]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    if (found.st_dev, found.st_ino) not in seen:
                        seen.add((found.st_dev, found.st_ino))
                        total += found.st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            continue
    return total


def load_listers(base: Listers) -> Listers:
    """Return the listers with those that installed packages offer in place of ours.

    The entry points ``instances``, ``images`` and ``volumes`` are called without arguments.

    Raises:
        ValueError: Two packages offer the same one, or one of another name.
    """
    found: dict[str, object] = {}
    for entry in entry_points_of(ENTRY_POINTS):
        if entry.name not in ("instances", "images", "volumes"):
            raise ValueError(f"{ENTRY_POINTS}: no lister is named {entry.name!r}")
        if entry.name in found:
            raise ValueError(f"{ENTRY_POINTS}: two packages offer {entry.name!r}")
        found[entry.name] = entry.load()()
    return Listers(
        instances=found.get("instances", base.instances),  # type: ignore[arg-type]  # plug-ins
        images=found.get("images", base.images),  # type: ignore[arg-type]  # are not typed
        volumes=found.get("volumes", base.volumes),  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What all listers said at one time.

    Attributes:
        counted: VMs that count.
        breakdown: Parts whose lister failed are 0.
        instances_error: Why VMs are unknown; empty when they are known.
        disk_error: The same of images and volumes.
    """

    counted: tuple[InstanceAllocation, ...]
    breakdown: DiskBreakdown
    instances_error: str = ""
    disk_error: str = ""

    def error_of(self, kind: ResourceType) -> str:
        """Return why what is allocated of a resource is not known; empty when it is."""
        if kind == ResourceType.DISK:
            return "; ".join(filter(None, (self.instances_error, self.disk_error)))
        return "" if kind == ResourceType.GPU else self.instances_error


def observe(listers: Listers, counting: Counting) -> Observation:
    """Ask each lister once. A failure of any kind is kept as text: listers are plug-ins."""
    errors: dict[str, str] = {}

    def ask(name: str, question: Callable[[], T], otherwise: T) -> T:
        try:
            return question()
        except Exception as error:  # noqa: BLE001  # whatever a plug-in raises
            errors[name] = f"{name}: {error or type(error).__name__}"
            return otherwise

    instances, images, volumes = listers.instances, listers.images, listers.volumes
    seen: tuple[InstanceAllocation, ...] = ()
    image_bytes = cache_bytes = volume_bytes = 0
    if instances is not None:
        seen = ask("instances", lambda: tuple(instances.list_instance_allocations()), ())
    if images is not None:
        image_bytes = ask("images", images.total_image_bytes, 0)
        cache_bytes = ask("oci_cache", images.total_oci_cache_bytes, 0)
    if volumes is not None:
        volume_bytes = ask("volumes", volumes.total_volume_bytes, 0)
    counted = tuple(instance for instance in seen if counts(instance, counting))
    overlays = sum(vm.overlay_bytes + vm.volume_overlay_bytes for vm in counted)
    return Observation(
        counted=counted,
        breakdown=DiskBreakdown(
            images_bytes=image_bytes,
            oci_cache_bytes=cache_bytes,
            volumes_bytes=volume_bytes,
            overlays_bytes=overlays,
        ),
        instances_error=errors.pop("instances", ""),
        disk_error="; ".join(errors.values()),
    )
