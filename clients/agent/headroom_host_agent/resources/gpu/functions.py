"""Virtual functions of GPUs, by the kernel's two interfaces (spec hosts, A.11)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headroom_host_agent.resources.facts import DetectionError
from headroom_host_agent.resources.tree import names_below, read_integer, read_or_none, read_text

PROFILE_SECONDS = 30 * 60.0
MDEV_BUS = "sys/class/mdev_bus"
MDEV_DEVICES = "sys/bus/mdev/devices"
PCI_DEVICES = "sys/bus/pci/devices"
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFunction:
    """A slot for one virtual GPU.

    Attributes:
        path: Its folder.
        parent: Address of the GPU, the function's own when it has none above it.
        used: Whether a virtual GPU is there.
        offers: Id of a type -> how many more the function could take.
    """

    address: str
    path: Path
    parent: str
    used: bool
    offers: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuType:
    """A kind of virtual GPU, by the id that the interface knows it by."""

    id: str
    name: str
    framebuffer_mb: int


def mdev_functions(sysroot: Path) -> tuple[VirtualFunction, ...]:
    """Return the functions of mediated devices; a file that cannot be read offers nothing."""
    base = sysroot / MDEV_BUS
    used = {device.parent.name for device in mdev_paths(sysroot).values()}
    return tuple(
        VirtualFunction(
            address=name,
            path=base / name,
            parent=_parent(base / name),
            used=name in used,
            offers={
                kind: max(
                    0,
                    read_integer(
                        base / name / "mdev_supported_types" / kind / "available_instances"
                    )
                    or 0,
                )
                for kind in names_below(base / name / "mdev_supported_types")
            },
        )
        for name in names_below(base)
    )


def mdev_paths(sysroot: Path) -> dict[str, Path]:
    """Return UUID -> resolved folder of each mediated device; the folder above is its function."""
    base = sysroot / MDEV_DEVICES
    return {name: (base / name).resolve() for name in names_below(base)}


def mdev_types(functions: tuple[VirtualFunction, ...]) -> tuple[VgpuType, ...]:
    """Return the types that the first function knows: all functions of a host know the same."""
    if not functions:
        return ()
    base = functions[0].path / "mdev_supported_types"
    types = []
    for kind in names_below(base):
        name = read_or_none(base / kind / "name")
        found = re.search(
            r"framebuffer=([0-9]{1,9})M", read_or_none(base / kind / "description") or ""
        )
        if name:
            types.append(VgpuType(id=kind, name=name, framebuffer_mb=int(found[1]) if found else 0))
    return tuple(types)


class ProfileCache:
    """Keeps the types of mediated devices: they change with the driver only."""

    def __init__(
        self,
        *,
        seconds: float = PROFILE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._monotonic = seconds, monotonic
        self._kept: tuple[Path, float, tuple[VgpuType, ...]] | None = None

    def types_of(self, functions: tuple[VirtualFunction, ...]) -> tuple[VgpuType, ...]:
        """Return what ``mdev_types`` does, read anew after a while or for another first function.

        That there are none is not kept: a driver may be loading.
        """
        now, kept = self._monotonic(), self._kept
        first = functions[0].path if functions else Path()
        if kept is not None and kept[0] == first and now - kept[1] < self._seconds:
            return kept[2]
        types = mdev_types(functions)
        self._kept = (first, now, types) if types else None
        return types


def has_vendor_functions(sysroot: Path) -> bool:
    """Return whether the GPU's own driver makes virtual GPUs, without mediated devices."""
    base = sysroot / PCI_DEVICES
    return any((base / name / "nvidia/creatable_vgpu_types").exists() for name in names_below(base))


def vendor_functions(
    sysroot: Path,
) -> tuple[tuple[VirtualFunction, ...], tuple[VgpuType, ...]]:
    """Return the functions of the vendor's interface, and the types that any of them offers.

    A function that cannot be read is left out.

    Raises:
        DetectionError: There are functions and none can be read.
    """
    base = sysroot / PCI_DEVICES
    functions: list[VirtualFunction] = []
    types: dict[str, VgpuType] = {}
    unreadable = []
    for name in names_below(base):
        folder = base / name / "nvidia"
        if not (folder / "creatable_vgpu_types").exists():
            continue
        try:
            current = read_text(folder / "current_vgpu_type").strip()
            offered = parse_creatable(read_text(folder / "creatable_vgpu_types"))
        except OSError:
            unreadable.append(name)
            continue
        types |= {kind.id: kind for kind in offered}
        functions.append(
            VirtualFunction(
                address=name,
                path=base / name,
                parent=_parent(base / name),
                used=current != "0",
                offers={kind.id: 1 for kind in offered},
            )
        )
    if unreadable and not functions:
        raise DetectionError(f"gpu: no virtual function can be read: {', '.join(unreadable)}")
    return tuple(functions), tuple(types[key] for key in sorted(types))


def parse_creatable(text: str) -> tuple[VgpuType, ...]:
    """Return the types of lines ``id : name``; the heading and other lines are skipped."""
    types = []
    for line in text.splitlines():
        kind, colon, name = (part.strip() for part in line.partition(":"))
        if colon and kind and name and kind.upper() != "ID":
            types.append(VgpuType(id=kind, name=name, framebuffer_mb=framebuffer_mb(name)))
    return tuple(types)


def framebuffer_mb(name: str) -> int:
    """Return the framebuffer that a type's name states: ``NVIDIA L40S-4Q`` has 4096, else 0."""
    found = re.search(r"([0-9]{1,6})[ABCQ][^ABCQ]*\Z", name)
    return int(found[1]) * 1024 if found else 0


def _parent(function: Path) -> str:
    link = function / "physfn"
    return link.resolve().name if link.exists() else function.name
