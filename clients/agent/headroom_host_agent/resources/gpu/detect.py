"""Which GPUs a host has and what of them is free (spec hosts, A.11)."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from headroom_host_agent.resources.facts import DetectionError
from headroom_host_agent.resources.gpu.functions import (
    PCI_ADDRESS,
    PCI_DEVICES,
    ProfileCache,
    VgpuType,
    VirtualFunction,
    has_vendor_functions,
    mdev_functions,
    vendor_functions,
)
from headroom_host_agent.resources.gpu.health import read_quarantined
from headroom_host_agent.resources.gpu.status import GpuProfile, GpuStatus, PassthroughDevice
from headroom_host_agent.resources.tree import SYSTEM, names_below, read_or_none

NVIDIA = "10de"
_DISPLAY_CLASSES = ("0300", "0302")


def get_gpu_status(
    sysroot: Path = SYSTEM,
    *,
    vendors: Collection[str] = (NVIDIA,),
    health_file: Path | None = None,
    profiles: ProfileCache | None = None,
) -> GpuStatus | None:
    """Return the slots of a host's GPUs, None without any.

    A host with virtual functions is never treated as one that hands out whole GPUs.

    Args:
        vendors: Of GPUs that are handed out whole, four hexadecimal digits each.
        health_file: Of ``gpu.health``; when it cannot be read nothing is allocatable.
        profiles: Of mediated devices, so that they are not read each time.
    """
    mdev = mdev_functions(sysroot)
    if mdev:
        return _vgpu_status(mdev, (profiles or ProfileCache()).types_of(mdev), health_file)
    if has_vendor_functions(sysroot):
        try:
            return _vgpu_status(*vendor_functions(sysroot), health_file)
        except DetectionError as error:
            return GpuStatus(
                mode="vgpu",
                total_slots=0,
                used_slots=0,
                allocatable_slots=0,
                placement_disabled_reason=str(error),
            )
    devices = passthrough_devices(sysroot, vendors)
    if not devices:
        return None
    free = sum(device.is_available for device in devices)
    return GpuStatus(
        mode="passthrough",
        total_slots=len(devices),
        used_slots=len(devices) - free,
        allocatable_slots=free,
        devices=devices,
    )


def passthrough_devices(
    sysroot: Path = SYSTEM, vendors: Collection[str] = (NVIDIA,)
) -> tuple[PassthroughDevice, ...]:
    """Return the display controllers of these vendors that an IOMMU group isolates.

    Other functions of a card (audio, USB) are no GPUs.
    """
    base = sysroot / PCI_DEVICES
    found = (_passthrough(base / name) for name in names_below(base) if PCI_ADDRESS.fullmatch(name))
    return tuple(device for device in found if device is not None and device.vendor in vendors)


def _passthrough(path: Path) -> PassthroughDevice | None:
    vendor, device, kind = (
        _identifier(read_or_none(path / name)) for name in ("vendor", "device", "class")
    )
    group = (path / "iommu_group").resolve().name if (path / "iommu_group").exists() else ""
    if vendor is None or device is None or kind is None or not group.isdecimal():
        return None
    if kind[:4] not in _DISPLAY_CLASSES:
        return None
    link = path / "driver"
    return PassthroughDevice(
        address=path.name,
        vendor=vendor,
        device=device,
        iommu_group=int(group),
        driver=link.resolve().name if link.exists() else None,
    )


def _identifier(text: str | None) -> str | None:
    found = re.fullmatch(r"0x([0-9a-f]{4,6})", (text or "").lower())
    return found[1] if found else None


def _vgpu_status(
    functions: tuple[VirtualFunction, ...],
    types: tuple[VgpuType, ...],
    health_file: Path | None,
) -> GpuStatus:
    quarantined, reason = read_quarantined(health_file)
    known = {function.address for function in functions}
    healthy = tuple(
        function
        for function in functions
        if not function.used and function.address not in quarantined
    )
    return GpuStatus(
        mode="vgpu",
        total_slots=len(functions),
        used_slots=sum(function.used for function in functions),
        allocatable_slots=0 if reason else len(healthy),
        quarantined_slots=len(quarantined & known),
        placement_disabled_reason=reason,
        profiles=tuple(
            GpuProfile(
                name=kind.name,
                framebuffer_mb=kind.framebuffer_mb,
                available=sum(
                    function.offers.get(kind.id, 0) for function in functions if not function.used
                ),
            )
            for kind in types
        ),
    )
