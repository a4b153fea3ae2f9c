"""Taking and giving back virtual GPUs (spec hosts, A.11)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from headroom_host_agent.resources.facts import ResourceError
from headroom_host_agent.resources.gpu.functions import (
    MDEV_DEVICES,
    VirtualFunction,
    mdev_functions,
    mdev_paths,
    mdev_types,
    vendor_functions,
)
from headroom_host_agent.resources.tree import names_below, read_or_none

_choosing = threading.Lock()
_NONE = "0"


class GpuAssignmentError(ResourceError):
    """A virtual GPU could not be made or removed; the host is as before."""

    code = "gpu_assignment_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vgpu:
    """A virtual GPU that was made.

    Attributes:
        function: Address of its virtual function.
        mdev_uuid: None on the vendor's interface.
    """

    function: str
    profile: str
    mdev_uuid: str | None


def create_mdev(
    sysroot: Path, profile: str, *, quarantined: Collection[str] = (), new_uuid: str | None = None
) -> Vgpu:
    """Make a mediated device of a profile on a free function.

    Raises:
        GpuAssignmentError: The profile is unknown, no function is free, or the kernel refuses.
    """
    with _choosing:
        functions = mdev_functions(sysroot)
        kind = next((kind.id for kind in mdev_types(functions) if kind.name == profile), None)
        if kind is None:
            raise GpuAssignmentError(f"gpu: no profile {profile!r} on this host")
        for function in functions:
            is_free = not function.used and function.address not in quarantined
            if is_free and function.offers.get(kind, 0) >= 1:
                name = new_uuid or str(uuid.uuid4())
                _write(function.path / "mdev_supported_types" / kind / "create", name)
                return Vgpu(function=function.address, profile=profile, mdev_uuid=name)
    raise GpuAssignmentError(f"gpu: no free function offers {profile!r}")


def destroy_mdev(sysroot: Path, mdev_uuid: str) -> None:
    """Remove a mediated device; one that is gone already is success.

    Raises:
        GpuAssignmentError: The kernel refuses.
        ValueError: It is no UUID.
    """
    remove = sysroot / MDEV_DEVICES / str(uuid.UUID(mdev_uuid)) / "remove"
    if remove.exists():
        _write(remove, "1")


def assign_vendor(sysroot: Path, profile: str, *, quarantined: Collection[str] = ()) -> Vgpu:
    """Make a virtual GPU on the vendor's interface, on the GPU with the least load.

    Raises:
        GpuAssignmentError: The profile is unknown, no function is free, or the driver did not
            take it; the function is empty then.
        DetectionError: No function can be read.
    """
    with _choosing:
        functions, types = vendor_functions(sysroot)
        kind = next((kind.id for kind in types if kind.name == profile), None)
        if kind is None:
            raise GpuAssignmentError(f"gpu: no profile {profile!r} on this host")
        loads = _loads(functions, {kind.id: kind.framebuffer_mb for kind in types})
        free = [
            function
            for function in functions
            if not function.used and kind in function.offers and function.address not in quarantined
        ]
        if not free:
            raise GpuAssignmentError(f"gpu: no free function offers {profile!r}")
        chosen = min(free, key=lambda function: (loads[function.parent], function.address))
        _set_vendor_type(chosen, kind)
        return Vgpu(function=chosen.address, profile=profile, mdev_uuid=None)


def release_vendor(function: VirtualFunction) -> None:
    """Empty a function of the vendor's interface; an empty one is success.

    Raises:
        GpuAssignmentError: The driver refuses.
    """
    current = function.path / "nvidia/current_vgpu_type"
    if read_or_none(current) != _NONE:
        _write(current, _NONE)


def orphans(
    sysroot: Path, *, ours: Mapping[str, str], running: Collection[str] | None
) -> tuple[str, ...]:
    """Return UUIDs of mediated devices that may be destroyed at start.

    Only those of ours whose VM is known not to run and that nothing holds.

    Args:
        ours: UUID -> id of the VM it was made for.
        running: Ids of VMs that run; None when unknown, which protects everything.
    """
    if running is None:
        return ()
    return tuple(
        name
        for name, path in sorted(mdev_paths(sysroot).items())
        if name in ours and ours[name] not in running and not is_held(sysroot, path)
    )


def is_held(sysroot: Path, device: Path) -> bool:
    """Return whether a driver beside the bus's own, or a process, holds a mediated device."""
    driver = device / "driver"
    if driver.exists() and driver.resolve().name != "vfio_mdev":
        return True
    group = device / "iommu_group"
    if not group.exists():
        return False
    handle = f"/dev/vfio/{group.resolve().name}"
    return any(
        _links_to(sysroot / "proc" / process / "fd", handle)
        for process in names_below(sysroot / "proc")
        if process.isdecimal()
    )


def _links_to(folder: Path, target: str) -> bool:
    """Return whether a file of a process is the target; unreadable ones may be."""
    if not folder.exists():
        return False
    try:
        return any(str(entry.readlink()) == target for entry in folder.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _loads(
    functions: tuple[VirtualFunction, ...], sizes_mb: Mapping[str, int]
) -> dict[str, tuple[bool, int]]:
    """Return for each GPU (is its load unknown, framebuffers in use in MB)."""
    loads: dict[str, tuple[bool, int]] = {}
    for function in functions:
        unknown, load_mb = loads.get(function.parent, (False, 0))
        if function.used:
            kind = read_or_none(function.path / "nvidia/current_vgpu_type") or ""
            unknown |= sizes_mb.get(kind, 0) == 0
            load_mb += sizes_mb.get(kind, 0)
        loads[function.parent] = (unknown, load_mb)
    return loads


def _set_vendor_type(function: VirtualFunction, kind: str) -> None:
    current = function.path / "nvidia/current_vgpu_type"
    try:
        _write(current, kind)
    finally:
        taken = read_or_none(current)
        if taken not in (kind, _NONE):
            _write(current, _NONE)
    if taken != kind:
        raise GpuAssignmentError(f"gpu: {function.address} shows {taken!r} instead of {kind!r}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="ascii")
    except OSError as error:
        raise GpuAssignmentError(f"gpu: cannot write {text!r} to {path}: {error}") from None
